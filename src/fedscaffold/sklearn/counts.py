"""Regression of counts, federated."""

from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
from sklearn.base import RegressorMixin
from sklearn.metrics import d2_tweedie_score
from sklearn.utils.validation import check_array, check_consistent_length, check_is_fitted, validate_data

from fedscaffold.core.checks import not_negative
from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.types import Array
from fedscaffold.problems import Poisson
from fedscaffold.sklearn.base import FLOATS, Federated


@dataclass(kw_only=True, eq=False, repr=False)
class FederatedPoissonRegression(RegressorMixin, Federated):
    """Minimises the mean of exp(xᵀw + b) − y (xᵀw + b) plus α/2 ‖w‖² over all clients' rows with Scaffold.

    The same objective as scikit-learn's `PoissonRegressor(alpha)` on the pooled rows, after standardisation unless
    that is switched off; fitted by simulating Scaffold among the clients.

    Parameters
    ----------
    alpha
        Strength of the penalty on w.
    fit_intercept
        Whether b is fitted; it is not penalised.
    standardize
        Whether features are scaled to mean 0 and variance 1 before the penalty applies, with means and variances
        merged from the clients' own.
    step_size, local_steps, rounds
        γ, H and T, or "auto": planned so that the tolerance is reached. What is given replaces the plan's.
    batch_size
        Rows in a stochastic gradient, None for all of a client's, or "auto" as in `FederatedRidge`.
    tolerance
        Distance to the pooled model to plan for: ‖w − w*‖ ≤ tolerance · ‖w*‖, with w* what pooled rows would give,
        in standardised units, intercept left out.
    close
        Whether at most two Newton steps, from sums of gradients and Hessians over clients, take the run's last θ
        to the optimum.
    min_rows
        Clients with fewer rows are refused: such a client is more often a slip in the ids.
    random_state
        Seed of the rows drawn.
    verbose
        Whether to show progress.

    Attributes
    ----------
    coef_, intercept_
        w and b, in the units of the rows.
    clients_
        Ids of the clients, sorted.
    plan_
        The `fedscaffold.Plan`, or None when nothing was planned.
    trace_
        The `fedscaffold.Trace` of the run.
    n_iter_
        Number of rounds that were run.
    summary_
        Coefficients with standard errors, tests and intervals, a `fedscaffold.inference.Summary`;
        `summary(dispersion="pearson")` gives those of quasi-Poisson regression.

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
    """

    alpha: float = 1.0
    _names: ClassVar[dict[str, str]] = {"l2": "alpha"}

    def fit(self, X: Any, y: Any, clients: Any = None, sample_weight: Any = None, exposure: Any = None) -> Self:
        """Fit to rows X, counts y and the client that each row belongs to; losses count by `sample_weight`.

        `exposure` holds a positive number for each row, such as days under observation, to which its count is
        proportional.
        """
        self._check_parameters()
        not_negative("alpha", self.alpha)
        X, y = validate_data(self, X, y, dtype=FLOATS, y_numeric=True)
        dtype, X, y = X.dtype, X.astype(np.float64, copy=False), np.asarray(y, dtype=np.float64)
        if (y < 0.0).any():
            raise InvalidInput(f"counts must not be negative, but y has {y.min():g}")
        rows = self._clients(clients, len(X))
        weight = self._weights(sample_weight, X)
        offset = np.zeros(len(y)) if exposure is None else _log_exposure(exposure, len(y))
        total = float(np.average(y, weights=weight))
        if total == 0.0:
            raise InvalidInput("all counts are 0; there is nothing to learn from them")
        base = float(np.log(total / np.average(np.exp(offset), weights=weight))) if self.fit_intercept else 0.0
        theta, scale = self._fit(
            Poisson, X, y, rows, l2=self.alpha * (1.0 if weight is None else float(weight.mean())),
            sample_weight=weight, target_shift=base, offset=[offset[own] + base for own in rows],
        )  # fmt: skip
        coef = theta[: X.shape[1]] / scale.spread
        self.coef_ = coef.astype(dtype)
        self.intercept_ = dtype.type(base + theta[X.shape[1] :].sum() - coef @ scale.mean)
        return self

    def predict(self, X: Any) -> Array:
        """Expected counts exp(Xw + b) for an exposure of one, (rows,)."""
        check_is_fitted(self)
        X = validate_data(self, X, dtype=FLOATS, reset=False)
        return np.exp(X @ self.coef_ + self.intercept_)

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """D², the share of the deviance that the model explains, as scikit-learn's `PoissonRegressor` has it."""
        return float(d2_tweedie_score(y, self.predict(X), sample_weight=sample_weight, power=1))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.positive_only = True
        return tags


def _log_exposure(exposure: Any, n_rows: int) -> Array:
    numbers = check_array(exposure, ensure_2d=False, dtype=np.float64, input_name="exposure")
    check_consistent_length(numbers, np.empty(n_rows))
    if numbers.ndim != 1 or not (numbers > 0.0).all():
        raise InvalidInput("exposure must hold one positive number for each row")
    return np.log(numbers)
