"""Logistic regression, binary or multinomial, federated."""

from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from scipy.special import expit, log_expit, log_softmax, softmax
from sklearn.base import ClassifierMixin
from sklearn.utils.class_weight import compute_class_weight
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from fedscaffold.core.checks import positive
from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.types import Array
from fedscaffold.problems import Logistic, Multinomial
from fedscaffold.sklearn.base import FLOATS, Federated


@dataclass(kw_only=True, eq=False, repr=False)
class FederatedLogisticRegression(ClassifierMixin, Federated):
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
    classes_
        Labels, sorted.
    coef_, intercept_
        w and b in the units of the rows: one row for two classes, one per class for more.
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
        gives those with other standard errors. Of more than two classes, each against the first.

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

    def fit(self, X: Any, y: Any, clients: Any = None, sample_weight: Any = None) -> Self:
        """Fit to rows X, labels y and the client that each row belongs to; losses count by `sample_weight`.

        Without `clients` all rows are one client's: then Scaffold is gradient descent, and `LogisticRegression` of
        scikit-learn gives the same model at once.
        """
        self._check_parameters()
        if self.C not in (np.inf,):
            positive("C", self.C)
        X, y = validate_data(self, X, y, dtype=FLOATS)
        dtype, X = X.dtype, X.astype(np.float64, copy=False)
        check_classification_targets(y)
        self.classes_, labels = np.unique(y, return_inverse=True)
        K = len(self.classes_)
        if K < 2:
            raise InvalidInput(f"y has one class only, {self.classes_[0]!r}; a classifier needs at least two")
        rows = self._clients(clients, len(X))
        kind, more = (Logistic, {}) if K == 2 else (Multinomial, {"n_classes": K})
        weight = self._weights(sample_weight, X)
        if self.class_weight is not None:
            classes = compute_class_weight(self.class_weight, classes=self.classes_, y=y, sample_weight=weight)
            weight = classes[labels] if weight is None else weight * classes[labels]
        theta, scale = self._fit(
            kind, X, labels.astype(np.float64), rows, l2=1.0 / (self.C * len(X)), sample_weight=weight, **more
        )
        theta = theta.reshape(1 if K == 2 else K, -1)
        coef = theta[:, : X.shape[1]] / scale.spread
        self.coef_ = coef.astype(dtype)
        self.intercept_ = (theta[:, X.shape[1] :].sum(axis=1) - coef @ scale.mean).astype(dtype)
        return self

    def decision_function(self, X: Any) -> Array:
        """Margins xᵀw + b of each row: (rows,) for two classes, (rows, classes) for more."""
        check_is_fitted(self)
        X = validate_data(self, X, dtype=FLOATS, reset=False)
        margins = X @ self.coef_.T + self.intercept_
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
