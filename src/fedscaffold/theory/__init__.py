"""What the paper and its refinements say about a run before it is run: constants, bounds, predictions, plans.

The paper is "Scaffold with Stochastic Gradients: New Analysis with Linear Speed-Up", Mangold, Durmus, Dieuleveut,
Moulines, ICML 2025.
"""

from fedscaffold.theory import bounds
from fedscaffold.theory.expansion import Expansion, expansion
from fedscaffold.theory.planning.method_choice import METHODS, MethodChoice, MethodPlan
from fedscaffold.theory.planning.plan import Plan
from fedscaffold.theory.planning.planner import plan
from fedscaffold.theory.planning.private.plans import PrivatePlan, PrivatePlans
from fedscaffold.theory.prediction.family.error_interval import error_interval
from fedscaffold.theory.prediction.iterate_average import (
    AveragePrediction,
    predict_average,
    scaffold_long_run_covariance,
)
from fedscaffold.theory.prediction.predict import predict, predict_at_scale
from fedscaffold.theory.prediction.prediction import Prediction
from fedscaffold.theory.prediction.reliability import Reliability
from fedscaffold.theory.problem_constants import Constants, constants

__all__ = [
    "METHODS",
    "AveragePrediction",
    "Constants",
    "Expansion",
    "MethodChoice",
    "MethodPlan",
    "Plan",
    "Prediction",
    "PrivatePlan",
    "PrivatePlans",
    "Reliability",
    "bounds",
    "constants",
    "error_interval",
    "expansion",
    "plan",
    "predict",
    "predict_at_scale",
    "predict_average",
    "scaffold_long_run_covariance",
]


def __dir__() -> list[str]:
    return __all__
