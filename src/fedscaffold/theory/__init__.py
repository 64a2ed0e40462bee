"""The paper and its refinements as functions: constants, bounds, expansions, exact laws, predictions, plans.

The paper is "Scaffold with Stochastic Gradients: New Analysis with Linear Speed-Up", Mangold, Durmus, Dieuleveut,
Moulines, ICML 2025.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from fedscaffold.theory import bounds
from fedscaffold.theory.exact.law import error_interval
from fedscaffold.theory.expansion import Expansion, expansion
from fedscaffold.theory.iterate_average import (
    AveragePrediction,
    predict_average,
    scaffold_long_run_covariance,
)
from fedscaffold.theory.problem_constants import Constants, constants

if TYPE_CHECKING:
    from fedscaffold.planning import METHODS, Plan, Plans, Prediction, plan, predict

__all__ = [
    "METHODS",
    "AveragePrediction",
    "Constants",
    "Expansion",
    "Plan",
    "Plans",
    "Prediction",
    "bounds",
    "constants",
    "error_interval",
    "expansion",
    "plan",
    "predict",
    "predict_average",
    "scaffold_long_run_covariance",
]


def __getattr__(name: str) -> Any:
    """Load a name of planning, the room above, when it is first used: theory does not know the simulator."""
    if name in ("METHODS", "Plan", "Plans", "Prediction", "plan", "predict"):
        found = globals()[name] = getattr(import_module("fedscaffold.planning"), name)
        return found
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
