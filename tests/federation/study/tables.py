"""Tables for studies, real ones that scikit-learn ships and made ones, and ways to deal their rows to sites."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
from sklearn import datasets

from fedscaffold.core.types import Array

Table = tuple[pd.DataFrame, Any]  # with a column "y", and the kind of the study


def _shipped(load: Callable[..., Any], kind: str) -> Table:
    data = load(as_frame=True)
    frame = data.data.rename(columns=str)
    frame = frame.loc[:, frame.nunique() > 1].astype(float)
    return frame.assign(
        y=data.target.astype(float) if kind == "ridge" else data.target.map("class {}".format)
    ), kind


def _made(
    n: int, d: int, *, kind: str = "logistic", shift: float = 0.0, tails: float = 4.0, condition: float = 1.0
) -> Table:
    rng = np.random.default_rng([n, d, int(100 * abs(shift))])
    mix = rng.normal(size=(d, d)) / np.sqrt(d) * np.geomspace(1.0, condition, d)
    x = rng.standard_t(tails, size=(n, d)) @ mix
    score = x @ rng.normal(size=d) / x.std() + shift
    y: Any = (
        score + rng.normal(size=n)
        if kind == "ridge"
        else np.where(rng.random(n) < 1 / (1 + np.exp(-score)), "yes", "no")
    )
    return pd.DataFrame(x, columns=[f"x{k}" for k in range(d)]).assign(y=y), kind


def _mixed() -> Table:
    rng = np.random.default_rng(7)
    n = 3000
    ward, dose = (
        rng.choice(["north", "south", "east", "west"], n, p=[0.5, 0.3, 0.15, 0.05]),
        rng.gamma(2.0, 3.0, n),
    )
    score = 0.2 * dose - 1.0 + (ward == "south") - 0.5 * (ward == "east")
    y = np.where(rng.random(n) < 1 / (1 + np.exp(-score)), "ill", "well")
    return pd.DataFrame({"ward": ward, "dose": dose, "age": rng.normal(50, 15, n), "y": y}), "logistic"


def _statsmodels(name: str, target: str, *, above: float) -> Table:
    """A table that statsmodels ships, with whether one of its columns is above a number as the target."""
    import statsmodels.api as sm

    frame = getattr(sm.datasets, name).load_pandas().data.astype(float)
    y = np.where(frame.pop(target) > above, "yes", "no")
    return frame.assign(y=y), "logistic"


TABLES: dict[str, Callable[[], Table]] = {
    "breast cancer": lambda: _shipped(datasets.load_breast_cancer, "logistic"),
    "iris": lambda: _shipped(datasets.load_iris, "logistic"),
    "wine": lambda: _shipped(datasets.load_wine, "logistic"),
    "digits": lambda: _shipped(datasets.load_digits, "logistic"),
    "diabetes": lambda: _shipped(datasets.load_diabetes, "ridge"),
    "made": lambda: _made(2000, 12),
    "made, 50 columns": lambda: _made(5000, 50),
    "made, rare": lambda: _made(6000, 8, shift=-4.0),
    "made, wide": lambda: _made(800, 200),
    "made, numbers": lambda: _made(1500, 20, kind="ridge", tails=3.0),
    "made, condition": lambda: _made(3000, 15, condition=30.0),
    "wards": _mixed,
    "affairs": lambda: _statsmodels("fair", "affairs", above=0.0),
    "election": lambda: _statsmodels("anes96", "vote", above=0.5),
    "made, 649 columns": lambda: _made(1600, 649),
}

SPLITS = ("even", "sizes", "labels", "features")


def deal(frame: pd.DataFrame, n_sites: int, how: str, seed: int) -> dict[str, pd.DataFrame]:
    """The rows of a table dealt to sites, at least two each."""
    rng = np.random.default_rng(seed)
    n = len(frame)
    order = rng.permutation(n)
    if how == "labels":
        keys = frame["y"].to_numpy()
        noise = rng.random(n)
        rank = np.argsort(pd.factorize(keys, sort=True)[0] + 1.5 * noise if keys.dtype == object else keys + noise)
        order = rank
    elif how == "features":
        first = frame.select_dtypes("number").iloc[:, 0].to_numpy()
        order = np.argsort(first + first.std() * rng.normal(size=n))
    shares = rng.dirichlet(np.full(n_sites, 0.5)) if how == "sizes" else np.full(n_sites, 1.0 / n_sites)
    sizes = 2 + np.floor(shares * (n - 2 * n_sites)).astype(int)
    sizes[0] += n - sizes.sum()
    ends: Array = np.cumsum(sizes)
    return {
        f"site-{k}": frame.iloc[order[end - size : end]].reset_index(drop=True)
        for k, (size, end) in enumerate(zip(sizes.tolist(), ends.tolist(), strict=True))
    }
