"""Linear regression with an l2 penalty, federated."""

from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from sklearn.base import RegressorMixin
from sklearn.utils.validation import check_is_fitted, validate_data

from fedscaffold.core.checks import not_negative
from fedscaffold.core.types import Array
from fedscaffold.problems import Ridge
from fedscaffold.sklearn.base import Federated


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
        rows on average, else 64.
    tolerance
        Distance to the pooled model to plan for: ‖θ − θ*‖ ≤ tolerance · ‖θ*‖, with θ* what pooled rows would give,
        in standardised units. It is not an error of prediction.
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

    def fit(self, X: Any, y: Any, clients: Any = None) -> Self:
        """Fit to rows X, targets y and the client that each row belongs to (one client without ids)."""
        self._check_parameters()
        not_negative("alpha", self.alpha)
        X, y = validate_data(self, X, y, dtype=np.float64, y_numeric=True)
        rows = self._clients(clients, len(X))
        centre = float(np.mean(y)) if self.fit_intercept else 0.0
        theta, scale = self._fit(Ridge, X, y - centre, rows, l2=self.alpha / len(X))
        self.coef_ = theta[: X.shape[1]] / scale.spread
        self.intercept_ = centre + float(theta[X.shape[1] :].sum()) - float(self.coef_ @ scale.mean)
        return self

    def predict(self, X: Any) -> Array:
        """Predicted targets Xw + b, (rows,)."""
        check_is_fitted(self)
        X = validate_data(self, X, dtype=np.float64, reset=False)
        return X @ self.coef_ + self.intercept_
