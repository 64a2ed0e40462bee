"""The sharp predictor as the planner uses it: plateau and curve of a problem for one step size after another."""

from dataclasses import dataclass

import numpy as np

from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.types import Array
from fedscaffold.methods import Scaffold
from fedscaffold.theory.planning.request import PlanRequest
from fedscaffold.theory.prediction.predict import predict_curve, predict_setting
from fedscaffold.theory.prediction.prediction import Prediction
from fedscaffold.theory.prediction.setting import Setting, setting


@dataclass(frozen=True, eq=False)
class CurveModel:
    """What does not depend on γ and H, computed once."""

    base: Setting

    @classmethod
    def of(cls, request: PlanRequest) -> "CurveModel":
        """The model of the problem of a request."""
        return cls(
            setting(request.problem, Scaffold(step_size=1e-6, local_steps=1), request.batches, request.optimum)
        )

    def at(self, gamma: float, H: int) -> Setting:
        """The setting with the step size γ and H local steps."""
        return self.base.with_method(gamma, H)

    def curve(self, gamma: float, H: int, rounds: int) -> Array | None:
        """E‖θ_t − θ*‖² for t = 0, ..., rounds; None where it does not contract or the mean diverges."""
        try:
            with np.errstate(over="ignore", invalid="ignore"):
                found = predict_curve(self.at(gamma, H), rounds)
        except InvalidInput:
            return None
        return found if np.isfinite(found).all() else None

    def predict(self, gamma: float, H: int, rounds: int | None = None) -> Prediction | None:
        """Plateau, and curve of some rounds; None where there is no plateau."""
        try:
            return predict_setting(self.at(gamma, H), rounds)
        except InvalidInput:
            return None
