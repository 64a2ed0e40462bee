"""Logistic regression, binary or multinomial, federated."""

from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
from scipy import sparse
from scipy.special import expit, log_expit, log_softmax, softmax
from sklearn.base import ClassifierMixin
from sklearn.utils.class_weight import compute_class_weight
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from fedscaffold.core.checks import positive
from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.types import Array
from fedscaffold.data.public import PublicTarget
from fedscaffold.privacy.settings import PrivacySettings
from fedscaffold.problems import Logistic, Multinomial
from fedscaffold.sklearn.base import FLOATS
from fedscaffold.sklearn.private import PrivateFederated


@dataclass(kw_only=True, eq=False, repr=False)
class FederatedLogisticRegression(ClassifierMixin, PrivateFederated):
    """Minimises C Σ loss(y, xᵀw + b) + ½ ‖w‖² over all clients' rows with Scaffold.

    The same objective as scikit-learn's `LogisticRegression(C)` on the pooled rows, after standardisation unless
    that is switched off: logistic for two classes, multinomial for more. Fitted by simulating Scaffold among the
    clients.

    Parameters
    ----------
    C
        Inverse strength of the penalty on w; infinity for none.
    class_weight
        None, "balanced" for weights n / (K · rows of the class), or a dictionary from label to weight; they
        multiply `sample_weight`.
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
    classes_
        Labels, sorted.
    coef_, intercept_
        w and b in the units of the rows: one row for two classes, one per class for more.
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

    _names: ClassVar[dict[str, str]] = {"l2": "1/C"}

    def fit(self, X: Any, y: Any, clients: Any = None, sample_weight: Any = None) -> Self:
        """Fit to rows X, labels y and the client that each row belongs to; losses count by `sample_weight`.

        X may be sparse, and is then made dense. Without `clients` all rows are one client's: then Scaffold is
        gradient descent, and `LogisticRegression` of scikit-learn gives the same model at once.
        """
        budget = self._check_budget(sample_weight=sample_weight, class_weight=self.class_weight)
        self._settings()
        if self.C not in (np.inf,):
            positive("C", self.C)
        classes = None if budget is None else _public_classes(self.target_bounds)
        X, y = validate_data(self, X, y, accept_sparse="csr", dtype=FLOATS)
        check_classification_targets(y)
        if budget is not None and classes is not None:
            return self._fit_within(budget, classes, X, y, clients)
        self.classes_, labels = np.unique(y, return_inverse=True)
        K = len(self.classes_)
        if K < 2:
            raise InvalidInput(f"y has one class only, {self.classes_[0]!r}; a classifier needs at least two")
        tables = self._tables(X, clients, self._row_weights(sample_weight, X, y, labels))
        kind, more = (Logistic, {}) if K == 2 else (Multinomial, {"n_classes": K})
        vectors = 1 if K == 2 else K
        start, l2 = self._start(tables, vectors), 1.0 / (self.C * len(y))
        solution = self._solve(kind, tables, labels.astype(np.float64), l2=l2, start=start, **more)
        self._keep([solution], [self._own_coordinates(tables, classes=list(self.classes_) if K > 2 else None)])
        theta = solution.theta.reshape(vectors, -1)
        if K > 2:  # the same model, and no larger penalty: what classes have in common is rounding
            theta = theta - theta.mean(axis=0)
        coef, intercept = tables.scale.to_rows(theta)
        self.coef_: Any = coef.astype(tables.dtype)
        self.intercept_ = intercept.astype(tables.dtype)
        return self

    def _fit_within(self, budget: PrivacySettings, classes: Any, X: Any, y: Any, clients: Any) -> Self:
        """Fit under a privacy budget to classes that were known before."""
        if not np.isin(y, classes).all():
            raise InvalidInput("y has classes that target_bounds lacks")
        K = len(classes)
        kind, more = (Logistic, {}) if K == 2 else (Multinomial, {"n_classes": K})
        self.classes_, labels = classes, np.searchsorted(classes, y).astype(np.float64)
        coef, intercept = self._solve_privately(
            kind, PublicTarget(kind="logistic", n_classes=K), X, labels, clients, budget,
            l2=1.0 / (self.C * len(y)), **more,
        )  # fmt: skip
        self.coef_, self.intercept_ = coef.astype(X.dtype), intercept.astype(X.dtype)
        return self

    def _row_weights(self, sample_weight: Any, X: Any, y: Any, labels: Any) -> Array | None:
        """Weights of the rows times those of their classes; None for weights of one."""
        weight = self._weights(sample_weight, X)
        if self.class_weight is not None:
            classes = compute_class_weight(self.class_weight, classes=self.classes_, y=y, sample_weight=weight)
            weight = np.asarray(classes[labels] if weight is None else weight * classes[labels])
        if weight is not None:
            empty = np.flatnonzero(np.bincount(labels, weights=weight) == 0.0)
            if empty.size:
                raise InvalidInput(
                    f"no row of class {self.classes_[empty[0]]!r} has a positive weight; leave out the rows of "
                    "such classes"
                )
        return weight

    def decision_function(self, X: Any) -> Array:
        """Margins xᵀw + b of each row: (rows,) for two classes, (rows, classes) for more."""
        margins = self._margins(X)
        return margins[:, 0] if len(self.classes_) == 2 else margins

    def predict_proba(self, X: Any) -> Array:
        """Probabilities of the classes for each row, (rows, classes)."""
        margins = self.decision_function(X)
        if margins.ndim == 1:
            second = expit(margins)
            return np.column_stack([1.0 - second, second])
        return softmax(margins, axis=1)

    def predict_log_proba(self, X: Any) -> Array:
        """Logarithms of the probabilities of the classes for each row, (rows, classes)."""
        margins = self.decision_function(X)
        if margins.ndim == 1:
            return np.column_stack([log_expit(-margins), log_expit(margins)])
        return log_softmax(margins, axis=1)

    def predict(self, X: Any) -> Any:
        """The most probable label of each row, (rows,)."""
        margins = self.decision_function(X)
        return self.classes_[(margins > 0).astype(np.int64) if margins.ndim == 1 else margins.argmax(axis=1)]

    def sparsify(self) -> Self:
        """Keep `coef_` as a sparse matrix, which saves memory where most of it is zero."""
        check_is_fitted(self)
        self.coef_ = sparse.csr_matrix(self.coef_)
        return self

    def densify(self) -> Self:
        """Keep `coef_` as an array again."""
        check_is_fitted(self)
        if sparse.issparse(self.coef_):
            self.coef_ = self.coef_.toarray()
        return self


def _public_classes(bounds: Any) -> Any:
    """Public classes, sorted."""
    classes = np.unique(np.asarray(bounds))
    if np.ndim(bounds) != 1 or not 2 <= classes.size == len(bounds):
        raise InvalidInput("target_bounds must be the classes of y, two or more different ones")
    return classes
