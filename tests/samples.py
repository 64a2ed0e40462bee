"""Small problems for the tests, heterogeneous unless asked otherwise."""

from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np

from fedscaffold.core.types import Array
from fedscaffold.problems import LinearSA, Logistic, Ridge

Kind = Literal["ridge", "logistic"]
KINDS: tuple[Kind, Kind] = ("ridge", "logistic")


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
