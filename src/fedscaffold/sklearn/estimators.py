"""Ridge, logistic, Poisson and gamma regression of rows that belong to clients."""

from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
from scipy.linalg import cholesky, solve_triangular
from scipy.optimize import nnls
from scipy.special import log_softmax
from sklearn.base import RegressorMixin
from sklearn.linear_model._base import LinearClassifierMixin, SparseCoefMixin
from sklearn.metrics import d2_tweedie_score
from sklearn.utils.class_weight import compute_class_weight
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_array, check_consistent_length, validate_data

from fedscaffold.core.checks import not_negative, positive
from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.types import Array
from fedscaffold.data.public import LIMIT, PublicTarget
from fedscaffold.inference.sums import MOST_COEFFICIENTS
from fedscaffold.problems import Logistic, Multinomial, Ridge
from fedscaffold.problems.families import FAMILIES, TargetFamily
from fedscaffold.sklearn.base import FLOATS, Federated, Fitted, Scale, public_scale, public_target

HELD_AT_ZERO = "coefficients that are held at zero have no standard errors; fit with positive=False"


@dataclass(kw_only=True, eq=False, repr=False)
class FederatedRidge(RegressorMixin, Federated):
    """Ridge regression: the minimum of ½ Σ (y − xᵀw − b)² + α/2 ‖w‖² over all clients' rows.

    The same model as scikit-learn's `Ridge(alpha)` on the pooled rows, after standardisation unless that is
    switched off; several targets are fitted one after another.

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

    def fit(self, X: Any, y: Any, clients: Any = None, sample_weight: Any = None) -> Self:
        """Fit to rows X, targets y and the client that each row belongs to; losses count by `sample_weight`.

        X may be sparse, and is then made dense; y may have several columns. Without `clients` all rows belong to
        one client.
        """
        self._check_settings(sample_weight=sample_weight, positive=self.positive or None)
        public = None if self.epsilon is None else public_target("ridge", self.target_bounds)
        X, y = validate_data(
            self, X, y, accept_sparse="csr", dtype=FLOATS, y_numeric=True, multi_output=not public
        )
        targets = np.asarray(y, dtype=np.float64).reshape(len(y), -1)
        n, k = targets.shape
        given = np.ravel(self.alpha)
        if given.size not in (1, k):
            raise InvalidInput(f"Number of targets and number of penalties do not correspond: {given.size} != {k}")
        alphas = [not_negative("alpha", each) for each in np.broadcast_to(given, k).tolist()]
        weight = self._weights(sample_weight, X)
        tables = self._tables(X, clients, weight)
        centres = np.average(targets, axis=0, weights=weight) if self.fit_intercept else np.zeros(k)
        scale, limit = Scale(centres, np.ones(k)), np.inf
        if public is not None:
            limit, scale = LIMIT, public_scale("target_bounds", self.target_bounds, k, centred=self.fit_intercept)
        targets, starts = np.clip(scale.apply(targets), -limit, limit), self._start(tables, scale.mean)
        fitted = []
        for c, alpha in enumerate(alphas):
            found = self._train(
                Ridge, tables, targets[:, c], l2=alpha / n, target=public, shift=float(scale.mean[c]),
                start=None if starts is None else starts[c],
            )  # fmt: skip
            fitted.append(_nonnegative(found, alpha, self.n_features_in_) if self.positive else found)
        self._keep(fitted)
        coef, intercept = tables.scale.to_rows(np.stack([each.theta for each in fitted]) * scale.spread[:, None])
        coef, intercept = coef.astype(tables.dtype), (intercept + scale.mean).astype(tables.dtype)
        self.coef_ = coef[0] if k == 1 else coef
        self.intercept_ = intercept[0] if np.ndim(y) == 1 else intercept
        return self

    def predict(self, X: Any) -> Array:
        """Return predicted targets Xw + b, (rows,), or (rows, targets) for several."""
        return self._margins(X)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags


def _nonnegative(fitted: Fitted, alpha: float, n_slopes: int) -> Fitted:
    """Return the fit with the least penalised squares whose first `n_slopes` coefficients are not negative.

    With A the penalised Hessian and g the gradient at θ̂, the loss is ½ θᵀAθ − rᵀθ up to a constant, r = Aθ̂ − g,
    which Lawson and Hanson's active sets minimise exactly. An intercept stays, since columns are centred.
    """
    sums = None if fitted.trained is None else fitted.trained.certificate.sums
    if sums is None:
        raise InvalidInput(f"positive=True supports at most {MOST_COEFFICIENTS:,} coefficients")
    slopes = slice(0, n_slopes)
    A = sums.hessian[slopes, slopes] + alpha * np.eye(n_slopes)
    r = A @ sums.theta[slopes] - (sums.gradient[slopes] + alpha * sums.theta[slopes])
    scale = 1.0 / np.sqrt(np.diagonal(A))
    A, r = A * scale * scale[:, None], r * scale
    root = cholesky(A, lower=True)
    found, _ = nnls(root.T, solve_triangular(root, r, lower=True), maxiter=30 * n_slopes)
    above = found > 0.0
    if above.any():  # the same set, solved without the rounding of the steps that led to it
        found[above] = np.maximum(np.linalg.solve(A[np.ix_(above, above)], r[above]), 0.0)
    return fitted._replace(theta=np.concatenate([found * scale, sums.theta[n_slopes:]]), report=HELD_AT_ZERO)


@dataclass(kw_only=True, eq=False, repr=False)
class FederatedLogisticRegression(LinearClassifierMixin, SparseCoefMixin, Federated):
    """Logistic regression: the minimum of C Σ loss(y, xᵀw + b) + ½ ‖w‖² over all clients' rows.

    The same model as scikit-learn's `LogisticRegression(C)` on the pooled rows, after standardisation unless that
    is switched off: logistic for two classes, multinomial for more.

    Parameters
    ----------
    C
        Inverse strength of the penalty on w; infinity for none.
    class_weight
        None, "balanced" for weights n / (K · rows of the class), or a dictionary from label to weight; they
        multiply `sample_weight`.

    Attributes
    ----------
    classes_
        Labels, sorted.
    coef_, intercept_
        w and b in the units of the rows: one row for two classes, one per class for more.

    Examples
    --------
    >>> import numpy as np
    >>> from fedscaffold.sklearn import FederatedLogisticRegression
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(60, 3))
    >>> y = np.where(X[:, 0] > X[:, 1], "ill", "well")
    >>> hospitals = np.repeat(["Bonn", "Graz", "Kiel"], 20)
    >>> model = FederatedLogisticRegression().fit(X, y, clients=hospitals)
    >>> bool(model.score(X, y) > 0.9)
    True
    """

    C: float = 1.0
    class_weight: Any = None

    _penalty = "1/C"

    def fit(self, X: Any, y: Any, clients: Any = None, sample_weight: Any = None) -> Self:
        """Fit to rows X, labels y and the client that each row belongs to; losses count by `sample_weight`.

        X may be sparse, and is then made dense. Without `clients` all rows belong to one client.
        """
        self._check_settings(sample_weight=sample_weight, class_weight=self.class_weight)
        if self.C not in (np.inf,):
            positive("C", self.C)
        X, y = validate_data(self, X, y, accept_sparse="csr", dtype=FLOATS)
        check_classification_targets(y)
        self.classes_, labels = self._labels(y)
        K = len(self.classes_)
        tables = self._tables(X, clients, self._row_weights(sample_weight, X, y, labels))
        start, l2 = self._start(tables, np.zeros(1 if K == 2 else K)), 1.0 / (self.C * len(y))
        kind, more = (Logistic, {}) if K == 2 else (Multinomial, {"n_classes": K})
        fitted = self._train(
            kind, tables, labels.astype(np.float64), l2=l2, start=start, shift=0.0,
            target=None if self.epsilon is None else PublicTarget(kind="logistic", n_classes=K),
            classes=list(self.classes_) if K > 2 else None, **more,
        )  # fmt: skip
        self._keep([fitted])
        theta = fitted.theta.reshape(-1, tables.features[0].shape[1])
        if K > 2:  # the same model, and no larger penalty: what classes have in common is rounding
            theta = theta - theta.mean(axis=0)
        coef, intercept = tables.scale.to_rows(theta)
        self.coef_: Any = coef.astype(tables.dtype)
        self.intercept_ = intercept.astype(tables.dtype)
        return self

    def _labels(self, y: Any) -> tuple[Any, Any]:
        """Return the classes, sorted, and each row's position among them; under a budget classes are public."""
        if self.epsilon is None:
            classes, labels = np.unique(y, return_inverse=True)
            if len(classes) < 2:
                raise InvalidInput(f"y has one class only, {classes[0]!r}; a classifier needs at least two")
            return classes, labels
        classes = np.unique(np.asarray(self.target_bounds))
        if np.ndim(self.target_bounds) != 1 or not 2 <= classes.size == len(self.target_bounds):
            raise InvalidInput("target_bounds must be the classes of y, two or more different ones")
        if not np.isin(y, classes).all():
            raise InvalidInput("y has classes that target_bounds lacks")
        return classes, np.searchsorted(classes, y)

    def _row_weights(self, sample_weight: Any, X: Any, y: Any, labels: Any) -> Array | None:
        """Return weights of rows times weights of their classes; None if all are one."""
        weight = self._weights(sample_weight, X)
        if self.class_weight is not None:
            classes = compute_class_weight(self.class_weight, classes=self.classes_, y=y, sample_weight=weight)
            weight = np.asarray(classes[labels] if weight is None else weight * classes[labels])
        if weight is not None:
            empty = np.flatnonzero(np.bincount(labels, weights=weight) == 0.0)
            if empty.size:
                name = self.classes_[empty[0]]
                raise InvalidInput(f"no row of class {name!r} has a positive weight; leave out such classes")
        return weight

    def predict_log_proba(self, X: Any) -> Array:
        """Return logarithms of the probabilities of the classes for each row, (rows, classes)."""
        margins = self.decision_function(X)
        if margins.ndim == 1:
            margins = np.column_stack([np.zeros_like(margins), margins])
        return np.asarray(log_softmax(margins, axis=1))

    def predict_proba(self, X: Any) -> Array:
        """Return probabilities of the classes for each row, (rows, classes)."""
        return np.exp(self.predict_log_proba(X))


@dataclass(kw_only=True, eq=False, repr=False)
class LogLinkRegression(RegressorMixin, Federated):
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

    _family: ClassVar[TargetFamily]
    _power: ClassVar[int]  # of the mean in the variance

    def fit(self, X: Any, y: Any, clients: Any = None, sample_weight: Any = None, exposure: Any = None) -> Self:
        """Fit to rows X, targets y and the client that each row belongs to; losses count by `sample_weight`.

        X may be sparse, and is then made dense. `exposure` holds a positive number for each row, such as days
        under observation, to which the mean of its target is proportional; a privacy budget has no place for it.
        """
        self._check_settings(sample_weight=sample_weight, exposure=exposure)
        alpha = not_negative("alpha", self.alpha)
        public = None if self.epsilon is None else public_target(self._family.kind, self.target_bounds)
        if public is not None and not self.fit_intercept:
            raise InvalidInput("epsilon requires fit_intercept=True: without it the mean at the start is always 1")
        X, y = validate_data(self, X, y, accept_sparse="csr", dtype=FLOATS, y_numeric=True)
        y = np.asarray(y, dtype=np.float64)
        base = 0.0
        if public is not None:
            y, base = np.clip(y, *public.ends), public.shift
        elif self._family.out_of_range(float(y.min())) is not None:
            raise InvalidInput(f"y must hold {self._family.target}, but has {y.min():g}")
        weight = self._weights(sample_weight, X)
        offset = np.zeros(len(y)) if exposure is None else _log_exposure(exposure, len(y))
        if public is None and self.fit_intercept:
            base = _log_mean_rate(y, offset, weight)
        tables = self._tables(X, clients, weight)
        l2 = alpha * (1.0 if weight is None else float(weight.mean()))
        fitted = self._train(
            self._family.problem, tables, y, l2=l2, target=public, shift=base,
            start=self._start(tables, np.array([base])), offset=tables.split(offset + base),
        )  # fmt: skip
        self._keep([fitted])
        self.n_iter_ = int(self.n_iter_[0])
        coef, intercept = tables.scale.to_rows(fitted.theta[None])
        self.coef_ = coef[0].astype(tables.dtype)
        self.intercept_ = tables.dtype.type(base + intercept[0])
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

    The same model as scikit-learn's `PoissonRegressor(alpha)` on the pooled rows, after standardisation unless
    that is switched off.

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

    For positive amounts, such as costs or durations, whose standard deviation grows with their mean. The same
    model as scikit-learn's `GammaRegressor(alpha)` on the pooled rows, after standardisation unless that is
    switched off.

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
