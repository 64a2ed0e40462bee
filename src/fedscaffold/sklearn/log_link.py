"""Regression of counts and of positive amounts, with the logarithm as link, federated."""

from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
from sklearn.base import RegressorMixin
from sklearn.metrics import d2_tweedie_score
from sklearn.utils.validation import check_array, check_consistent_length, validate_data

from fedscaffold.core.checks import not_negative
from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.types import Array
from fedscaffold.privacy.settings import PrivacySettings
from fedscaffold.problems.families import FAMILIES, TargetFamily
from fedscaffold.sklearn.base import FLOATS
from fedscaffold.sklearn.private import PrivateFederated, public_target


@dataclass(kw_only=True, eq=False, repr=False)
class LogLinkRegression(RegressorMixin, PrivateFederated):
    """Base of the estimators whose mean is exp(xᵀw + b).

    Parameters
    ----------
    alpha
        Strength of the penalty on w.

    Attributes
    ----------
    coef_, intercept_
        w and b, in the units of the rows.
    """

    alpha: float = 1.0

    _names: ClassVar[dict[str, str]] = {"l2": "alpha"}
    _family: ClassVar[TargetFamily]
    _power: ClassVar[int]  # of the mean in the variance

    def fit(self, X: Any, y: Any, clients: Any = None, sample_weight: Any = None, exposure: Any = None) -> Self:
        """Fit to rows X, targets y and the client that each row belongs to; losses count by `sample_weight`.

        X may be sparse, and is then made dense. `exposure` holds a positive number for each row, such as days
        under observation, to which the mean of its target is proportional; a privacy budget has no place for it.
        """
        budget = self._check_budget(sample_weight=sample_weight, exposure=exposure)
        self._check_settings()
        alpha = not_negative("alpha", self.alpha)
        if budget is not None:
            return self._fit_within(budget, X, y, clients)
        X, y = validate_data(self, X, y, accept_sparse="csr", dtype=FLOATS, y_numeric=True)
        y = np.asarray(y, dtype=np.float64)
        if self._family.out_of_range(float(y.min())) is not None:
            raise InvalidInput(f"y must hold {self._family.target}, but has {y.min():g}")
        weight = self._weights(sample_weight, X)
        offset = np.zeros(len(y)) if exposure is None else _log_exposure(exposure, len(y))
        base = _log_mean_rate(y, offset, weight) if self.fit_intercept else 0.0
        tables = self._tables(X, clients, weight)
        start = self._start(tables, np.array([base]))
        fitted = self._train(
            self._family.problem, tables, y, l2=alpha * (1.0 if weight is None else float(weight.mean())), shift=base,
            start=None if start is None else start[0], offset=tables.split(offset + base),
        )  # fmt: skip
        self._keep([fitted])
        self.n_iter_ = fitted.trained.rounds
        coef, intercept = tables.scale.to_rows(fitted.theta[None])
        self.coef_ = coef[0].astype(tables.dtype)
        self.intercept_ = tables.dtype.type(base + intercept[0])
        return self

    def _fit_within(self, budget: PrivacySettings, X: Any, y: Any, clients: Any) -> Self:
        """Fit under a privacy budget; targets beyond their public range count as its ends."""
        known = public_target(self._family.kind, self.target_bounds)
        if not self.fit_intercept:
            raise InvalidInput(
                "epsilon requires fit_intercept=True: without an intercept the mean at the start is 1, "
                "wherever the range of y lies"
            )
        X, y = validate_data(self, X, y, accept_sparse="csr", dtype=FLOATS, y_numeric=True)
        targets = np.clip(np.asarray(y, dtype=np.float64), *known.ends)
        coef, intercept = self._solve_privately(
            self._family.problem, known, X, targets, clients, budget, l2=float(self.alpha), base=known.shift
        )
        self.n_iter_ = self.privacy_.rounds
        self.coef_ = coef[0].astype(X.dtype)
        self.intercept_ = X.dtype.type(known.shift + intercept[0])
        return self

    def predict(self, X: Any) -> Array:
        """Return expected targets exp(Xw + b) for an exposure of one, (rows,)."""
        return np.exp(self._margins(X))

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Return D², the share of the deviance that the model explains, as scikit-learn does."""
        return float(d2_tweedie_score(y, self.predict(X), sample_weight=sample_weight, power=self._power))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.positive_only = True
        return tags


@dataclass(kw_only=True, eq=False, repr=False)
class FederatedPoissonRegression(LogLinkRegression):
    """Poisson regression: the minimum of the mean of exp(xᵀw + b) − y (xᵀw + b) plus α/2 ‖w‖² over all rows.

    The same model as scikit-learn's `PoissonRegressor(alpha)` on the pooled rows, after standardisation unless that
    is switched off.

    Examples
    --------
    >>> import numpy as np
    >>> from fedscaffold.sklearn import FederatedPoissonRegression
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(300, 1))
    >>> days = rng.uniform(1, 30, size=300)
    >>> visits = rng.poisson(days * np.exp(0.5 * X[:, 0] - 2.0))
    >>> hospitals = np.repeat(["Bonn", "Graz", "Kiel"], 100)
    >>> model = FederatedPoissonRegression(alpha=0).fit(X, visits, clients=hospitals, exposure=days)
    >>> model.summary_.ratios().loc["x0"].round(2).tolist()
    [1.63, 1.51, 1.76]
    >>> model.summary(dispersion="pearson").names  # quasi-Poisson regression
    ('x0', 'intercept')
    """

    _family = FAMILIES["poisson"]
    _power = 1


@dataclass(kw_only=True, eq=False, repr=False)
class FederatedGammaRegression(LogLinkRegression):
    """Gamma regression: the minimum of the mean of y exp(−xᵀw − b) + xᵀw + b plus α/2 ‖w‖² over all rows.

    For positive amounts, such as costs or durations, whose standard deviation grows with their mean. The same model
    as scikit-learn's `GammaRegressor(alpha)` on the pooled rows, after standardisation unless that is switched off.

    Examples
    --------
    >>> import numpy as np
    >>> from fedscaffold.sklearn import FederatedGammaRegression
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(300, 1))
    >>> costs = rng.gamma(2.0, np.exp(0.5 * X[:, 0] + 3.0) / 2.0)
    >>> hospitals = np.repeat(["Bonn", "Graz", "Kiel"], 100)
    >>> FederatedGammaRegression(alpha=0).fit(X, costs, clients=hospitals).coef_.round(1)
    array([0.5])
    """

    _family = FAMILIES["gamma"]
    _power = 2


def _log_mean_rate(y: Array, offset: Array, weight: Array | None) -> float:
    """Return the logarithm of the mean target over the mean exposure, the margin at which training starts."""
    total = float(np.average(y, weights=weight))
    if total == 0.0:
        raise InvalidInput("all targets are 0; there is nothing to learn from them")
    return float(np.log(total / np.average(np.exp(offset), weights=weight)))


def _log_exposure(exposure: Any, n_rows: int) -> Array:
    numbers = check_array(exposure, ensure_2d=False, dtype=np.float64, input_name="exposure")
    check_consistent_length(numbers, np.empty(n_rows))
    if numbers.ndim != 1 or not (numbers > 0.0).all():
        raise InvalidInput("exposure must hold one positive number for each row")
    return np.log(numbers)
