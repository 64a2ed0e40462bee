"""Fit models to tables with a client column: the result with its certificate and standard errors, and scores."""

from fedscaffold.data.open import open_problem
from fedscaffold.models.coding import Coding
from fedscaffold.models.fit import Fit, FitSettings, fit, load
from fedscaffold.models.metrics import concordance
from fedscaffold.models.model import Model

__all__ = ["Coding", "Fit", "FitSettings", "Model", "concordance", "fit", "load", "open_problem"]


def __dir__() -> list[str]:
    return __all__
