"""What a plan is asked for: the target, the limits and the prices."""

from dataclasses import dataclass

from fedscaffold.core.types import Array


@dataclass(frozen=True, kw_only=True, eq=False)
class PlanRequest:
    """Reach E‖θ_T − θ*‖² ≤ target from θ_0 = 0 at the least cost, within limits on H and T."""

    optimum: Array  # θ*, (dim,)
    target: float
    most_local_steps: int
    most_rounds: int
    round_cost: float
    gradient_cost: float

    def cost(self, rounds: float, local_steps: int) -> float:
        """T (round_cost + H gradient_cost); a fraction of a round stands for fewer local steps in it."""
        return rounds * (self.round_cost + local_steps * self.gradient_cost)
