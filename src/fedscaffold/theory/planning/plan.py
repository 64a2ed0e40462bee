"""Which step size, local steps and rounds to use: the planner."""

import math
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike

from fedscaffold.core.checks import check_problem, not_negative, positive, whole_number
from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.progress import Progress, progress_bar
from fedscaffold.core.protocols import HasNoiseAlong, MarginLoss, SmoothProblem
from fedscaffold.core.random.batches import Batches, Sampling
from fedscaffold.core.types import Array
from fedscaffold.methods import Scaffold
from fedscaffold.theory import bounds
from fedscaffold.theory.constants.constants import constants
from fedscaffold.theory.planning.first_order import first_order
from fedscaffold.theory.planning.sharp import sharp
from fedscaffold.theory.supported import gives_averages, is_quadratic

Mode = Literal["sharp", "first_order", "certified"]
MOST_LOCAL_STEPS, MOST_ROUNDS = 1024, 2000
ROUND_COST, GRADIENT_COST = 100.0, 1.0
VANISHES = 1e-6  # of the clients' gradients at 0: what may be left of f's gradient at an optimum


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How to reach a target.

    Attributes
    ----------
    method
        Scaffold with its step size and local steps.
    rounds
        T.
    predicted_mse
        Expected squared error after the last round: predicted, or a proved upper bound (certified).
    max_useful_clients
        Beyond about this number more clients with the same step size and local steps do not help: there the part
        of the error that falls as 1/N meets the part that does not. Infinite where there is no such part; None
        for first-order plans, which do not tell.
    """

    mode: Mode
    target_mse: float
    method: Scaffold
    rounds: int
    predicted_mse: float
    n_clients: int
    max_useful_clients: float | None
    cost: float
    variance_part: float | None = None
    bias_part: float | None = None

    @property
    def gradients_per_client(self) -> int:
        """H·T."""
        return self.method.uniform_local_steps * self.rounds

    def explain(self) -> str:
        """The plan and its reasons, in words."""
        gamma, H = self.method.step_size, self.method.uniform_local_steps
        lines = [
            f"Run Scaffold with step_size={gamma:.4g}, local_steps={H}, for {self.rounds:,} rounds.",
            f"Each client computes {self.gradients_per_client:,} stochastic gradients and exchanges "
            f"{self.rounds * self.method.vectors_per_round:,} vectors.",
        ]
        if self.mode == "certified":
            lines += [
                f"Theorem 4.9 proves a squared error of at most {self.predicted_mse:.4g} "
                f"(target {self.target_mse:g}). Proofs allow for the worst: the sharp plan is far cheaper.",
                f"The linear speed-up is proved up to {self.max_useful_clients:,.0f} clients.",
            ]
            return "\n".join(lines)
        lines.append(
            f"Predicted squared error after the last round: {self.predicted_mse:.4g} (target {self.target_mse:g})."
        )
        if self.max_useful_clients is None:
            lines.append("This is a first-order model: it does not tell how many clients help.")
            return "\n".join(lines)
        if self.variance_part is not None and self.bias_part is not None:
            lines.append(
                f"Staying there, {self.variance_part:.3g} of it would be noise, which falls as 1/N, and "
                f"{self.bias_part:.3g} bias, which does not."
            )
        if math.isinf(self.max_useful_clients):
            lines.append("There is no bias: more clients help without end.")
        else:
            lines.append(
                f"More clients help up to about {self.max_useful_clients:,.0f}; there are {self.n_clients:,}."
            )
        lines.append(
            "A larger step size would leave too much noise, a smaller one would need more rounds; fewer local "
            "steps would need more rounds, more of them cost more gradients than they save rounds."
        )
        return "\n".join(lines)


def plan(
    problem: SmoothProblem,
    *,
    target_mse: float,
    batch_size: int | None,
    mode: Mode = "sharp",
    max_local_steps: int | None = None,
    max_rounds: int | None = None,
    round_cost: float = ROUND_COST,
    gradient_cost: float = GRADIENT_COST,
    sampling: Sampling = "with_replacement",
    optimum: ArrayLike | None = None,
    progress: Progress = None,
) -> Plan:
    """Step size, local steps and rounds that bring E‖θ_T − θ*‖² from θ_0 = 0 down to a target.

    Parameters
    ----------
    problem
        Ridge or logistic regression; for "sharp" and "first_order" also multinomial and `Differentiable`.
    target_mse
        The squared distance to the optimum to reach.
    batch_size
        Records in each stochastic gradient; None for full gradients.
    mode
        "sharp" minimises T (round_cost + H gradient_cost) by the predictor of `theory.predict`. "first_order" does
        so by a simpler model, which takes a fraction of a second and works with hundreds of features, for small
        targets. "certified" follows Corollary 4.10 of the paper with Theorem 4.9's explicit constants: it never
        misses, and costs far more.
    max_local_steps, max_rounds
        Limits on H (1,024 unless given) and T (2,000 unless given); certified plans have none unless given.
    round_cost, gradient_cost
        What a communication and a stochastic gradient cost; by default a communication costs a hundred gradients.
    sampling
        "with_replacement" or "without_replacement", within a batch.
    optimum
        θ*, where it is known already; otherwise Newton's method finds it.
    progress
        As in `fedscaffold.run`.

    Raises
    ------
    InvalidInput
        If the target is out of reach within the limits; the message says which one binds.
    """
    check_problem(problem)
    positive("target_mse", target_mse)
    if mode not in get_args(Mode):
        raise InvalidInput(f"mode must be one of {get_args(Mode)}, got {mode!r}")
    for name, limit in (("max_local_steps", max_local_steps), ("max_rounds", max_rounds)):
        if limit is not None:
            whole_number(name, limit, least=1)
    not_negative("round_cost", round_cost)
    if not_negative("gradient_cost", gradient_cost) + round_cost == 0:
        raise InvalidInput("round_cost and gradient_cost cannot both be 0")
    batches = Batches(batch_size, sampling)
    batches.check_fits(problem.sizes)
    if mode == "first_order" and not isinstance(problem, HasNoiseAlong):
        raise InvalidInput(f"first-order plans need Hessians and noise of the problem, which {problem.kind} lacks")
    _check_suits(problem, mode)
    theta = problem.optimum() if optimum is None else _checked(problem, optimum)
    if mode == "certified":
        limits = (max_local_steps, max_rounds)
        return _certified(problem, batches, theta, target_mse, limits, round_cost, gradient_cost)
    search: dict[str, Any] = {
        "optimum": theta,
        "target": target_mse,
        "most_local_steps": max_local_steps or MOST_LOCAL_STEPS,
        "most_rounds": max_rounds or MOST_ROUNDS,
        "round_cost": round_cost,
        "gradient_cost": gradient_cost,
    }
    if mode == "first_order" and isinstance(problem, HasNoiseAlong):
        return _first_order(problem, batches, search)
    with progress_bar("planning", progress) as advance:
        found = sharp(problem, batches, **search, advance=advance)
    floor = 0.0 if is_quadratic(problem) else max(found.plateau - found.variance_part, 0.0)
    return Plan(
        mode="sharp",
        target_mse=target_mse,
        method=Scaffold(step_size=found.step_size, local_steps=found.local_steps),
        rounds=found.rounds,
        predicted_mse=found.predicted_mse,
        n_clients=problem.n_clients,
        max_useful_clients=problem.n_clients * found.variance_part / floor if floor else math.inf,
        cost=found.rounds * (round_cost + found.local_steps * gradient_cost),
        variance_part=found.variance_part,
        bias_part=floor,
    )


def _check_suits(problem: SmoothProblem, mode: Mode) -> None:
    """Refuse a problem that this kind of plan knows too little about."""
    if mode == "sharp" and not gives_averages(problem):
        raise InvalidInput(
            f"sharp plans need the gradients of single records, which {problem.kind} lacks; use 'first_order'"
        )
    if mode == "certified" and not isinstance(problem, MarginLoss):
        raise InvalidInput(
            f"certified plans need constants that hold for all θ, known for ridge and logistic regression; of "
            f"{problem.kind} theory.constants knows at most those at θ*, which prove nothing. Use mode='sharp', "
            "or theory.bounds.complexity with constants that you can vouch for"
        )
    if mode == "certified" and np.ptp(problem.weights) > 1e-12 * problem.weights[0]:
        raise InvalidInput("the paper's theorems are for clients of equal weight; use mode='sharp'")


def _first_order(problem: HasNoiseAlong, batches: Batches, search: dict[str, Any]) -> Plan:
    """The quadratic model at θ* and Lemma 5.1's covariance."""
    found = first_order(problem, batches, **search)
    return Plan(
        mode="first_order",
        target_mse=search["target"],
        method=Scaffold(step_size=found.step_size, local_steps=found.local_steps),
        rounds=found.rounds,
        predicted_mse=found.predicted_mse,
        n_clients=problem.n_clients,
        max_useful_clients=None,
        cost=found.rounds * (search["round_cost"] + found.local_steps * search["gradient_cost"]),
        variance_part=found.variance_part,
    )


def _checked(problem: SmoothProblem, optimum: ArrayLike) -> Array:
    """An optimum that was given, refused where the gradient does not vanish."""
    theta = np.asarray(optimum, dtype=np.float64)
    if theta.shape != (problem.dim,):
        raise InvalidInput(f"optimum must have shape ({problem.dim},), got {theta.shape}")
    cancelling = problem.weights @ np.linalg.norm(problem.client_gradients(np.zeros(problem.dim)), axis=1)
    left = float(np.linalg.norm(problem.weights @ problem.client_gradients(theta)))
    if not left <= VANISHES * cancelling:
        raise InvalidInput(f"optimum is not where the gradient vanishes: its norm there is {left:.3g}")
    return theta


def _certified(
    problem: SmoothProblem,
    batches: Batches,
    optimum: Array,
    target: float,
    limits: tuple[int | None, int | None],
    round_cost: float,
    gradient_cost: float,
) -> Plan:
    """Corollary 4.10 with Theorem 4.9's constants."""
    proved = bounds.complexity(
        constants(problem, batch_size=batches.size, sampling=batches.sampling),
        target=target,
        n_clients=problem.n_clients,
        squared_error=float(optimum @ optimum),
    )
    for name, needed, limit in (
        ("max_local_steps", proved.local_steps, limits[0]),
        ("max_rounds", proved.rounds, limits[1]),
    ):
        if limit is not None and needed > limit:
            raise InvalidInput(f"the proof for target_mse={target:g} needs {needed:,}, above {name}={limit:,}")
    return Plan(
        mode="certified",
        target_mse=target,
        method=Scaffold(step_size=proved.step_size, local_steps=proved.local_steps),
        rounds=proved.rounds,
        predicted_mse=proved.bound.value,
        n_clients=problem.n_clients,
        max_useful_clients=float(proved.largest_n_clients),
        cost=proved.rounds * (round_cost + proved.local_steps * gradient_cost),
    )
