"""Linear regression with an l2 penalty, federated."""

from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
from sklearn.base import RegressorMixin
from sklearn.utils.validation import check_is_fitted, validate_data

from fedscaffold.core.checks import not_negative
from fedscaffold.core.types import Array
from fedscaffold.problems import Ridge
from fedscaffold.sklearn.base import FLOATS, Federated


@dataclass(kw_only=True, eq=False, repr=False)
class FederatedRidge(RegressorMixin, Federated):
    """Minimises ½ Σ (y − xᵀw − b)² + α/2 ‖w‖² over all clients' rows with Scaffold.

    The same objective as scikit-learn's `Ridge(alpha)` on the pooled rows, after standardisation unless that is
    switched off; fitted by simulating Scaffold among the clients.

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
        Rows in a stochastic gradient, None for all of a client's; "auto": all where clients have at most 512
        rows on average, else what is predicted to take the least time, of all rows and batches of 64, 512 and
        4,096.
    tolerance
        Distance to the pooled model to plan for: ‖w − w*‖ ≤ tolerance · ‖w*‖, with w* what pooled rows would give,
        in standardised units, intercept left out. It is not an error of prediction.
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
        Coefficients with standard errors, tests and intervals, a `fedscaffold.inference.Summary`; `summary(cov)`
        gives those with other standard errors.

    Examples
    --------
    >>> import numpy as np
    >>> from fedscaffold.sklearn import FederatedRidge
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(60, 3))
    >>> y = X @ [1.0, -2.0, 0.5] + 3.0
    >>> hospitals = np.repeat(["Bonn", "Graz", "Kiel"], 20)
    >>> model = FederatedRidge(alpha=0.01).fit(X, y, clients=hospitals)
    >>> model.coef_.round(1)
    array([ 1. , -2. ,  0.5])
    """

    alpha: float = 1.0

    _names: ClassVar[dict[str, str]] = {"l2": "alpha"}

    def fit(self, X: Any, y: Any, clients: Any = None, sample_weight: Any = None) -> Self:
        """Fit to rows X, targets y and the client that each row belongs to; losses count by `sample_weight`.

        Without `clients` all rows are one client's: then Scaffold is gradient descent, and `Ridge` of scikit-learn
        gives the same model at once.
        """
        self._check_parameters()
        not_negative("alpha", self.alpha)
        X, y = validate_data(self, X, y, dtype=FLOATS, y_numeric=True)
        dtype, X, y = X.dtype, X.astype(np.float64, copy=False), np.asarray(y, dtype=np.float64)
        rows = self._clients(clients, len(X))
        weight = self._weights(sample_weight, X)
        centre = float(np.average(y, weights=weight)) if self.fit_intercept else 0.0
        theta, scale = self._fit(
            Ridge, X, y - centre, rows, l2=self.alpha / len(X), sample_weight=weight, target_shift=centre
        )
        coef = theta[: X.shape[1]] / scale.spread
        self.coef_ = coef.astype(dtype)
        self.intercept_ = dtype.type(centre + theta[X.shape[1] :].sum() - coef @ scale.mean)
        return self

    def predict(self, X: Any) -> Array:
        """Predicted targets Xw + b, (rows,)."""
        check_is_fitted(self)
        X = validate_data(self, X, dtype=FLOATS, reset=False)
        return X @ self.coef_ + self.intercept_
