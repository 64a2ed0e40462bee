"""The sharp predictor as the planner uses it: plateau and curve of a problem for one step size after another."""

from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from fedscaffold.core.errors import InvalidInput, NoPlateau
from fedscaffold.core.protocols import Method
from fedscaffold.core.types import Array
from fedscaffold.methods import Scaffold
from fedscaffold.theory.planning.request import PlanRequest
from fedscaffold.theory.planning.stability import Stability
from fedscaffold.theory.prediction.curve import curve_parts
from fedscaffold.theory.prediction.moments.curve import small_curve
from fedscaffold.theory.prediction.moments.local_round import LocalRound
from fedscaffold.theory.prediction.moments.predict import is_small, small_round
from fedscaffold.theory.prediction.plateau import PlateauState
from fedscaffold.theory.prediction.predict import measured_prediction, predict_setting
from fedscaffold.theory.prediction.prediction import Prediction
from fedscaffold.theory.prediction.sampled.measure import CURVES_DIFFER, MUCH
from fedscaffold.theory.prediction.setting import Setting, setting
from fedscaffold.theory.prediction.stationary import solve_stationary

ROUGH = 1e-3  # of the interpolation over clients: finer ones take several times as long
TRIED, VERIFIED = 0.02, 0.003  # relative change of a plateau of ridge that ends its passes, in tries and at last


class Foreseen(NamedTuple):
    """Noise and squared bias of a plateau, and the error by round where it was asked for."""

    variance: float
    bias: float
    curve: Array | None


@dataclass(frozen=True, eq=False)
class CurveModel:
    """What does not depend on γ and H, computed once."""

    base: Setting
    stability: Stability | None  # None where losses are not quadratic
    rough: bool = False  # whether curves of small problems are those of large ones too, which take less time
    states: dict[tuple[float, int, float], PlateauState] = field(default_factory=dict)  # plateaus asked for
    curves: dict[tuple[float, int, float], tuple[Array, Array]] = field(default_factory=dict)  # and curves

    @classmethod
    def of(cls, request: PlanRequest, method: Method | None = None) -> "CurveModel":
        """The model of the problem of a request, for Scaffold unless another method is given."""
        method = method or Scaffold(step_size=1e-6, local_steps=1)
        base = setting(request.problem, method, request.batches, request.optimum)
        return cls(base, Stability.of(base))

    @property
    def exact(self) -> bool:
        """Whether curves follow every step of every client, which makes them right in the first rounds too."""
        return is_small(self.base) and not self.rough

    def at(self, gamma: float, H: int, settled: float = 0.0) -> Setting:
        """The setting with the step size γ and H local steps; of ridge with a plateau as rough as `settled`."""
        s = self.base.with_method(gamma, H)
        settled = max(s.settled, settled) if s.quadratic else s.settled
        return replace(s, settled=settled, tolerance=max(s.tolerance, ROUGH))

    def state(self, s: Setting) -> PlateauState:
        """The plateau of a setting of this model; what was found once is not computed again."""
        key = (s.gamma, s.H, s.settled)
        if key not in self.states:
            self.states[key] = solve_stationary(s)
        return self.states[key]

    def parts(self, gamma: float, H: int, rounds: int, settled: float = TRIED) -> tuple[Array, Array] | None:
        """‖E θ_t − θ*‖² and tr Cov θ_t for t = 0, ..., rounds; None where there is no contraction or one diverges.

        Local models are Gaussian here, also where `predict` follows third cumulants, which takes far longer.
        """
        s = self.at(gamma, H, settled)
        key = (gamma, H, 0.0 if self.exact else s.settled)
        if key not in self.curves or self.curves[key][0].size <= rounds:
            try:
                with np.errstate(over="ignore", invalid="ignore"):
                    self.curves[key] = self._parts(s, rounds)
            except InvalidInput:
                return None
        squares, variances = (part[: rounds + 1] for part in self.curves[key])
        sound = np.isfinite(squares + variances).all() and (variances >= 0.0).all()
        return (squares, variances) if sound else None

    def _parts(self, s: Setting, rounds: int) -> tuple[Array, Array]:
        if not self.exact:
            return curve_parts(s, self.state(s), rounds)
        return small_curve(s, small_round(s) if s.quadratic else LocalRound(s, skew=False), rounds)

    def predict(self, gamma: float, H: int, rounds: int | None = None) -> "Foreseen | None":
        """What `theory.predict` says: plateau, and curve of some rounds; None where there is no plateau."""
        s = self.at(gamma, H, VERIFIED)
        small = is_small(s)
        known = None if rounds is None or (small and not s.quadratic) else self.parts(gamma, H, rounds, VERIFIED)
        try:
            if small:
                wanted = rounds if known is None else None
                found = predict_setting(s, None) if wanted is None else self._verified(s, wanted)
                curve = found.curve if known is None else np.add(*known)
                return Foreseen(found.mse_variance_part, found.mse_bias_part, curve)
            state = self.state(s)
        except InvalidInput:
            return None
        curve = None if known is None else np.add(*known)
        return Foreseen(float(np.trace(state.cov_theta)), float(state.bias @ state.bias), curve)

    def _verified(self, s: Setting, rounds: int) -> Prediction:
        """What `theory.predict` says of a small problem; of a plan in no doubt, from its own rounds alone.

        `theory.predict` looks at more rounds before it decides whether to draw some, so that curves of all lengths
        agree. A plan is often of one round, and may be believed where third cumulants hardly change that.
        """
        try:
            found, plain = predict_setting(s, rounds), self.parts(s.gamma, s.H, rounds)
        except NoPlateau:
            return measured_prediction(s, rounds)
        assert found.curve is not None
        if plain is not None and found.reliability.neglected <= MUCH:
            curve = np.add(*plain)
            if (np.abs(curve - found.curve) <= CURVES_DIFFER * curve).all():
                return found
        return measured_prediction(s, rounds)

    def plateau_parts(self, gamma: float, H: int, copies: float) -> tuple[float, Array] | None:
        """Variance and bias, (d,), of the plateau with copies of each client, local models being Gaussian."""
        s = self.at(gamma, H)
        try:
            state = solve_stationary(replace(s, own=s.own / copies))
        except InvalidInput:
            return None
        return float(np.trace(state.cov_theta)), state.bias
