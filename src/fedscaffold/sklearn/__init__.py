"""Estimators that follow scikit-learn's conventions, for rows that belong to clients."""

from fedscaffold.core.checks import suggest_names
from fedscaffold.core.imports import missing_extra

try:
    from fedscaffold.sklearn.estimators import (
        FederatedGammaRegression,
        FederatedLogisticRegression,
        FederatedPoissonRegression,
        FederatedRidge,
    )
except ModuleNotFoundError as error:
    if error.name is None or not error.name.startswith("sklearn"):
        raise
    raise missing_extra("these estimators need scikit-learn", extra="sklearn") from error

__all__ = [
    "FederatedGammaRegression",
    "FederatedLogisticRegression",
    "FederatedPoissonRegression",
    "FederatedRidge",
]

for _name in __all__:
    suggest_names(globals()[_name])


def __dir__() -> list[str]:
    return __all__
