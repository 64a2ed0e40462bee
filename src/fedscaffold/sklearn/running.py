"""From a problem to its coefficients: plan, run Scaffold, and close with sums over clients."""

import math
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from fedscaffold.core.checks import positive, whole_number
from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.random.stream import Batches
from fedscaffold.core.types import Array
from fedscaffold.inference import Closed, close, newton_step
from fedscaffold.inference.coordinates import slope_length
from fedscaffold.inference.diagnosis import refuse_undetermined
from fedscaffold.inference.per_client import MOST_COEFFICIENTS, closing_sums
from fedscaffold.methods import Scaffold
from fedscaffold.planning import Plan
from fedscaffold.planning.batches import (
    MAX_LOCAL_STEPS,
    MAX_ROUNDS,
    automatic_batch,
    candidate_batches,
    costs_in_seconds,
    fastest_plan,
    out_of_reach,
)
from fedscaffold.problems.newton import NoMinimiser
from fedscaffold.simulation import Mse
from fedscaffold.simulation.run_method import run
from fedscaffold.simulation.trace import Trace

CLOSING_STEPS = 2
CLOSING_ROUNDS = 2000  # most rounds of a plan when Newton steps follow
ROUGH = (0.05, 0.5)  # tolerances for which to plan where the one asked for is out of reach
ROUGH_ROUNDS, ROUGH_SECONDS = 1000, 10.0
SCALE = "pass standardize=True or scale the features first"
FAR, ROUNDING = 0.05, 1e-6  # of a standard error, and of the coefficients: a distance that is warned of


@dataclass(frozen=True, kw_only=True)
class RunSettings:
    """What an estimator was told about its run; "auto" is planned."""

    step_size: Any
    local_steps: Any
    rounds: Any
    batch_size: Any
    tolerance: float
    close: bool
    standardize: bool
    verbose: Any

    def __post_init__(self) -> None:
        positive("tolerance", self.tolerance)
        if self.step_size != "auto":
            positive("step_size", self.step_size)
        for name in ("local_steps", "rounds", "batch_size"):
            value = getattr(self, name)
            if value != "auto" and not (name == "batch_size" and value is None):
                whole_number(name, value, least=1)


class Planned(NamedTuple):
    """What will be run; `plan` is None where nothing was planned."""

    batch_size: int | None
    method: Scaffold
    rounds: int
    plan: Plan | None


@dataclass(frozen=True, kw_only=True, eq=False)
class Solution:
    """Coefficients θ of a problem, and how they were found.

    Attributes
    ----------
    theta
        After closing, (dim,).
    plan, trace
        The plan, None where nothing was planned, and the run.
    closed
        Closing sums at `theta`; None where there are too many coefficients for a Hessian.
    penalty
        Second derivatives of the penalty in units of the sums, (dim,).
    """

    theta: Array
    plan: Plan | None
    trace: Trace
    closed: Closed | None
    penalty: Array


def solve(
    problem: Any, settings: RunSettings, *, seed: int, names: tuple[str, ...], start: Array | None = None
) -> Solution:
    """Plan and run Scaffold on a problem, then take at most two Newton steps from sums over clients.

    Parameters
    ----------
    problem
        A regression on tables.
    settings
        What is given and what is to be planned.
    seed
        Of the rows that are drawn.
    names
        Of the features, for messages.
    start
        θ to start from, (dim,); 0 by default. Control variates then begin with the clients' gradients there.
    """
    penalty = problem.n_records * problem.penalty
    try:
        optimum = problem.optimum()
    except NoMinimiser as error:
        if problem.dim <= MOST_COEFFICIENTS:
            refuse_undetermined(closing_sums(problem, error.theta, scores=False), penalty, names)
        raise
    closes = settings.close and problem.dim <= MOST_COEFFICIENTS
    batch_size, method, rounds, plan = plan_run(problem, optimum, settings, closes=closes)
    begin: dict[str, Any] = {}
    if start is not None:
        gradients = problem.client_gradients(start)
        begin = {"theta0": start, "control_variates0": problem.weights @ gradients - gradients}
        if plan is not None and settings.rounds == "auto":
            rounds = rounds_from(start, optimum, plan)
    trace = run(
        problem, method, rounds=rounds, batch_size=batch_size, seed=seed, record=(Mse(optimum),),
        progress=bool(settings.verbose), **begin,
    )  # fmt: skip
    theta, closed = trace.theta[0], None
    if problem.dim <= MOST_COEFFICIENTS:
        closed = close(problem, theta, max_steps=CLOSING_STEPS if settings.close else 0, names=names)
        theta = closed.theta
    return Solution(theta=theta, plan=plan, trace=trace, closed=closed, penalty=penalty)


def plan_run(problem: Any, optimum: Array, settings: RunSettings, *, closes: bool) -> Planned:
    """Method, rounds and batch size for the tolerance; what is given replaces the plan's.

    Where no plan reaches the tolerance, it is refused, unless Newton steps follow: then a coarser one is planned,
    and where that is out of reach too, gradient descent for about a thousand rounds.
    """
    automatic = settings.batch_size == "auto"
    usual = automatic_batch(problem.sizes) if automatic else settings.batch_size
    given = {"step_size": settings.step_size, "local_steps": settings.local_steps}
    given = {name: value for name, value in given.items() if value != "auto"}

    def planned(batch_size: int | None, plan: Plan | None, rounds: int) -> Planned:
        if plan is not None:
            method = plan.method
        elif len(given) == 2:
            method = Scaffold(**given)
        else:  # with 1/L gradient descent does not diverge
            method = Scaffold(step_size=1.0 / problem.smoothness(Batches(batch_size)), local_steps=1)
        chosen = rounds if settings.rounds == "auto" else settings.rounds
        return Planned(batch_size, replace(method, **given), chosen, plan)

    if len(given) == 2 and settings.rounds != "auto":
        return planned(usual, None, settings.rounds)
    length = slope_length(problem, optimum)
    if length == 0.0 or float(optimum @ optimum) <= (settings.tolerance * length) ** 2:
        return planned(usual, None, 1)
    sizes = candidate_batches(problem.sizes) if automatic else [usual]
    most = CLOSING_ROUNDS if closes else MAX_ROUNDS
    for aim in [settings.tolerance, *(aim for aim in ROUGH if aim > settings.tolerance)]:
        goal: dict[str, Any] = {"optimum": optimum, "target_mse": (aim * length) ** 2, "max_rounds": most}
        try:
            _refuse_hopeless(problem, **goal)
            found = fastest_plan(problem, sizes, **goal)
        except InvalidInput as error:
            if not closes:
                refusal = out_of_reach(error, settings.tolerance)
                raise InvalidInput(f"{refusal}{'' if settings.standardize else f', or {SCALE}'}") from None
            continue
        return planned(found.batch_size, found.plan, found.plan.rounds)
    cost = costs_in_seconds(problem, usual)["gradient_cost"]
    return planned(usual, None, int(np.clip(ROUGH_SECONDS / cost, 10, ROUGH_ROUNDS)))


def _refuse_hopeless(problem: Any, optimum: Array, target_mse: float, max_rounds: int) -> None:
    """Refuse a target at once that all steps of the longest plan would miss if clients were alike.

    In the quadratic model at θ*. Differences between clients slow Scaffold down, so planning would be in vain.
    """
    lam, U = np.linalg.eigh(problem.hessian(optimum))
    left = np.clip(1.0 - lam / problem.smoothness(Batches(None)), 0.0, 1.0) ** (max_rounds * MAX_LOCAL_STEPS)
    if np.sum((left * (U.T @ optimum)) ** 2) > target_mse:
        raise InvalidInput(
            f"a squared error of {target_mse:g} is out of reach within {MAX_LOCAL_STEPS:,} local steps a round "
            f"and {max_rounds:,} rounds"
        )


def rounds_from(start: Array, optimum: Array, plan: Plan) -> int:
    """Rounds from another θ than 0, with the plan's mean rate of convergence."""
    ahead = float(np.sum((start - optimum) ** 2))
    assert plan.target_mse is not None  # as it is a plan for a target
    if ahead <= plan.target_mse:
        return 1
    share = math.log(ahead / plan.target_mse) / math.log(float(optimum @ optimum) / plan.target_mse)
    return max(1, math.ceil(share * plan.rounds))


def far_from_optimum(solution: Solution, settings: RunSettings, names: tuple[str, ...]) -> str | None:
    """Return a warning if Newton steps ended too far from the optimum by the closing sums; else None."""
    closed = solution.closed
    if closed is None or not settings.close or closed.distance <= FAR:
        return None
    left = newton_step(closed.sums, solution.penalty, names).step
    if np.linalg.norm(left) <= ROUNDING * np.linalg.norm(closed.theta):
        return None
    advice = "pass a larger penalty l2=..."
    if settings.rounds != "auto":
        advice = "pass more rounds=..."
    elif not settings.standardize:
        advice = f"{SCALE}, or {advice}"
    return (
        f"coefficients are about {closed.distance:.2g} standard errors away from the optimum, after "
        f"{solution.trace.rounds:,} rounds and {closed.steps} Newton steps; {advice}"
    )
