"""Linear regression with an l2 penalty, federated."""

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np
from sklearn.base import RegressorMixin
from sklearn.utils.validation import validate_data

from fedscaffold.core.checks import not_negative
from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.types import Array
from fedscaffold.data.public import LIMIT
from fedscaffold.inference import Summary
from fedscaffold.inference.per_client import MOST_COEFFICIENTS
from fedscaffold.privacy.settings import PrivacySettings
from fedscaffold.problems import Ridge
from fedscaffold.sklearn.base import FLOATS, ClientTables
from fedscaffold.sklearn.nonnegative import nonnegative_minimiser
from fedscaffold.sklearn.private import PrivateFederated, middle_and_sixth, public_target
from fedscaffold.sklearn.running import Solution


@dataclass(kw_only=True, eq=False, repr=False)
class FederatedRidge(RegressorMixin, PrivateFederated):
    """Minimises ½ Σ (y − xᵀw − b)² + α/2 ‖w‖² over all clients' rows with Scaffold.

    The same objective as scikit-learn's `Ridge(alpha)` on the pooled rows, after standardisation unless that is
    switched off; fitted by simulating Scaffold among the clients, for several targets one after another.

    Parameters
    ----------
    alpha
        Strength of the penalty on w; with several targets one number for all, or one for each.
    positive
        Whether no w may be negative. Scaffold runs without this condition; afterwards the sums of gradients and
        Hessians, which give the loss of all rows exactly, are minimised under it. There are no standard errors.
    fit_intercept
        Whether to fit b, which is not penalised.
    standardize
        Whether to scale features to mean 0 and variance 1 before the penalty applies.
    step_size, local_steps, rounds
        γ, H and T; "auto" plans them so that the tolerance is reached.
    batch_size
        Rows in a stochastic gradient, None for all of a client's; "auto" chooses the fastest.
    tolerance
        Relative distance to the pooled model to plan for, ‖w − w*‖ ≤ tolerance · ‖w*‖.
    close
        Whether to finish with up to two Newton steps from sums over clients.
    dispersion
        Variance factor in `summary_`: None for the family's, "pearson" to estimate it, or a number.
    warm_start
        Whether to start from the coefficients of the last fit.
    min_rows
        Smallest number of rows that a client may have.
    random_state
        Seed of the rows drawn.
    verbose
        Whether to show progress.
    epsilon, delta
        Privacy budget of every row; None for none. Under a budget there are no Newton steps or standard errors.
    clip
        Largest norm of a row's gradient under a budget; chosen by default.
    bounds, target_bounds
        Public ranges (low, high) of the features, and of y or its classes; required by `epsilon`.

    Attributes
    ----------
    coef_, intercept_
        w and b, in the units of the rows: (features,) and a number, with several targets (targets, features) and
        (targets,), and then `plan_` and `trace_` are tuples with one for each target.
    clients_
        Ids of the clients, sorted.
    plan_, trace_
        The `fedscaffold.Plan` (None if nothing was planned) and the `fedscaffold.Trace` of the run.
    n_iter_
        Number of rounds run.
    n_features_in_, feature_names_in_
        Number of columns of X, and their names if X has some.
    summary_
        Coefficients with standard errors, tests and intervals, a `fedscaffold.inference.Summary`.

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

    alpha: Any = 1.0
    positive: bool = False

    _names: ClassVar[dict[str, str]] = {"l2": "alpha"}

    def fit(self, X: Any, y: Any, clients: Any = None, sample_weight: Any = None) -> Self:
        """Fit to rows X, targets y and the client that each row belongs to; losses count by `sample_weight`.

        X may be sparse, and is then made dense; y may have several columns. Without `clients` all rows are one
        client's: then Scaffold is gradient descent, and `Ridge` of scikit-learn gives the same model at once.
        """
        budget = self._check_budget(sample_weight=sample_weight)
        self._settings()
        if budget is not None:
            return self._fit_within(budget, X, y, clients)
        if self.positive and not self.close:
            raise InvalidInput("positive=True requires close=True")
        X, y = validate_data(self, X, y, accept_sparse="csr", dtype=FLOATS, y_numeric=True, multi_output=True)
        targets = np.asarray(y, dtype=np.float64).reshape(len(y), -1)
        alphas = self._alphas(targets.shape[1])
        weight = self._weights(sample_weight, X)
        tables = self._tables(X, clients, weight)
        centres = np.average(targets, axis=0, weights=weight) if self.fit_intercept else np.zeros(len(alphas))
        starts = self._starts(tables, centres)
        solutions = []
        for target, centre, alpha, start in zip(targets.T, centres, alphas, starts, strict=True):
            found = self._solve(Ridge, tables, target - centre, l2=alpha / len(targets), start=start)
            solutions.append(self._constrained(found) if self.positive else found)
        self._keep(solutions, [self._own_coordinates(tables, shift=float(centre)) for centre in centres])
        coef, intercept = tables.scale.to_rows(np.stack([each.theta for each in solutions]))
        coef, intercept = coef.astype(tables.dtype), (intercept + centres).astype(tables.dtype)
        self.coef_ = coef[0] if len(alphas) == 1 else coef
        self.intercept_ = intercept[0] if np.ndim(y) == 1 else intercept
        return self

    def _fit_within(self, budget: PrivacySettings, X: Any, y: Any, clients: Any) -> Self:
        """Fit under a privacy budget."""
        if self.positive:
            raise InvalidInput("epsilon cannot be combined with positive=True")
        known = public_target("ridge", self.target_bounds)
        ends = (np.array([end]) for end in known.ends)
        (shift,), (spread,) = middle_and_sixth(*ends, centred=self.fit_intercept)
        X, y = validate_data(self, X, y, accept_sparse="csr", dtype=FLOATS, y_numeric=True)
        targets = np.clip((np.asarray(y, dtype=np.float64) - shift) / spread, -LIMIT, LIMIT)
        (alpha,) = self._alphas(1)
        coef, intercept = self._solve_privately(Ridge, known, X, targets, clients, budget, l2=alpha / len(y))
        self.coef_ = (spread * coef[0]).astype(X.dtype)
        self.intercept_ = X.dtype.type(spread * intercept[0] + shift)
        return self

    def _alphas(self, n_targets: int) -> list[float]:
        """The penalty of each target."""
        given = np.ravel(self.alpha)
        if given.size not in (1, n_targets):
            raise InvalidInput(
                f"Number of targets and number of penalties do not correspond: {given.size} != {n_targets}; pass "
                "alpha as one number, or as one for each column of y"
            )
        return [not_negative("alpha", each) for each in np.broadcast_to(given, n_targets).tolist()]

    def _starts(self, tables: ClientTables, centres: Array) -> list[Array | None]:
        """θ of the last fit for each target; None where there is none that fits."""
        found = self._start(tables, centres.size)
        if found is None:
            return [None] * centres.size
        starts = found.reshape(centres.size, -1)
        if self.fit_intercept:
            starts[:, -1] -= centres
        return list(starts)

    def _constrained(self, solution: Solution) -> Solution:
        if solution.closed is None:
            raise InvalidInput(f"positive=True supports at most {MOST_COEFFICIENTS:,} coefficients")
        slopes = np.arange(solution.theta.size) < self.n_features_in_
        theta = nonnegative_minimiser(solution.closed.sums, solution.penalty, slopes)
        return replace(solution, theta=theta)

    def summary(self, *args: Any, **options: Any) -> Summary:
        """Coefficients with standard errors; see `fedscaffold.inference.summarise`."""
        if self.positive:
            raise InvalidInput(
                "coefficients that are held at zero have no standard errors; fit with positive=False"
            )
        return super().summary(*args, **options)

    def predict(self, X: Any) -> Array:
        """Predicted targets Xw + b, (rows,), or (rows, targets) for several."""
        return self._margins(X)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags
