"""The planner: the cheapest step size, local steps, rounds and method that reach a target, or spend a budget."""

import math
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal, get_args, overload

import numpy as np
from numpy.typing import ArrayLike

from fedscaffold.core.capabilities import GeneralisedLinear, HasNoiseAlong, MarginLoss
from fedscaffold.core.checks import check_problem, choice, not_negative, positive, suggest_names, whole_number
from fedscaffold.core.display import Advance, Progress, progress_bar
from fedscaffold.core.errors import InvalidInput, MissingDependency, OutOfReach
from fedscaffold.core.machine import one_blas_thread
from fedscaffold.core.protocols import Method, Problem
from fedscaffold.core.random.stream import Batches, Sampling
from fedscaffold.core.types import Array
from fedscaffold.methods import FedAvg, FedLin, ProxSkip, Scaffold, ServerOptimizer, TwoSidedScaffold
from fedscaffold.planning.first_order import FirstOrderModel
from fedscaffold.planning.plans import Plan, Plans
from fedscaffold.planning.prediction import optimum_of
from fedscaffold.planning.search import Make, Outcome, PrivateSearch, Request, Verified
from fedscaffold.theory.bounds import complexity
from fedscaffold.theory.exact.quadratic import is_quadratic
from fedscaffold.theory.expansion import first_order_law
from fedscaffold.theory.problem_constants import constants

ROUND_COST, GRADIENT_COST = 100.0, 1.0
Aim = Literal["sharp", "first_order", "certified"]


def with_momentum(momentum: float, learning_rate: float) -> Make:
    """Return a maker of Scaffold with momentum on the server."""
    return lambda gamma, H: ServerOptimizer(
        method=Scaffold(step_size=gamma, local_steps=H), optimizer="sgd", learning_rate=learning_rate,
        options={"momentum": momentum},
    )  # fmt: skip


# methods by name; settings besides γ and H are tried in turn
VARIANTS: dict[str, tuple[Make, ...]] = {
    "scaffold": (lambda gamma, H: Scaffold(step_size=gamma, local_steps=H),),
    "scaffold_average": (lambda gamma, H: Scaffold(step_size=gamma, local_steps=H),),
    "scaffold_cohort": (lambda gamma, H: Scaffold(step_size=gamma, local_steps=H, participation=0.5),),
    "scaffold_momentum": (with_momentum(0.5, 1.0), with_momentum(0.9, 0.5)),
    "fedavg": (lambda gamma, H: FedAvg(step_size=gamma, local_steps=H),),
    "two_sided": (lambda gamma, H: TwoSidedScaffold(step_size=gamma, local_steps=H, server_step_size=1.0),),
    "proxskip": (lambda gamma, H: ProxSkip(step_size=gamma, communication_probability=1.0 / H),),
    "fedlin": (lambda gamma, H: FedLin(step_size=gamma, local_steps=H),),
    "fedlin_minibatch": (
        lambda gamma, H: FedLin(step_size=gamma, local_steps=H, correction_gradients="minibatch"),
    ),
}
METHODS = tuple(VARIANTS)


@overload
def plan(
    problem: Problem, *, target_mse: float | None = None, batch_size: int | None = None, mode: Aim = "sharp",
    methods: str | Sequence[str] | None = None, max_local_steps: int | None = None, max_rounds: int | None = None,
    round_cost: float = ROUND_COST, gradient_cost: float = GRADIENT_COST, sampling: Sampling | None = None,
    optimum: ArrayLike | None = None, progress: Progress = None, epsilon: float | None = None,
    delta: float | None = None,
) -> Plan: ...  # fmt: skip


@overload
def plan(
    problem: Problem, *, epsilon: Sequence[float], delta: float, batch_size: int | None = None,
    max_local_steps: int | None = None, max_rounds: int | None = None, sampling: Sampling | None = None,
    optimum: ArrayLike | None = None, progress: Progress = None,
) -> Plans: ...  # fmt: skip


@suggest_names
def plan(
    problem: Problem,
    *,
    target_mse: float | None = None,
    batch_size: int | None = None,
    mode: Aim = "sharp",
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
) -> Plan | Plans:
    """Plan the step size, local steps and rounds with which E‖θ_T − θ*‖² falls from θ_0 = 0 to a target.

    The first-order law and the price of a round propose settings, short simulations adjust them by halving and
    doubling, and a prediction verifies the best: exact for quadratic losses, otherwise measured. With `epsilon`
    and `delta` instead of a target, the same search finds the clip, noise, step size, local steps and rounds of
    the least error under a privacy budget of every client's records.

    Parameters
    ----------
    problem
        Any problem that `fedscaffold.run` takes and whose optimum is known. "first_order" needs Hessians,
        "certified" ridge or logistic regression, a privacy budget a table.
    target_mse
        The squared distance to the optimum to reach.
    batch_size
        Records in each stochastic gradient; None for full gradients.
    mode
        "sharp" as above. "first_order" takes the proposal as it is, which needs no runs. "certified" follows
        Corollary 4.10 of the paper with the sharper constants of `theory.bounds`: it never misses, and costs more.
    methods
        Also choose the method: "all", or some of `theory.METHODS`; by default Scaffold. The plan is that of the
        cheapest; the others are its `alternatives`. "scaffold_average" is the average of Scaffold's iterates,
        "scaffold_cohort" takes half of the clients in each round, "scaffold_momentum" has momentum on the server.
    max_local_steps, max_rounds
        Limits on H (1,024 by default) and T (2,000 by default); none by default for certified plans, 64 and 100
        under a privacy budget.
    round_cost, gradient_cost
        Cost of a communication, for every two vectors that a client exchanges, and of a stochastic gradient.
    sampling
        "with_replacement" (default) or "without_replacement" (default under a privacy budget), within a batch.
    optimum
        θ* if it is known already; by default the problem finds it.
    progress
        As in `fedscaffold.run`.
    epsilon, delta
        A privacy budget, as `fedscaffold.privacy.epsilon` counts it; several values of epsilon give `Plans`.

    Returns
    -------
    Plan or Plans
        The cheapest plan, or one for each value of epsilon.

    Raises
    ------
    OutOfReach
        If the target is out of reach within the limits; the message names the limit that binds.
    InvalidInput
        If an argument cannot be used, or θ = 0 is within the target already.

    Examples
    --------
    >>> import fedscaffold as fs
    >>> problem = fs.problems.RidgeStream(n_clients=6, dim=3)
    >>> plan = fs.plan(problem, target_mse=0.05, batch_size=10)
    >>> trace = fs.run(problem, plan.method, rounds=plan.rounds, batch_size=10, repetitions=100)
    >>> bool(trace.mse[:, -1].mean() < 1.1 * plan.target_mse)
    True

    The cheapest of two methods:

    >>> chosen = fs.plan(problem, target_mse=0.05, batch_size=10, methods=("scaffold", "fedavg"))
    >>> all(chosen.cost <= other.cost for other in chosen.alternatives)
    True
    """
    check_problem(problem)
    if epsilon is not None:
        if target_mse is not None or methods is not None:
            raise InvalidInput(
                "epsilon cannot be combined with target_mse=... or methods=...: the plan has the least error that "
                "the budget allows"
            )
        batches = Batches(batch_size, "without_replacement" if sampling is None else sampling)
        most = _limit("max_local_steps", max_local_steps, 64), _limit("max_rounds", max_rounds, 100)
        with progress_bar("planning", progress) as advance:
            return _private(problem, batches, epsilon, delta, most, optimum, advance)
    if delta is not None:
        raise InvalidInput("delta requires epsilon=...")
    choice("mode", mode, get_args(Aim))
    names = METHODS if methods == "all" else (methods,) if isinstance(methods, str) else methods or ("scaffold",)
    for name in names:
        choice("methods", name, METHODS)
    if methods is not None and (mode != "sharp" or not len(methods)):
        raise InvalidInput("methods requires mode='sharp' and at least one method, or 'all'")
    endless = mode == "certified"
    request = Request(
        problem=problem, batches=Batches(batch_size, "with_replacement" if sampling is None else sampling),
        optimum=np.zeros(0), target=positive("target_mse", target_mse),
        most_local_steps=_limit("max_local_steps", max_local_steps, sys.maxsize if endless else 1024),
        most_rounds=_limit("max_rounds", max_rounds, sys.maxsize if endless else 2000),
        round_cost=not_negative("round_cost", round_cost),
        gradient_cost=not_negative("gradient_cost", gradient_cost),
    )  # fmt: skip
    if request.round_cost + request.gradient_cost == 0:
        raise InvalidInput("round_cost and gradient_cost cannot both be 0")
    request.batches.check_fits(problem.sizes)
    if mode == "first_order" and not isinstance(problem, HasNoiseAlong):
        raise InvalidInput(f"first-order plans need Hessians and noise of the problem, which {problem.kind} lacks")
    if mode == "certified" and not isinstance(problem, MarginLoss):
        raise InvalidInput(
            "certified plans need constants that hold for all θ, known for ridge and logistic regression; of "
            f"{problem.kind} only those at θ* are known, which prove nothing; pass mode='sharp'"
        )
    request = replace(request, optimum=_checked(problem, optimum))
    if mode == "certified":
        return _certified(request)
    if mode == "first_order":
        return _first_order(request)
    with progress_bar("planning", progress) as advance:
        return _sharp(request, names, advance)


def _limit(name: str, given: int | None, default: int) -> int:
    return default if given is None else whole_number(name, given, least=1)


def _checked(problem: Any, optimum: ArrayLike | None) -> Array:
    """Return θ*; reject a given one at which the gradient does not vanish."""
    theta = optimum_of(problem, optimum)
    if optimum is not None and hasattr(problem, "client_gradients"):
        start = problem.client_gradients(np.zeros(problem.dim))
        left = float(np.linalg.norm(problem.weights @ problem.client_gradients(theta)))
        if not left <= 1e-6 * problem.weights @ np.linalg.norm(start, axis=1):
            raise InvalidInput(f"optimum is not where the gradient vanishes: its norm there is {left:.3g}")
    return theta


def _plan(request: Request, mode: Aim, method: Method, rounds: int, **known: Any) -> Plan:
    return Plan(
        mode=mode, target_mse=request.target, method=method, rounds=rounds, batch_size=request.batches.size,
        sampling=request.batches.sampling, n_clients=request.problem.n_clients,
        cost=rounds * request.cost(method), gradients_per_client=rounds * request.gradients(method), **known,
    )  # fmt: skip


def _certified(request: Request) -> Plan:
    """Return the plan of Corollary 4.10 with Theorem 4.9's constants."""
    problem, batches = request.problem, request.batches
    penalty = getattr(problem, "penalty", None)
    if penalty is not None and np.min(penalty) == 0.0 < np.max(penalty) and problem.strong_convexity() == 0.0:
        raise InvalidInput(
            "certified plans need every coefficient to be penalised, and the penalty leaves out "
            f"{int((penalty == 0.0).sum())} of {penalty.size}, such as the intercept; pass mode='sharp'"
        )
    proved = complexity(
        constants(problem, batch_size=batches.size, sampling=batches.sampling), target=request.target,
        n_clients=problem.n_clients, squared_error=float(request.optimum @ request.optimum),
    )  # fmt: skip
    for name, needed, limit in (
        ("max_local_steps", proved.local_steps, request.most_local_steps),
        ("max_rounds", proved.rounds, request.most_rounds),
    ):
        if needed > limit:
            raise OutOfReach(
                f"the proof for a squared error of {request.target:g} needs {needed:,}, above {name}={limit!r}"
            )
    return _plan(
        request, "certified", Scaffold(step_size=proved.step_size, local_steps=proved.local_steps), proved.rounds,
        how="proved", predicted_mse=proved.bound.value, max_useful_clients=float(proved.largest_n_clients),
    )  # fmt: skip


@one_blas_thread
def _first_order(request: Request) -> Plan:
    """Return the plan of the first-order model alone; it aims a fifth below the target, as it is a rough one."""
    model, aim = FirstOrderModel.of(request.problem, request.batches, request.optimum), 0.8 * request.target
    gamma, H, T = _proposed(request, model, aim)
    curve = model.curve(gamma, H, T)
    quadratic = is_quadratic(request.problem)
    return _plan(
        request, "first_order", Scaffold(step_size=gamma, local_steps=H), T, how="first order",
        predicted_mse=float(curve[-1]), curve=curve, variance=model.variance(gamma),
        squared_bias=0.0 if quadratic else None, max_useful_clients=math.inf if quadratic else None,
    )  # fmt: skip


@one_blas_thread
def _proposed(
    request: Request, model: FirstOrderModel, aim: float, spare: Sequence[int] = (1,)
) -> tuple[float, int, int]:
    """Return the first-order model's γ, H and T within multiples of the largest T; raise OutOfReach if none."""
    for times in spare:
        found = model.propose(
            aim, most_local_steps=request.most_local_steps, most_rounds=times * request.most_rounds,
            cost=lambda rounds, H: rounds * (request.round_cost + H * request.gradient_cost),
        )  # fmt: skip
        if found is not None:
            return found
    raise _out_of_reach(request, model, aim)


def _private(
    problem: Any, batches: Batches, epsilon: float | Sequence[float], delta: float | None, most: tuple[int, int],
    optimum: ArrayLike | None, advance: Advance,
) -> Plan | Plans:  # fmt: skip
    """Return the plan of least error for each budget; larger budgets begin where smaller ones ended."""
    if not isinstance(problem, GeneralisedLinear):
        raise InvalidInput("plans under a privacy budget are for ridge and logistic regression on tables")
    budgets = [positive("epsilon", one) for one in (epsilon if isinstance(epsilon, Sequence) else [epsilon])]
    if delta is None:
        raise InvalidInput("epsilon requires delta=..., below one over the number of records")
    batches.check_fits(problem.sizes)
    largest = int(problem.sizes.max())
    if positive("delta", delta) >= 1.0 / largest:
        raise InvalidInput(
            f"delta must be below {1.0 / largest:.3g}, one over the {largest:,} records of a client; got {delta:g}"
        )
    search = PrivateSearch(problem, batches, delta, most, optimum_of(problem, optimum))
    found: dict[float, Plan] = {}
    at = search.start()
    for k, budget in enumerate(sorted(set(budgets))):
        at = search.best(budget, at)
        (method, (errors, spread, *_), _), privacy = search.verified(budget, at)
        H, T = search.rounded(at)
        gradients = H * T
        found[budget] = Plan(
            mode="private", method=method, rounds=T, batch_size=batches.size, sampling=batches.sampling,
            privacy=privacy, target_mse=None, predicted_mse=float(errors[T]), how="measured",
            standard_error=float(spread[T]), n_clients=problem.n_clients, cost=float(gradients),
            gradients_per_client=gradients, epsilon=budget, delta=delta, curve=errors,
        )  # fmt: skip
        advance(k + 1, len(budgets))
    plans = tuple(found[budget] for budget in budgets)
    return Plans(plans) if isinstance(epsilon, Sequence) else plans[0]


def _sharp(request: Request, names: Sequence[str], advance: Advance) -> Plan:
    """Plan each method from the first-order proposal, or from Scaffold's plan, and return the cheapest."""
    problem, start = request.problem, float(request.optimum @ request.optimum)
    if start <= request.target:
        raise InvalidInput(
            f"θ = 0 is already within a squared error of {request.target:g} of the optimum ({start:.3g}): there "
            "is nothing to run"
        )
    model, settings = None, (0.3 / problem.smoothness(request.batches), min(32, request.most_local_steps), 100)
    if isinstance(problem, HasNoiseAlong) and problem.dim <= 1000:
        model = one_blas_thread(FirstOrderModel.of)(problem, request.batches, request.optimum)
        settings = _proposed(request, model, request.aim, spare=(1, 4))  # rounds, as the model is a rough one
    begin, most_cost = Outcome(*settings, math.inf, 0.0), math.inf
    plans: list[Plan] = []
    rejected: dict[str, str] = {}
    for k, name in enumerate(sorted(names, key=METHODS.index)):
        try:
            found = _planned(request, name, begin, most_cost)
            plans.append(found)
            if name == "scaffold":
                H = found.method.uniform_local_steps
                begin = Outcome(found.method.step_size, H, found.rounds, math.inf, 0.0)
                most_cost = 4.0 * found.cost  # a method that costs more is not looked at
        except (InvalidInput, MissingDependency) as error:
            if len(names) == 1:
                binding = isinstance(error, OutOfReach) and model is not None
                raise _out_of_reach(request, model, request.aim) if binding else error from None
            rejected[name] = str(error)
        advance(k + 1, len(names))
    if not plans:
        reasons = "; ".join(f"{name}: {why}" for name, why in rejected.items())
        raise OutOfReach(f"no method reaches a squared error of {request.target:g}. {reasons}")
    plans.sort(key=lambda each: each.cost)
    return replace(plans[0], alternatives=tuple(plans[1:]), rejected=rejected)


def _planned(request: Request, name: str, begin: Outcome, most_cost: float) -> Plan:
    """Search γ and H of a method for the least cost, and verify them."""
    averaged = name == "scaffold_average"
    looked = {make: request.cheapest(make, begin, most_cost, averaged=averaged) for make in VARIANTS[name]}
    settled = [
        request.settled(make, one, averaged=averaged) for make, one in looked.items() if one.rounds is not None
    ]
    if not settled:
        limit = "" if math.isinf(most_cost) else f" at a cost of {most_cost:,.4g}"
        nearest = min(one.error for one in looked.values())
        raise OutOfReach(
            f"a squared error of {request.target:g} was not reached{limit}; the nearest was {nearest:.3g}"
        )
    best = min(settled, key=lambda one: (one.curve.errors.size - 1) * request.cost(one.method))
    T, (errors, spread, after, _) = best.curve.errors.size - 1, best.curve
    return _plan(
        request, "sharp", best.method, T, name=name, how="measured" if best.law is None else "exact", curve=errors,
        after=None if after is None else after[T], predicted_mse=float(errors[T]), standard_error=float(spread[T]),
        **_plateau_parts(request, best),
    )  # fmt: skip


def _plateau_parts(request: Request, settled: Verified) -> dict[str, Any]:
    """Return variance, bias and useful clients on the plateau: exact, or to first order if there is a law."""
    problem, method = request.problem, settled.method
    law: Any = settled.law
    if law is None:
        try:
            law = first_order_law(problem, method, request.batches)
        except InvalidInput:
            return {}
    variance, bias, useful = float(np.trace(law.cov_theta)), float(law.bias @ law.bias), None
    if bias <= 1e-24 * float(request.optimum @ request.optimum):  # rounding errors of θ*
        bias = 0.0
    if method.kind == "fedavg":
        useful = max(1.0, problem.n_clients * variance / bias) if bias > 0.0 else math.inf
    elif is_quadratic(problem):  # Scaffold's models rest at θ*, up to rounding
        bias, useful = 0.0, math.inf
    return {"variance": variance, "squared_bias": bias, "max_useful_clients": useful}


@one_blas_thread
def _out_of_reach(request: Request, model: Any, aim: float) -> OutOfReach:
    """Return the error that names the limit that binds, by the first-order model with limits lifted."""

    def about(number: float) -> str:
        """Return half as much again, rounded up to two digits, as the model is a rough one."""
        unit = 10 ** max(0, len(str(math.ceil(1.5 * number))) - 2)
        return f"{math.ceil(1.5 * number / unit) * unit:,}"

    T, H = request.most_rounds, request.most_local_steps
    needed = {steps: model.fewest_rounds(aim, steps) for steps in (H << k for k in range(11))}
    rounds, steps = max(needed[H], T), next((steps for steps, count in needed.items() if count <= T), None)
    lifted = [f"about {about(rounds)} rounds"] if rounds <= 64 * T else []
    if steps is not None:
        lifted.append(f"about {about(steps)} local steps")
    if not lifted and needed[H << 10] <= 64 * T:
        lifted.append(f"about {about(needed[H << 10])} rounds and {H << 10:,} local steps")
    why = (
        f"the limits bind; allow {', or '.join(lifted)}"
        if lifted
        else "noise binds; allow larger batches or errors"
    )
    return OutOfReach(
        f"a squared error of {request.target:g} is out of reach within {T:,} rounds of {H:,} local steps: {why}"
    )
