"""Fits under privacy budgets of random tables of every kind: their errors against the predicted ones."""

import math
from typing import Any

import numpy as np
import pandas as pd
from rich.console import Console
from rich.table import Table
from scipy.stats import norm

from benchmarks import measured
from fedscaffold.data.public import Bounds
from fedscaffold.models.private import run_privately
from fedscaffold.privacy.plan import PrivacySettings, public_plan

KINDS = ("ridge", "two_classes", "several_classes", "poisson", "gamma")
TABLES, SITES = 24, 5
ROWS, COLUMNS, BUDGETS = (600, 2000), (1, 3, 10, 20), (0.5, 2.0, 8.0)
SHAPES = ("normal", "uniform", "at the ends", "skewed", "narrow")


def columns(rng: np.random.Generator, rows: int, width: int) -> np.ndarray[Any, Any]:
    """Numbers within ±3 of some shape and correlation."""
    rho, shape = rng.choice([0.0, 0.3, 0.6, 0.9, 0.99]), rng.choice(SHAPES)
    g = np.sqrt(rho) * rng.normal(size=rows)[:, None] + np.sqrt(1.0 - rho) * rng.normal(size=(rows, width))
    found = {
        "normal": g, "uniform": 6.0 * norm.cdf(g) - 3.0, "at the ends": 3.0 * np.sign(g),
        "skewed": np.exp(g) - 3.0, "narrow": 0.4 * g,
    }[shape]  # fmt: skip
    return np.asarray(np.clip(found, -3.0, 3.0))


def target(kind: str, x: Any, rng: np.random.Generator) -> tuple[Any, tuple[Any, ...]]:
    """A target that depends on all columns, of some strength, skew and tails, and its public bounds."""
    rows, width = x.shape
    m = x @ rng.normal(size=width)
    m = (m - m.mean()) / m.std()
    if kind == "ridge":
        share, tails = rng.choice([0.3, 0.6, 0.9]), rng.choice([2.0, 50.0])
        return math.sqrt(share) * m + math.sqrt(1.0 - share) * rng.standard_t(tails, size=rows), (-4.0, 4.0)
    if kind == "two_classes":
        log_odds = rng.choice([-3.0, -1.0, 0.0]) + rng.choice([0.5, 1.5, 3.0]) * m
        return np.where(rng.random(rows) < 1.0 / (1.0 + np.exp(-log_odds)), "a", "b"), ("a", "b")
    if kind == "several_classes":
        K = int(rng.choice([3, 4, 6]))
        z = x @ rng.normal(size=(width, K))
        z = (
            rng.choice([0.5, 1.5, 3.0]) * (z - z.mean(axis=0)) / z.std(axis=0)
            - 3.0 * rng.integers(2) * np.eye(K)[0]
        )
        return np.array(list("abcdef"))[(z + rng.gumbel(size=z.shape)).argmax(axis=1)], tuple("abcdef"[:K])
    effect, generous = rng.choice([0.2, 0.6, 1.0]), rng.choice([1.0, 3.0])
    if kind == "poisson":
        shape = rng.choice([0.5, 2.0, 50.0])
        rate = rng.choice([0.1, 0.5, 3.0, 20.0, 200.0]) * np.exp(effect * m)
        y = rng.poisson(rate * rng.gamma(shape, 1.0 / shape, size=rows)).astype(float)
        return y, (0, max(1, math.ceil(generous * np.quantile(y, 0.99))))
    shape = rng.choice([0.5, 2.0, 20.0])
    y = np.maximum(np.exp(4.0 * rng.normal() + effect * m) * rng.gamma(shape, 1.0 / shape, size=rows), 1e-12)
    low, high = np.quantile(y, [0.01, 0.99]).tolist()
    return y, (low / generous, high * generous)


def one_table(kind: str, rng: np.random.Generator) -> dict[str, float]:
    """Return the error of a fit in units of the coefficients' length, and over the one that its plan predicts."""
    rows, width, epsilon = int(rng.choice(ROWS)), int(rng.choice(COLUMNS)), float(rng.choice(BUDGETS))
    x = columns(rng, rows, width)
    y, ends = target(kind, x, rng)
    alike = rng.random(rows)  # clients that are alike, or that differ in the first column
    differ = alike if rng.random() < 0.5 else norm.cdf(x[:, 0] + rng.normal(size=rows))
    table = pd.DataFrame(x, columns=[f"x{j}" for j in range(width)])
    table = table.assign(y=y, site=np.argsort(np.argsort(differ)) * SITES // rows)
    public = {**dict.fromkeys(table.columns[:width], (-3.0, 3.0)), "y": ends}
    named = "logistic" if kind.endswith("classes") else kind
    bounds = Bounds.parse(public, target="y", kind=named)
    problem = bounds.problem(table, "site", "auto")
    settings = PrivacySettings(epsilon=epsilon)
    plan = public_plan(bounds.public_target, bounds.levels, problem.sizes.tolist(), settings, l2=problem.l2)
    best, theta = problem.optimum(), run_privately(problem, plan, progress=False)
    assert plan.predicted_error is not None
    error = float(np.linalg.norm(theta - best) / np.linalg.norm(best))
    return {"error": error, "over_predicted": error / plan.predicted_error}


def main() -> None:
    """Fit random tables of each kind and save quantiles."""
    options = measured.parser(__doc__).parse_args()
    shown = Table("kind", "error / predicted: 10 %", "50 %", "90 %", "largest", "median error", "largest error")
    figures = {}
    for number, kind in enumerate(KINDS):
        rng = np.random.default_rng(number)
        found = pd.DataFrame([one_table(kind, rng) for _ in range(TABLES)])
        low, middle, high, most = found["over_predicted"].quantile([0.1, 0.5, 0.9, 1.0]).tolist()
        figures[kind] = {
            "tables": TABLES, "low": low, "middle": middle, "high": high, "most": most,
            "median_error": float(found["error"].median()), "largest_error": float(found["error"].max()),
        }  # fmt: skip
        cells = list(figures[kind].values())[1:]
        shown.add_row(kind, *(f"{cell:.2f}" for cell in cells))
    Console().print(shown)
    measured.save("private_fits", figures, options)


if __name__ == "__main__":
    main()
