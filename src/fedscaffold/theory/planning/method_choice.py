"""Which method of the family reaches a target at the least cost, and with which settings."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedscaffold.core.checks import choice
from fedscaffold.core.display.progress import Advance
from fedscaffold.core.display.summaries import Summarised
from fedscaffold.core.errors import InvalidInput, MissingDependency, OutOfReach
from fedscaffold.core.protocols import Method
from fedscaffold.core.threads import one_blas_thread
from fedscaffold.theory.planning.foresight import (
    VARIANTS,
    Foresight,
    Make,
    cost_of_rounds,
    describe,
    gradients_per_round,
)
from fedscaffold.theory.planning.pattern import Outcome, pattern_search
from fedscaffold.theory.planning.request import PlanRequest
from fedscaffold.theory.planning.sharp import AIM, sharp_plan
from fedscaffold.theory.prediction.family.family_setting import LARGEST
from fedscaffold.theory.prediction.iterate_average import predict_average

METHODS = ("scaffold", *VARIANTS)
NOT_PLANNED = {
    "scaffold_unequal": "how many steps each client can take is its machine's affair and not a plan's; "
    "theory.predict says what Scaffold(..., local_steps=[...]) reaches",
    "richardson_romberg": "its chains share their draws, and the covariance of what they share is not foreseen; "
    "theory.predict_average(...).extrapolated(...) says what chains with draws of their own reach",
}
DEARER = 4.0  # times Scaffold's cost: what costs more is not looked at
START = 0.3  # of 1/L, where Scaffold's plan does not say where to begin
AVERAGES_TRIED = 4


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class MethodPlan(Summarised):
    """One method's way to a target.

    Attributes
    ----------
    name
        The method's name, one of `fedscaffold.theory.METHODS`.
    method
        The method with its settings, as `fedscaffold.run` takes it.
    rounds
        T, the number of rounds.
    after
        Where the average of the iterates is what reaches the target, how many first rounds it leaves out: record
        `TailAverage(after=after)`. None where the last iterate does.
    predicted_mse
        Expected squared error in the end.
    cost
        T (round_cost · vectors/2 + gradients · gradient_cost), with a client's vectors and gradients in a round.
    gradients_per_client
        Stochastic gradients that each client computes, on average.

    Examples
    --------
    >>> import fedscaffold as fs
    >>> problem = fs.problems.RidgeStream(n_clients=3, dim=2)
    >>> names = ("fedavg", "scaffold")
    >>> chosen = fs.plan(problem, target_mse=0.05, batch_size=10, methods=names, max_local_steps=16)
    >>> chosen.plans[0].rounds * chosen.plans[0].method.vectors_per_round > 0
    True
    """

    name: str
    method: Method
    rounds: int
    after: int | None
    predicted_mse: float
    cost: float
    gradients_per_client: float

    def __str__(self) -> str:
        tail = "" if self.after is None else f", averaging the models after round {self.after:,}"
        return f"{describe(self.method)} for {self.rounds:,} rounds{tail}"

    def _facts(self) -> dict[str, object]:
        return {"method": str(self), "predicted_mse": f"{self.predicted_mse:.4g}", "cost": f"{self.cost:.4g}"}

    def _title(self) -> str:
        return f"Plan, {self.name}"


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class MethodChoice(Summarised):
    """The methods that reach a target, cheapest first: the result of `fedscaffold.plan(..., methods=...)`.

    Attributes
    ----------
    target_mse
        The squared error to reach.
    plans
        A `MethodPlan` for each method that reaches it, by cost.
    refused
        Why each of the others does not, or cannot be foreseen, by name.

    Examples
    --------
    >>> import fedscaffold as fs
    >>> problem = fs.problems.RidgeStream(n_clients=3, dim=2)
    >>> names = ("fedavg", "scaffold")
    >>> chosen = fs.plan(problem, target_mse=0.05, batch_size=10, methods=names, max_local_steps=16)
    >>> chosen.best.cost <= chosen.plans[-1].cost
    True
    """

    target_mse: float
    plans: tuple[MethodPlan, ...]
    refused: dict[str, str]

    @property
    def best(self) -> MethodPlan:
        """The plan of the least cost among all methods."""
        return self.plans[0]

    def explain(self) -> str:
        """The choice and its reasons as a text, a line for each method."""
        best = self.best
        lines = [
            f"Run {best}.",
            f"Predicted squared error: {best.predicted_mse:.4g} (target {self.target_mse:g}), at a cost of "
            f"{best.cost:,.4g}: {best.gradients_per_client:,.0f} gradients and "
            f"{best.rounds * best.method.vectors_per_round:,} vectors of each client.",
        ]
        others = self.plans[1:]
        lines += [f"{each.name} costs {each.cost / best.cost:.3g} times as much: {each}." for each in others]
        lines += [f"{name}: {why}." for name, why in self.refused.items()]
        return "\n".join(lines)

    def _facts(self) -> dict[str, object]:
        return {"best": str(self.best), **{plan.name: f"cost {plan.cost:.4g}" for plan in self.plans}}

    def _title(self) -> str:
        return "Choice of a method"


def parse_methods(methods: str | Sequence[str]) -> tuple[str, ...]:
    """Names of methods: all of them, one, or several."""
    if methods == "all":
        return METHODS
    names = (methods,) if isinstance(methods, str) else tuple(methods)
    if not names:
        raise InvalidInput("methods must name at least one method, or be 'all'")
    for name in names:
        if name in NOT_PLANNED:
            raise InvalidInput(f"{name} is not planned: {NOT_PLANNED[name]}")
        choice("methods", name, METHODS)
    return names


@one_blas_thread
def choose_method(request: PlanRequest, names: Sequence[str], advance: Advance) -> MethodChoice:
    """The cheapest plan of each method; refused where none reaches the target."""
    plans: list[MethodPlan] = []
    refused: dict[str, str] = {}
    gamma, H, most_cost = _start(request)
    order = sorted(names, key=METHODS.index)
    for k, name in enumerate(order):
        try:
            if name == "scaffold":
                found = _scaffold(request)
                gamma, H, most_cost = (
                    found.method.step_size,
                    round(found.gradients_per_client / found.rounds),
                    found.cost,
                )
                most_cost *= DEARER
            else:
                found = _planned(request, name, gamma, H, most_cost)
            plans.append(found)
        except (InvalidInput, MissingDependency) as error:
            refused[name] = str(error)
        advance(k + 1, len(order))
    if not plans:
        reasons = "; ".join(f"{name}: {why}" for name, why in refused.items())
        raise OutOfReach(f"no method reaches a squared error of {request.target:g}. {reasons}")
    plans.sort(key=lambda each: each.cost)
    return MethodChoice(target_mse=request.target, plans=tuple(plans), refused=refused)


def _start(request: PlanRequest) -> tuple[float, int, float]:
    """γ, H and the most that a plan may cost, where no plan of Scaffold says so."""
    gamma = START / request.problem.smoothness(request.batches)
    H = max(1, round(request.most_local_steps**0.5))
    return gamma, H, request.cost(request.most_rounds, request.most_local_steps)


def _scaffold(request: PlanRequest) -> MethodPlan:
    found = sharp_plan(request, lambda done, of: None)
    return MethodPlan(
        name="scaffold",
        method=found.method,
        rounds=found.rounds,
        after=None,
        predicted_mse=found.predicted_mse,
        cost=found.cost,
        gradients_per_client=float(found.gradients_per_client),
    )


def _planned(request: PlanRequest, name: str, gamma: float, H: int, most_cost: float) -> MethodPlan:
    """The plan of a method, searched from γ and H on for each of its variants."""
    searched: list[tuple[Outcome, Make]] = []
    for make in VARIANTS[name]:
        foresight = Foresight.of(
            request, make, averaged=name == "scaffold_average", aim=AIM * request.target, most_cost=most_cost
        )
        rough = pattern_search(foresight.ask, gamma, H, request.most_local_steps)
        searched.append((_verified(request, foresight, rough), make))
    found, make = min(searched, key=lambda each: each[0].rank)
    if found.rounds is None:
        raise OutOfReach(
            f"does not reach the target at a cost of {most_cost:,.4g}; the nearest that was found is "
            f"{found.error:.3g}"
        )
    method = make(found.gamma, found.H)
    rounds, after, error = found.rounds, found.after, found.error
    if after is not None and request.problem.n_clients * request.problem.dim <= LARGEST:
        rounds, after, error = _verified_average(request, method, found)
    return MethodPlan(
        name=name,
        method=method,
        rounds=rounds,
        after=after,
        predicted_mse=error,
        cost=cost_of_rounds(request, method, found.H, rounds),
        gradients_per_client=rounds * gradients_per_round(request, method, found.H),
    )


def _verified(request: PlanRequest, foresight: Foresight, found: Outcome) -> Outcome:
    """What the sharpest curves say of a rough outcome; searched again from there where they deny it."""
    sharp = foresight.step_by_step()
    if sharp is None or found.rounds is None:
        return found
    verified = sharp.ask(found.gamma, found.H, math.inf)
    if verified.rounds is not None:
        return verified
    return pattern_search(sharp.ask, found.gamma, found.H, request.most_local_steps)


def _verified_average(request: PlanRequest, method: Method, found: Outcome) -> tuple[int, int, float]:
    """Rounds, what the average leaves out and its error by `predict_average`; more rounds where it needs them."""
    assert found.rounds is not None
    rounds, aim = found.rounds, AIM * request.target
    for _ in range(AVERAGES_TRIED):
        exact = predict_average(
            request.problem,
            method,
            batch_size=request.batches.size,
            sampling=request.batches.sampling,
            rounds=rounds,
        )
        if exact.mse <= request.target * np.sqrt(AIM):
            return rounds, exact.after, exact.mse
        rounds = math.ceil(rounds * max(exact.mse / aim, 1.1))
        if rounds > request.most_rounds:
            break
    raise OutOfReach(f"its average needs more than {request.most_rounds:,} rounds")
