"""Linear regression with an l2 penalty, federated."""

from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cholesky, solve_triangular
from scipy.optimize import nnls
from sklearn.base import RegressorMixin
from sklearn.utils.validation import validate_data

from fedscaffold.core.checks import not_negative
from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.types import Array
from fedscaffold.data.public import LIMIT
from fedscaffold.inference import ClosingSums, Summary
from fedscaffold.inference.per_client import MOST_COEFFICIENTS
from fedscaffold.privacy.settings import PrivacySettings
from fedscaffold.problems import Ridge
from fedscaffold.sklearn.base import FLOATS, Fitted
from fedscaffold.sklearn.private import PrivateFederated, middle_and_sixth, public_target


@dataclass(kw_only=True, eq=False, repr=False)
class FederatedRidge(RegressorMixin, PrivateFederated):
    """Ridge regression: the minimum of ½ Σ (y − xᵀw − b)² + α/2 ‖w‖² over all clients' rows.

    The same model as scikit-learn's `Ridge(alpha)` on the pooled rows, after standardisation unless that is switched
    off; several targets are fitted one after another.

    Parameters
    ----------
    alpha
        Strength of the penalty on w; with several targets one number for all, or one for each.
    positive
        Whether no w may be negative. The sums of gradients and Hessians, which give the loss of all rows exactly,
        are minimised under this condition; `trained_` is without it. There are no standard errors.

    Attributes
    ----------
    coef_, intercept_
        w and b, in the units of the rows: (features,) and a number, with several targets (targets, features) and
        (targets,).

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

        X may be sparse, and is then made dense; y may have several columns. Without `clients` all rows belong to one
        client.
        """
        budget = self._check_budget(sample_weight=sample_weight)
        self._check_settings()
        if budget is not None:
            return self._fit_within(budget, X, y, clients)
        X, y = validate_data(self, X, y, accept_sparse="csr", dtype=FLOATS, y_numeric=True, multi_output=True)
        targets = np.asarray(y, dtype=np.float64).reshape(len(y), -1)
        alphas = self._alphas(targets.shape[1])
        weight = self._weights(sample_weight, X)
        tables = self._tables(X, clients, weight)
        centres = np.average(targets, axis=0, weights=weight) if self.fit_intercept else np.zeros(len(alphas))
        starts: Any = self._start(tables, centres)
        if starts is None:
            starts = [None] * len(alphas)
        fitted = []
        for target, centre, alpha, start in zip(targets.T, centres, alphas, starts, strict=True):
            l2 = alpha / len(targets)
            found = self._train(Ridge, tables, target - centre, l2=l2, start=start, shift=float(centre))
            fitted.append(self._constrained(found) if self.positive else found)
        self._keep(fitted)
        coef, intercept = tables.scale.to_rows(np.stack([each.theta for each in fitted]))
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
        """Return the penalty of each target."""
        given = np.ravel(self.alpha)
        if given.size not in (1, n_targets):
            raise InvalidInput(
                f"Number of targets and number of penalties do not correspond: {given.size} != {n_targets}; pass "
                "alpha as one number, or as one for each column of y"
            )
        return [not_negative("alpha", each) for each in np.broadcast_to(given, n_targets).tolist()]

    def _constrained(self, fitted: Fitted) -> Fitted:
        sums = fitted.trained.certificate.sums
        if sums is None:
            raise InvalidInput(f"positive=True supports at most {MOST_COEFFICIENTS:,} coefficients")
        slopes = np.arange(fitted.theta.size) < self.n_features_in_
        return fitted._replace(theta=nonnegative_minimiser(sums, fitted.penalty, slopes))

    def summary(self, *args: Any, **options: Any) -> Summary:
        """Return coefficients with standard errors; see `fedscaffold.inference.summarise`."""
        if self.positive:
            raise InvalidInput(
                "coefficients that are held at zero have no standard errors; fit with positive=False"
            )
        return super().summary(*args, **options)

    def predict(self, X: Any) -> Array:
        """Return predicted targets Xw + b, (rows,), or (rows, targets) for several."""
        return self._margins(X)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags


def nonnegative_minimiser(sums: ClosingSums, penalty: Array, bound: NDArray[np.bool_]) -> Array:
    """Return the θ with the least penalised squares and θ_j ≥ 0 for the coefficients in `bound`, (dim,).

    With A the Hessian and g the gradient at θ̂, the loss is ½ θᵀAθ − rᵀθ up to a constant, r = Aθ̂ − g. Free
    coefficients follow the others at their best; for these, Lawson and Hanson's active sets are exact.

    Parameters
    ----------
    sums
        Closing sums of least squares, at any θ̂.
    penalty
        Second derivatives of the penalty in units of the sums, (dim,).
    bound
        Which coefficients may not be negative, (dim,).
    """
    A = sums.hessian + np.diag(penalty)
    r = A @ sums.theta - (sums.gradient + penalty * sums.theta)
    free = ~bound
    followed = np.linalg.solve(A[np.ix_(free, free)], np.column_stack([A[np.ix_(free, bound)], r[free]]))
    S = A[np.ix_(bound, bound)] - A[np.ix_(bound, free)] @ followed[:, :-1]
    right = r[bound] - A[np.ix_(bound, free)] @ followed[:, -1]
    scale = 1.0 / np.sqrt(np.diagonal(S))
    S, right = S * scale * scale[:, None], right * scale
    root = cholesky(S, lower=True)
    found, _ = nnls(root.T, solve_triangular(root, right, lower=True), maxiter=30 * right.size)
    above = found > 0.0
    if above.any():  # the same set, solved without the rounding of the steps that led to it
        exact = np.linalg.solve(S[np.ix_(above, above)], right[above])
        found[above] = np.maximum(exact, 0.0)
    theta = np.zeros(bound.size)
    theta[bound] = found * scale
    theta[free] = followed[:, -1] - followed[:, :-1] @ theta[bound]
    return theta
