"""From a table with a client column to a model: open the table, plan, run, compare, report, save."""

from fedscaffold.data.open import open_problem
from fedscaffold.models.compare import ModelComparison, ModelScore
from fedscaffold.models.fit import Fit, fit
from fedscaffold.models.model import Model
from fedscaffold.models.planning.planned import FitSettings
from fedscaffold.models.private import PrivateFit

__all__ = ["Fit", "FitSettings", "Model", "ModelComparison", "ModelScore", "PrivateFit", "fit", "open_problem"]


def __dir__() -> list[str]:
    return __all__
