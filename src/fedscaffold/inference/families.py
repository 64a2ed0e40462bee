"""Families of distributions: constants, variances and the null model, besides the derivatives of losses.

Losses are negative log-likelihoods up to terms without θ, which are added up here. Functions take margins z
(offset included), targets y, offsets o and weights a of some records, and return sums over them.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.special import gammaln, xlogy

from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.types import Array

HIGHEST = 700.0  # of an exponent, below what overflows


@dataclass(frozen=True, kw_only=True)
class ErrorFamily:
    """One family of distributions.

    Attributes
    ----------
    name
        As printed in summaries.
    ratio
        Name of exp(coefficient), such as "odds ratio"; None if it has no meaning.
    dispersion
        Whether the variance has a factor φ that is estimated from Pearson's statistic.
    pearson
        Σ a (y − μ)²/V(μ).
    saturated
        Σ a ℓ of the model that fits every record.
    constant
        Terms of the log-likelihood besides the loss.
    null_sums, null_loss
        Sums for the model with a constant alone, and its loss from these sums and the sum of the weights.
    expected
        E ℓ'' of each record, if that differs from ℓ''; None if they agree.
    """

    name: str
    ratio: str | None
    dispersion: bool
    pearson: Callable[[Array, Array, Array], float]
    saturated: Callable[[Array, Array], float]
    constant: Callable[[Array, Array], float]
    null_sums: Callable[[Array, Array, Array], Array]
    null_loss: Callable[[Array, float], float]
    expected: Callable[[Array, Array], Array] | None = None


def _zero(y: Array, a: Array) -> float:
    return 0.0


def _entropy(shares: Array) -> float:
    """Return −Σ n_k log(n_k / n) of weights n_k of classes."""
    return float(-xlogy(shares, shares / shares.sum()).sum())


def _logistic_null_sums(y: Array, o: Array, a: Array) -> Array:
    return np.array([a[y > 0].sum(), np.count_nonzero(o)])


def _logistic_null_loss(sums: Array, weight: float) -> float:
    """Return the null model's loss; NaN if records have offsets, as it then has no closed form."""
    return float("nan") if sums[1] else _entropy(np.array([sums[0], weight - sums[0]]))


def _poisson_null_loss(sums: Array, weight: float) -> float:
    """Return Σ a (exp(α + o) − y (α + o)) at the best α, from Σ a y, Σ a exp(o) and Σ a y o."""
    counts, exposure, product = sums
    return float(counts - xlogy(counts, counts / exposure) - product)


def _gamma_null_loss(sums: Array, weight: float) -> float:
    """Return Σ a (y exp(−α − o) + α + o) at the best α, from Σ a y exp(−o) and Σ a o."""
    return float(weight + weight * np.log(sums[0] / weight) + sums[1])


FAMILIES = {
    "ridge": ErrorFamily(
        name="Gaussian",
        ratio=None,
        dispersion=True,
        pearson=lambda z, y, a: float(a @ (y - z) ** 2),
        saturated=_zero,
        constant=lambda y, a: float(np.log(a[a > 0]).sum()),
        null_sums=lambda y, o, a: np.array([a @ (y - o), a @ (y - o) ** 2]),
        null_loss=lambda sums, weight: 0.5 * float(sums[1] - sums[0] ** 2 / weight),
    ),
    "logistic": ErrorFamily(
        name="Binomial",
        ratio="odds ratio",
        dispersion=False,
        pearson=lambda z, y, a: float(a @ np.exp(np.minimum(-y * z, HIGHEST))),
        saturated=_zero,
        constant=_zero,
        null_sums=_logistic_null_sums,
        null_loss=_logistic_null_loss,
    ),
    "multinomial": ErrorFamily(
        name="Multinomial",
        ratio="odds ratio",
        dispersion=False,
        pearson=lambda z, y, a: float("nan"),
        saturated=_zero,
        constant=_zero,
        null_sums=lambda y, o, a: np.bincount(y.astype(np.int64), weights=a).astype(np.float64),
        null_loss=lambda sums, weight: _entropy(sums),
    ),
    "poisson": ErrorFamily(
        name="Poisson",
        ratio="rate ratio",
        dispersion=False,
        pearson=lambda z, y, a: float(a @ ((y - np.exp(z)) ** 2 * np.exp(-z))),
        saturated=lambda y, a: float(a @ (y - xlogy(y, y))),
        constant=lambda y, a: float(-(a @ gammaln(y + 1.0))),
        null_sums=lambda y, o, a: np.array([a @ y, a @ np.exp(o), a @ (y * o)]),
        null_loss=_poisson_null_loss,
    ),
    "gamma": ErrorFamily(
        name="Gamma",
        ratio="ratio of means",
        dispersion=True,
        pearson=lambda z, y, a: float(a @ (y * np.exp(-z) - 1.0) ** 2),
        saturated=lambda y, a: float(a @ (1.0 + np.log(y))),
        constant=lambda y, a: float(a @ np.log(y)),
        null_sums=lambda y, o, a: np.array([a @ (y * np.exp(-o)), a @ o]),
        null_loss=_gamma_null_loss,
        expected=lambda z, y: np.ones_like(z),
    ),
}


def family_of(kind: str) -> ErrorFamily:
    """Return the family of a problem's kind; raise if it is not a regression."""
    if kind not in FAMILIES:
        raise InvalidInput(
            f"there are standard errors for {', '.join(FAMILIES)} regression, not for {kind!r} problems"
        )
    return FAMILIES[kind]
