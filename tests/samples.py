"""Small problems for the tests, heterogeneous unless asked otherwise."""

from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np

from fedscaffold.core.types import Array
from fedscaffold.problems import Gamma, LinearSA, Logistic, Multinomial, Poisson, Ridge

Kind = Literal["ridge", "logistic"]
KINDS: tuple[Kind, Kind] = ("ridge", "logistic")
WEIGHTED_KINDS = ("ridge", "logistic", "poisson", "gamma", "multinomial")


def tables(kind: Kind, sizes: Sequence[int], dim: int, seed: int = 0) -> tuple[list[Array], list[Array]]:
    """Features of scale 1/√dim, shifted and scaled per client; targets from a model of the client's own."""
    rng = np.random.default_rng(seed)
    X, y = [], []
    for n in sizes:
        x = (rng.normal(size=(n, dim)) * rng.uniform(0.5, 1.5) + rng.normal(size=dim)) / np.sqrt(dim)
        z = x @ rng.normal(size=dim) + rng.normal(size=n)
        X.append(x)
        y.append(z if kind == "ridge" else np.where(z > 0, 1.0, -1.0))
    return X, y


def make(
    kind: Kind,
    sizes: Sequence[int] = (6, 9, 4),
    dim: int = 3,
    *,
    l2: float = 0.1,
    weights: Sequence[float] | None = None,
    n_unpenalised: int = 0,
    seed: int = 0,
) -> Ridge | Logistic:
    """A problem over such tables."""
    problem: Callable[..., Any] = Ridge if kind == "ridge" else Logistic
    return problem(*tables(kind, sizes, dim, seed), l2=l2, weights=weights, n_unpenalised=n_unpenalised)


def weighted(
    kind: str,
    sizes: Sequence[int] = (6, 9, 4),
    dim: int = 3,
    *,
    l2: float = 0.1,
    weights: Sequence[float] | None = None,
    n_unpenalised: int = 0,
    seed: int = 0,
) -> Any:
    """A problem of any family with offsets and sample weights; multinomial with weights alone."""
    rng = np.random.default_rng(seed + 1000)
    X, z = tables("ridge", sizes, dim, seed)
    more: Any = {"l2": l2, "weights": weights, "n_unpenalised": n_unpenalised}
    more["sample_weight"] = [rng.uniform(0.2, 2.0, size=n) for n in sizes]
    if kind == "multinomial":
        return Multinomial(X, [rng.integers(0, 3, size=n) for n in sizes], n_classes=3, **more)
    more["offset"] = [rng.normal(size=n) / 2 for n in sizes]
    make_problem: dict[str, Callable[..., Any]] = {
        "ridge": lambda: Ridge(X, z, **more),
        "logistic": lambda: Logistic(X, [np.sign(t) for t in z], **more),
        "poisson": lambda: Poisson(X, [rng.poisson(np.exp(t / 2)) for t in z], **more),
        "gamma": lambda: Gamma(X, [rng.gamma(2.0, np.exp(t / 2) / 2) + 0.01 for t in z], **more),
    }
    return make_problem[kind]()


def systems(
    sizes: Sequence[int] = (6, 9, 4), dim: int = 3, *, weights: Sequence[float] | None = None, seed: int = 0
) -> LinearSA:
    """Linear systems, not symmetric, of every client's own: a rotation, a mean, and noise on each record."""
    rng = np.random.default_rng(seed)
    A, b = [], []
    for n in sizes:
        skew = rng.normal(size=(dim, dim)) / np.sqrt(dim)
        mean = rng.uniform(0.5, 1.5) * np.eye(dim) + skew - skew.T
        A.append(mean + 0.3 * rng.normal(size=(n, dim, dim)) / np.sqrt(dim))
        b.append(rng.normal(size=dim) + rng.normal(size=(n, dim)))
    return LinearSA(A, b, weights=weights)
