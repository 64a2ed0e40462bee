"""The federated estimators under the names, signatures and defaults of scikit-learn's.

Rows go to three clients by turns. Features are not standardised, since scikit-learn's are not. What chooses or
steers a solver of scikit-learn's has no counterpart and is ignored.
"""

import inspect
from typing import Any

import numpy as np
import sklearn.linear_model
from sklearn.utils.validation import _num_samples

from fedscaffold.sklearn import FederatedLogisticRegression, FederatedRidge

N_CLIENTS = 3
fits: list[str] = []  # names of the estimators that were fitted


def _with_signature_of(theirs: Any) -> Any:
    """Decorator that gives a federated estimator the constructor of another class."""
    signature = inspect.signature(theirs.__init__)

    def decorate(ours: Any) -> Any:
        federated = ours.__mro__[1]

        def __init__(self: Any, *args: Any, **options: Any) -> None:
            given = signature.bind(self, *args, **options)
            given.apply_defaults()
            federated.__init__(self, standardize=False, min_rows=1)
            for name, value in list(given.arguments.items())[1:]:
                setattr(self, name, value)

        __init__.__signature__ = signature  # type: ignore[attr-defined]
        ours.__init__, ours.__name__, ours.__qualname__ = __init__, theirs.__name__, theirs.__name__
        return ours

    return decorate


def _clients(X: Any) -> Any:
    """Three clients by turns; with fewer rows, as many."""
    return np.arange(_num_samples(X)) % N_CLIENTS


@_with_signature_of(sklearn.linear_model.Ridge)
class Ridge(FederatedRidge):
    """`FederatedRidge` in the place of `Ridge`."""

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Any:  # type: ignore[override]
        """Fit with three clients."""
        fits.append(type(self).__name__)
        self.solver_ = self.solver
        return super().fit(X, y, clients=_clients(X), sample_weight=sample_weight)


@_with_signature_of(sklearn.linear_model.LogisticRegression)
class LogisticRegression(FederatedLogisticRegression):
    """`FederatedLogisticRegression` in the place of `LogisticRegression`."""

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Any:  # type: ignore[override]
        """Fit with three clients."""
        fits.append(type(self).__name__)
        return super().fit(X, y, clients=_clients(X), sample_weight=sample_weight)
