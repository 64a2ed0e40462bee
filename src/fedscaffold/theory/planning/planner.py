"""The planner: which step size, local steps and rounds reach a target."""

import sys
from collections.abc import Sequence
from typing import get_args, overload

import numpy as np
from numpy.typing import ArrayLike

from fedscaffold.core.capabilities import HasNoiseAlong, MarginLoss, SmoothProblem
from fedscaffold.core.checks import (
    check_problem,
    choice,
    not_negative,
    numbers,
    positive,
    suggest_names,
    whole_number,
)
from fedscaffold.core.display.progress import Progress, progress_bar
from fedscaffold.core.errors import InvalidInput, OutOfReach
from fedscaffold.core.random.batches import Batches, Sampling
from fedscaffold.core.types import Array
from fedscaffold.theory.bounds import complexity
from fedscaffold.theory.planning.first_order import first_order_plan
from fedscaffold.theory.planning.method_choice import MethodChoice, choose_method, parse_methods
from fedscaffold.theory.planning.plan import Mode, Plan
from fedscaffold.theory.planning.private.plans import PrivatePlan, PrivatePlans
from fedscaffold.theory.planning.private.search import private_plan
from fedscaffold.theory.planning.request import PlanRequest
from fedscaffold.theory.planning.sharp import sharp_plan
from fedscaffold.theory.problem_constants import constants
from fedscaffold.theory.supported import gives_averages

MOST_LOCAL_STEPS, MOST_ROUNDS = 1024, 2000
UNLIMITED = sys.maxsize
ROUND_COST, GRADIENT_COST = 100.0, 1.0
VANISHES = 1e-6  # of the clients' gradients at 0: what may be left of f's gradient at an optimum


@overload
def plan(
    problem: SmoothProblem,
    *,
    target_mse: float,
    batch_size: int | None,
    mode: Mode = "sharp",
    methods: None = None,
    max_local_steps: int | None = None,
    max_rounds: int | None = None,
    round_cost: float = ROUND_COST,
    gradient_cost: float = GRADIENT_COST,
    sampling: Sampling = "with_replacement",
    optimum: ArrayLike | None = None,
    progress: Progress = None,
) -> Plan: ...


@overload
def plan(
    problem: SmoothProblem,
    *,
    epsilon: float,
    delta: float,
    batch_size: int | None = None,
    max_local_steps: int | None = None,
    max_rounds: int | None = None,
    sampling: Sampling = "without_replacement",
) -> PrivatePlan: ...


@overload
def plan(
    problem: SmoothProblem,
    *,
    epsilon: Sequence[float],
    delta: float,
    batch_size: int | None = None,
    max_local_steps: int | None = None,
    max_rounds: int | None = None,
    sampling: Sampling = "without_replacement",
) -> PrivatePlans: ...


@overload
def plan(
    problem: SmoothProblem,
    *,
    target_mse: float,
    batch_size: int | None,
    mode: Mode = "sharp",
    methods: str | Sequence[str],
    max_local_steps: int | None = None,
    max_rounds: int | None = None,
    round_cost: float = ROUND_COST,
    gradient_cost: float = GRADIENT_COST,
    sampling: Sampling = "with_replacement",
    optimum: ArrayLike | None = None,
    progress: Progress = None,
) -> MethodChoice: ...


@suggest_names
def plan(
    problem: SmoothProblem,
    *,
    target_mse: float | None = None,
    batch_size: int | None = None,
    mode: Mode = "sharp",
    methods: str | Sequence[str] | None = None,
    max_local_steps: int | None = None,
    max_rounds: int | None = None,
    round_cost: float = ROUND_COST,
    gradient_cost: float = GRADIENT_COST,
    sampling: Sampling | None = None,
    optimum: ArrayLike | None = None,
    progress: Progress = None,
    epsilon: float | Sequence[float] | None = None,
    delta: float | None = None,
) -> Plan | MethodChoice | PrivatePlan | PrivatePlans:
    """Step size, local steps and rounds with which Scaffold brings E‖θ_T − θ*‖² from θ_0 = 0 down to a target.

    With `epsilon` and `delta` instead of a target: clip, noise, step size, local steps and rounds for the least
    predicted error under a privacy budget of every client's records.

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
        targets. "certified" follows Corollary 4.10 of the paper with the sharper constants of `theory.bounds`: it
        never misses, and costs more.
    methods
        If given, also choose the method: "all", or some of `theory.METHODS`. The answer is then a `MethodChoice`
        with a plan for each, cheapest first, and reasons. "scaffold_average" is the average of Scaffold's
        iterates, "scaffold_cohort" takes half of the clients in each round, "scaffold_momentum" has momentum on
        the server. A round costs round_cost for every two vectors that a client exchanges, on average.
    max_local_steps, max_rounds
        Limits on H (1,024 unless given) and T (2,000 unless given); certified plans have none unless given, plans
        under a privacy budget 64 and 100.
    round_cost, gradient_cost
        What a communication and a stochastic gradient cost; by default a communication costs a hundred gradients.
    sampling
        "with_replacement" or "without_replacement", within a batch; the second under a privacy budget, which
        knows no other.
    optimum
        θ*, where it is known already; otherwise Newton's method finds it.
    progress
        As in `fedscaffold.run`.
    epsilon, delta
        A privacy budget, as `fedscaffold.privacy.epsilon` counts it, instead of `target_mse`; several values of
        epsilon give a `PrivatePlans`, which draws what each would buy.

    Raises
    ------
    OutOfReach
        If the target is out of reach within the limits; the message says which one binds.

    Examples
    --------
    >>> import fedscaffold as fs
    >>> problem = fs.problems.RidgeStream(n_clients=6, dim=3)
    >>> plan = fs.plan(problem, target_mse=0.05, batch_size=10, mode="first_order")
    >>> plan.predicted_mse <= plan.target_mse
    True
    >>> trace = fs.run(problem, plan.method, rounds=plan.rounds, batch_size=10, engine="reference")
    >>> bool(trace.mse[0, -1] < 2 * plan.target_mse)
    True

    Which method of the family is cheapest:

    >>> names = ("scaffold", "fedavg")
    >>> chosen = fs.plan(problem, target_mse=0.05, batch_size=10, methods=names, max_local_steps=32)
    >>> chosen.best.predicted_mse <= 0.05
    True
    """
    check_problem(problem)
    if epsilon is not None:
        if target_mse is not None or methods is not None:
            raise InvalidInput(
                "epsilon cannot be combined with target_mse=... or methods=...: the plan has the least error that "
                "the budget allows"
            )
        return private_plan(
            problem, epsilon=epsilon, delta=delta, batch_size=batch_size, max_rounds=max_rounds,
            max_local_steps=max_local_steps, sampling=sampling or "without_replacement",
        )  # fmt: skip
    if delta is not None:
        raise InvalidInput("delta requires epsilon=...")
    sampling = "with_replacement" if sampling is None else sampling
    target_mse = positive("target_mse", target_mse)
    choice("mode", mode, get_args(Mode))
    names = None if methods is None else parse_methods(methods)
    if names is not None and mode != "sharp":
        raise InvalidInput("methods requires mode='sharp'")
    if max_local_steps is not None:
        max_local_steps = whole_number("max_local_steps", max_local_steps, least=1)
    if max_rounds is not None:
        max_rounds = whole_number("max_rounds", max_rounds, least=1)
    round_cost = not_negative("round_cost", round_cost)
    gradient_cost = not_negative("gradient_cost", gradient_cost)
    if gradient_cost + round_cost == 0:
        raise InvalidInput("round_cost and gradient_cost cannot both be 0")
    batches = Batches(batch_size, sampling)
    batches.check_fits(problem.sizes)
    _check_suits(problem, mode)
    endless = mode == "certified"
    request = PlanRequest(
        problem=problem,
        batches=batches,
        optimum=problem.optimum() if optimum is None else _checked(problem, optimum),
        target=target_mse,
        most_local_steps=max_local_steps or (UNLIMITED if endless else MOST_LOCAL_STEPS),
        most_rounds=max_rounds or (UNLIMITED if endless else MOST_ROUNDS),
        round_cost=round_cost,
        gradient_cost=gradient_cost,
    )
    if mode == "certified":
        return _certified(request)
    if mode == "first_order":
        return first_order_plan(request)
    with progress_bar("planning", progress) as advance:
        return sharp_plan(request, advance) if names is None else choose_method(request, names, advance)


def _check_suits(problem: SmoothProblem, mode: Mode) -> None:
    """Refuse a problem that lacks what this kind of plan needs."""
    if mode == "first_order" and not isinstance(problem, HasNoiseAlong):
        raise InvalidInput(f"first-order plans need Hessians and noise of the problem, which {problem.kind} lacks")
    if mode == "sharp" and not gives_averages(problem):
        raise InvalidInput(
            f"sharp plans need the gradients of single records, which {problem.kind} lacks; pass "
            "mode='first_order'"
        )
    if mode == "certified" and not isinstance(problem, MarginLoss):
        raise InvalidInput(
            "certified plans need constants that hold for all θ, known for ridge and logistic regression; of "
            f"{problem.kind} only those at θ* are known, which prove nothing; pass mode='sharp'"
        )


def _checked(problem: SmoothProblem, optimum: ArrayLike) -> Array:
    """An optimum that was given, refused where the gradient does not vanish."""
    try:
        theta = numbers(optimum)
    except (TypeError, ValueError) as error:
        raise InvalidInput(f"optimum must hold numbers: {error}") from None
    if theta.shape != (problem.dim,):
        raise InvalidInput(f"optimum must have shape ({problem.dim},), got {theta.shape}")
    cancelling = problem.weights @ np.linalg.norm(problem.client_gradients(np.zeros(problem.dim)), axis=1)
    left = float(np.linalg.norm(problem.weights @ problem.client_gradients(theta)))
    if not left <= VANISHES * cancelling:
        raise InvalidInput(f"optimum is not where the gradient vanishes: its norm there is {left:.3g}")
    return theta


def _certified(request: PlanRequest) -> Plan:
    """The plan of Corollary 4.10 with Theorem 4.9's constants."""
    problem, batches = request.problem, request.batches
    proved = complexity(
        constants(problem, batch_size=batches.size, sampling=batches.sampling),
        target=request.target,
        n_clients=problem.n_clients,
        squared_error=float(request.optimum @ request.optimum),
    )
    for name, needed, limit in (
        ("max_local_steps", proved.local_steps, request.most_local_steps),
        ("max_rounds", proved.rounds, request.most_rounds),
    ):
        if needed > limit:
            raise OutOfReach(
                f"the proof for a squared error of {request.target:g} needs {needed:,}, above {name}={limit!r}"
            )
    reached = {"predicted_mse": proved.bound.value, "max_useful_clients": float(proved.largest_n_clients)}
    return request.plan("certified", proved.step_size, proved.local_steps, proved.rounds, **reached)
