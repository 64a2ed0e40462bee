"""The kinds of model that a table can be fitted with: one object for each, with all that differs between them.

A family's loss and its derivatives are in its problem. Here is what it asks of a table's target, and the sums
over records from which its likelihood, variance and null model follow; doors, studies and standard errors look a
kind up instead of asking which one it is.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import numpy as np

from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.types import Array
from fedscaffold.problems.base import OFFSET, TARGET, expit
from fedscaffold.problems.cox import Cox, null_sums
from fedscaffold.problems.glm import Gamma, Logistic, Poisson, Ridge
from fedscaffold.problems.multinomial import Multinomial

Kind = Literal["ridge", "logistic", "poisson", "gamma", "cox"]
KINDS: tuple[Kind, ...] = get_args(Kind)
HIGHEST = 700.0  # of an exponent, below what overflows


def _zero(y: Array, a: Array) -> float:
    return 0.0


def xlogy(x: Array, y: Array) -> Array:
    """Return x log y, and 0 where x is 0; SciPy's function, which the core does without."""
    return x * np.log(np.where(x == 0.0, 1.0, y))


def _log_factorials(y: Array) -> Array:
    from scipy.special import gammaln  # summaries of tables alone need SciPy

    found: Array = gammaln(y + 1.0)
    return found


@dataclass(frozen=True, kw_only=True)
class TargetFamily:
    """One kind of model.

    Losses are negative log-likelihoods up to terms without θ, which are added up here. Functions take margins z
    (offset included), targets y, offsets o and weights a of some records, and return sums over them.

    Examples
    --------
    >>> from fedscaffold.problems.families import FAMILIES
    >>> FAMILIES["poisson"].log_link
    True
    """

    kind: Kind  # its name in options
    name: str  # in summaries
    problem: Any  # the class of its problem
    mean: Callable[[Array], Array]  # of the target for margins z; for classes the probability of the second
    classes: bool = False  # whether the target holds classes; numbers otherwise
    baseline: bool = False  # whether each client has a baseline hazard in place of an intercept, and rows a status
    log_link: bool = False  # whether the mean is the exponential of the margin, so that rows may have exposures
    least: float | None = None  # lower limit of the target; None for no limit
    above: bool = False  # whether it must lie above `least` instead of reaching it
    whole: bool = False  # whether the target must hold whole numbers
    target: str  # description of the target, in words
    loss: str  # in words
    effect: str | None = None  # quantity that a coefficient changes, in words; None if it is the target itself
    ratio: str | None = None  # name of exp(coefficient), such as "odds ratio"; None if it has no meaning
    dispersion: bool = False  # whether the variance has a factor φ that is estimated from Pearson's statistic
    pearson: Callable[[Array, Array, Array], float]  # Σ a (y − μ)²/V(μ)
    saturated: Callable[[Array, Array], float] = _zero  # Σ a ℓ of the model that fits every record
    constant: Callable[[Array, Array], float] = _zero  # terms of the log-likelihood besides the loss
    null_sums: Callable[[Array, Array, Array], Array]  # for the model with a constant alone
    null_loss: Callable[[Array, float], float]  # its loss, from these sums and the sum of the weights
    null_curvature: Callable[[Array, float], float] | None = None  # its ℓ''; None if no loss falls for ever
    expected: Callable[[Array, Array], Array] | None = None  # E ℓ'' of each record, if it differs from ℓ''

    def out_of_range(self, smallest: float) -> str | None:
        """Return what a target must be, if it must not reach down to `smallest`; None if it may."""
        if self.least is None or smallest > self.least or (smallest == self.least and not self.above):
            return None
        return "be positive" if self.above else "not be negative"

    def standardized(self, y: Array, shift: float, scale: float) -> Array:
        """Return targets, offsets and weights for margins (z − shift)/scale instead of z."""
        if self.classes or self.baseline:
            return y
        if y.ndim == 1:
            found = y - shift
            found /= scale
            return found
        found = np.array(y)
        if self.log_link:
            found[:, OFFSET] += shift
        else:
            found[:, TARGET] -= shift
            found[:, [TARGET, OFFSET]] /= scale
        return found


def _entropy(shares: Array) -> float:
    """Return −Σ n_k log(n_k / n) of weights n_k of classes."""
    return float(-xlogy(shares, shares / shares.sum()).sum())


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


def _binary_curvature(sums: Array, weight: float) -> float:
    share = float(sums[0]) / weight
    return share * (1.0 - share)


FAMILIES: dict[Kind, TargetFamily] = {
    "ridge": TargetFamily(
        kind="ridge",
        name="Gaussian",
        problem=Ridge,
        mean=lambda z: z,
        target="numbers",
        loss="half the squared error",
        dispersion=True,
        pearson=lambda z, y, a: float(a @ (y - z) ** 2),
        constant=lambda y, a: float(np.log(a[a > 0]).sum()),
        null_sums=lambda y, o, a: np.array([a @ (y - o), a @ (y - o) ** 2]),
        null_loss=lambda sums, weight: 0.5 * float(sums[1] - sums[0] ** 2 / weight),
    ),
    "logistic": TargetFamily(
        kind="logistic",
        name="Binomial",
        problem=Logistic,
        mean=expit,
        classes=True,
        target="classes",
        loss="negative log-likelihood",
        effect="log odds",
        ratio="odds ratio",
        pearson=lambda z, y, a: float(a @ np.exp(np.minimum(-y * z, HIGHEST))),
        null_sums=lambda y, o, a: np.array([a[y > 0].sum(), np.count_nonzero(o)]),
        null_loss=_logistic_null_loss,
        null_curvature=_binary_curvature,
    ),
    "poisson": TargetFamily(
        kind="poisson",
        name="Poisson",
        problem=Poisson,
        mean=np.exp,
        log_link=True,
        least=0.0,
        whole=True,
        target="counts",
        loss="negative log-likelihood without its constant",
        effect="logarithm of the rate",
        ratio="rate ratio",
        pearson=lambda z, y, a: float(a @ ((y - np.exp(z)) ** 2 * np.exp(-z))),
        saturated=lambda y, a: float(a @ (y - xlogy(y, y))),
        constant=lambda y, a: float(-(a @ _log_factorials(y))),
        null_sums=lambda y, o, a: np.array([a @ y, a @ np.exp(o), a @ (y * o)]),
        null_loss=_poisson_null_loss,
        null_curvature=lambda sums, weight: float(sums[0]) / weight,
    ),
    "gamma": TargetFamily(
        kind="gamma",
        name="Gamma",
        problem=Gamma,
        mean=np.exp,
        log_link=True,
        least=0.0,
        above=True,
        target="positive amounts",
        loss="negative log-likelihood without its constant",
        effect="logarithm of the mean",
        ratio="ratio of means",
        dispersion=True,
        pearson=lambda z, y, a: float(a @ (y * np.exp(-z) - 1.0) ** 2),
        saturated=lambda y, a: float(a @ (1.0 + np.log(y))),
        constant=lambda y, a: float(a @ np.log(y)),
        null_sums=lambda y, o, a: np.array([a @ (y * np.exp(-o)), a @ o]),
        null_loss=_gamma_null_loss,
        expected=lambda z, y: np.ones_like(z),
    ),
    "cox": TargetFamily(
        kind="cox",
        name="Cox, by client, Efron ties",
        problem=Cox,
        mean=np.exp,
        baseline=True,
        least=0.0,
        target="times until an event or the last visit",
        loss="negative partial log-likelihood",
        effect="logarithm of the hazard",
        ratio="hazard ratio",
        pearson=lambda z, y, a: float("nan"),
        null_sums=null_sums,
        null_loss=lambda sums, weight: float(sums[1]),
        null_curvature=lambda sums, weight: float(sums[0]) / weight,
    ),
}
MULTINOMIAL = replace(
    FAMILIES["logistic"],
    name="Multinomial",
    problem=Multinomial,
    pearson=lambda z, y, a: float("nan"),
    null_sums=lambda y, o, a: np.bincount(y.astype(np.int64), weights=a).astype(np.float64),
    null_loss=lambda sums, weight: _entropy(sums),
    null_curvature=lambda sums, weight: _binary_curvature(np.array([sums.min()]), weight),
)


def family_of(kind: str) -> TargetFamily:
    """Return the family of a problem's kind, "multinomial" included; raise if it is not a regression."""
    found: dict[str, TargetFamily] = {**{one.kind: one for one in FAMILIES.values()}, "multinomial": MULTINOMIAL}
    if kind not in found:
        raise InvalidInput(
            f"there are standard errors for {', '.join(found)} regression, not for {kind!r} problems"
        )
    return found[kind]
