"""Estimators that follow scikit-learn's conventions, for rows that belong to clients."""

from fedscaffold.core.checks import suggest_names
from fedscaffold.core.imports import missing_extra

try:
    from fedscaffold.sklearn.classifier import FederatedLogisticRegression
    from fedscaffold.sklearn.log_link import FederatedGammaRegression, FederatedPoissonRegression
    from fedscaffold.sklearn.regressor import FederatedRidge
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

for _estimator in (
    FederatedGammaRegression, FederatedLogisticRegression, FederatedPoissonRegression, FederatedRidge,
):  # fmt: skip
    suggest_names(_estimator)


def __dir__() -> list[str]:
    return __all__
