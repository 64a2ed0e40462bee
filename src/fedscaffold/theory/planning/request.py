"""What a plan is asked for: the problem, the target, the limits and the prices; and the plan that answers."""

from dataclasses import dataclass
from typing import Any

from fedscaffold.core.capabilities import SmoothProblem
from fedscaffold.core.random.batches import Batches
from fedscaffold.core.types import Array
from fedscaffold.methods import Scaffold
from fedscaffold.theory.planning.plan import Mode, Plan


@dataclass(frozen=True, kw_only=True, eq=False)
class PlanRequest:
    """Reach E‖θ_T − θ*‖² ≤ target from θ_0 = 0 at the least cost, within limits on H and T."""

    problem: SmoothProblem
    batches: Batches
    optimum: Array  # θ*, (dim,)
    target: float
    most_local_steps: int
    most_rounds: int
    round_cost: float
    gradient_cost: float

    def cost(self, rounds: float, local_steps: int) -> float:
        """T (round_cost + H gradient_cost); a fraction of a round stands for fewer local steps in it."""
        return rounds * (self.round_cost + local_steps * self.gradient_cost)

    def plan(self, mode: Mode, step_size: float, local_steps: int, rounds: int, **known: Any) -> Plan:
        """The plan with γ, H and T, and what is known of the error that it reaches."""
        return Plan(
            mode=mode,
            target_mse=self.target,
            method=Scaffold(step_size=step_size, local_steps=local_steps),
            rounds=rounds,
            n_clients=self.problem.n_clients,
            cost=self.cost(rounds, local_steps),
            **known,
        )
