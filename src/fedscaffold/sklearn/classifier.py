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
    """Logistic regression: the minimum of C Σ loss(y, xᵀw + b) + ½ ‖w‖² over all clients' rows.

    The same model as scikit-learn's `LogisticRegression(C)` on the pooled rows, after standardisation unless that is
    switched off: logistic for two classes, multinomial for more.

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

    _names: ClassVar[dict[str, str]] = {"l2": "1/C"}

    def fit(self, X: Any, y: Any, clients: Any = None, sample_weight: Any = None) -> Self:
        """Fit to rows X, labels y and the client that each row belongs to; losses count by `sample_weight`.

        X may be sparse, and is then made dense. Without `clients` all rows belong to one client.
        """
        budget = self._check_budget(sample_weight=sample_weight, class_weight=self.class_weight)
        self._check_settings()
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
        kind, more = _problem(K)
        start, l2 = self._start(tables, np.zeros(1 if K == 2 else K)), 1.0 / (self.C * len(y))
        fitted = self._train(
            kind, tables, labels.astype(np.float64), l2=l2, start=None if start is None else start.ravel(),
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

    def _fit_within(self, budget: PrivacySettings, classes: Any, X: Any, y: Any, clients: Any) -> Self:
        """Fit under a privacy budget to classes that were known before."""
        if not np.isin(y, classes).all():
            raise InvalidInput("y has classes that target_bounds lacks")
        K = len(classes)
        kind, more = _problem(K)
        self.classes_, labels = classes, np.searchsorted(classes, y).astype(np.float64)
        coef, intercept = self._solve_privately(
            kind, PublicTarget(kind="logistic", n_classes=K), X, labels, clients, budget,
            l2=1.0 / (self.C * len(y)), **more,
        )  # fmt: skip
        self.coef_, self.intercept_ = coef.astype(X.dtype), intercept.astype(X.dtype)
        return self

    def _row_weights(self, sample_weight: Any, X: Any, y: Any, labels: Any) -> Array | None:
        """Return weights of the rows times those of their classes; None for weights of one."""
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
        """Return margins xᵀw + b of each row: (rows,) for two classes, (rows, classes) for more."""
        margins = self._margins(X)
        return margins[:, 0] if len(self.classes_) == 2 else margins

    def predict_proba(self, X: Any) -> Array:
        """Return probabilities of the classes for each row, (rows, classes)."""
        margins = self.decision_function(X)
        if margins.ndim == 1:
            second = expit(margins)
            return np.column_stack([1.0 - second, second])
        return softmax(margins, axis=1)

    def predict_log_proba(self, X: Any) -> Array:
        """Return logarithms of the probabilities of the classes for each row, (rows, classes)."""
        margins = self.decision_function(X)
        if margins.ndim == 1:
            return np.column_stack([log_expit(-margins), log_expit(margins)])
        return log_softmax(margins, axis=1)

    def predict(self, X: Any) -> Any:
        """Return the most probable label of each row, (rows,)."""
        margins = self.decision_function(X)
        return self.classes_[(margins > 0).astype(np.int64) if margins.ndim == 1 else margins.argmax(axis=1)]

    def sparsify(self) -> Self:
        """Keep `coef_` as a sparse matrix, which saves memory if most of it is zero."""
        check_is_fitted(self)
        self.coef_ = sparse.csr_matrix(self.coef_)
        return self

    def densify(self) -> Self:
        """Keep `coef_` as an array again."""
        check_is_fitted(self)
        if sparse.issparse(self.coef_):
            self.coef_ = self.coef_.toarray()
        return self


def _problem(n_classes: int) -> tuple[Any, dict[str, int]]:
    """Return the problem for a number of classes, and its options."""
    return (Logistic, {}) if n_classes == 2 else (Multinomial, {"n_classes": n_classes})


def _public_classes(bounds: Any) -> Any:
    """Return the public classes, sorted."""
    classes = np.unique(np.asarray(bounds))
    if np.ndim(bounds) != 1 or not 2 <= classes.size == len(bounds):
        raise InvalidInput("target_bounds must be the classes of y, two or more different ones")
    return classes
