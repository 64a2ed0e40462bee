"""What each method of the family is predicted to reach, as the search for the cheapest method asks it."""

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

import numpy as np

from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.protocols import Method
from fedscaffold.core.types import Array, IntArray
from fedscaffold.methods import FedAvg, FedLin, ProxSkip, Scaffold, ServerOptimizer, TwoSidedScaffold
from fedscaffold.theory.planning.curve_model import CurveModel
from fedscaffold.theory.planning.pattern import Outcome
from fedscaffold.theory.planning.request import PlanRequest
from fedscaffold.theory.prediction.family.family_setting import family_setting
from fedscaffold.theory.prediction.family.predict_family import error_rounds, is_plain
from fedscaffold.theory.prediction.iterate_average import long_run_of

Make = Callable[[float, int], Method]  # γ, H → the method with these settings


def with_momentum(momentum: float, learning_rate: float) -> Make:
    """Scaffold with momentum on the server."""
    return lambda gamma, H: ServerOptimizer(
        method=Scaffold(step_size=gamma, local_steps=H),
        optimizer="sgd",
        learning_rate=learning_rate,
        options={"momentum": momentum},
    )


# what a method's name stands for: settings besides γ and H are tried in turn
VARIANTS: dict[str, tuple[Make, ...]] = {
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
FIRST_ROUNDS = 16
DESCRIBED = (
    "method", "optimizer", "learning_rate", "options", "step_size", "local_steps", "communication_probability",
    "server_step_size", "participation",
)  # fmt: skip
SHARES = (0.0, 0.06, 0.12, 0.25, 0.4, 0.6, 0.8)  # of the rounds, that an average leaves out


def participating(request: PlanRequest, method: Method) -> float:
    """Share of the clients that take part in a round."""
    N = request.problem.n_clients
    return method.participants(N) / N


def gradients_per_round(request: PlanRequest, method: Method, H: int) -> float:
    """Stochastic gradients of a client in a round, on average; an exchanged full one counts as its batches."""
    if method.exchange is None:
        exchanged = 0.0
    elif method.exchange == "minibatch" or request.batches.size is None:
        exchanged = 1.0
    else:
        exchanged = float(request.problem.sizes.mean()) / request.batches.size
    return participating(request, method) * (H + exchanged)


def cost_of_rounds(request: PlanRequest, method: Method, H: int, rounds: float) -> float:
    """T (round_cost · vectors/2 + gradients · gradient_cost): what a client spends, on average."""
    vectors = participating(request, method) * method.vectors_per_round
    return rounds * (
        0.5 * vectors * request.round_cost + gradients_per_round(request, method, H) * request.gradient_cost
    )


@dataclass(frozen=True, eq=False)
class Foresight:
    """Predictions of one method for any γ and H.

    Attributes
    ----------
    request
        The problem, limits and prices.
    make
        The method for γ and H.
    averaged
        Whether the average of the iterates is what counts.
    aim
        The error to reach.
    most_cost
        Plans that cost more are not looked at.
    """

    request: PlanRequest
    make: Make
    averaged: bool
    aim: float
    most_cost: float
    model: CurveModel | None = field(default=None)

    @classmethod
    def of(cls, request: PlanRequest, make: Make, *, averaged: bool, aim: float, most_cost: float) -> "Foresight":
        """Rough predictions of a method, for a search; refuses what cannot be foreseen."""
        plain = is_plain(request.problem, make(1e-6, 1))
        model = replace(CurveModel.of(request, make(1e-6, 1)), rough=True) if plain else None
        if model is None:
            family_setting(request.problem, make(1e-6, 2), request.batches)
        return cls(request, make, averaged, aim, most_cost, model)

    def step_by_step(self) -> "Foresight | None":
        """The same by curves that follow every step, for what was found; None where these are no other."""
        sharp = None if self.model is None else replace(self.model, rough=False, curves={})
        return replace(self, model=sharp) if sharp is not None and sharp.exact else None

    def ask(self, gamma: float, H: int, most_cost: float) -> Outcome:
        """The first round in which the error is below the aim, if it costs no more than `most_cost`."""
        method = self.make(gamma, H)
        each = cost_of_rounds(self.request, method, H, 1.0)
        most = int(max(1.0, min(self.request.most_rounds, min(most_cost, self.most_cost) / each)))
        nowhere, lowest = Outcome(gamma, H, None, math.inf, math.inf), math.inf
        try:
            with np.errstate(over="ignore", invalid="ignore"):
                for t, error, after in self._rounds(method, gamma, H, most):
                    if error <= self.aim:
                        return Outcome(gamma, H, t, t * each, error, after)
                    lowest = min(lowest, error)
        except InvalidInput:
            return nowhere
        return replace(nowhere, error=lowest)

    def _rounds(self, method: Method, gamma: float, H: int, most: int) -> Iterator[tuple[int, float, int | None]]:
        """Round t, the error after it, and what an average leaves out; ends where the error hardly falls."""
        if self.model is None:
            family = family_setting(self.request.problem, method, self.request.batches)
            yield from _until_settled((error, None) for error in islice(error_rounds(family), 1, most + 1))
        else:
            yield from _until_settled(self._curve(self.model, gamma, H, most))

    def _curve(self, model: CurveModel, gamma: float, H: int, most: int) -> Iterator[tuple[float, int | None]]:
        """Errors round by round from curves that are prolonged as they are needed."""
        done, T = 0, min(FIRST_ROUNDS, most)
        while done < most:
            parts = model.parts(gamma, H, T)
            if parts is None:
                raise InvalidInput("there is no contraction")
            errors, afters = np.add(*parts)[1:], None
            if self.averaged:
                s = model.at(gamma, H)
                errors, afters = average_errors(*parts, float(np.trace(long_run_of(s, model.state(s)))))
            for t in range(done, T):
                yield float(errors[t]), None if afters is None else int(afters[t])
            done, T = T, min(4 * T, most)


def _until_settled(
    errors: Iterable[tuple[float, int | None]],
) -> Iterator[tuple[int, float, int | None]]:
    """Errors with the number of their round, until twice as many rounds have lowered them by a tenth only."""
    before = math.inf
    for t, (error, after) in enumerate(errors, start=1):
        yield t, error, after
        if t >= FIRST_ROUNDS // 2 and t & (t - 1) == 0:
            if error > 0.9 * before:
                return
            before = error


def average_errors(squares: Array, variances: Array, long_run: float) -> tuple[Array, IntArray]:
    """About E‖θ̄ − θ*‖² for averages up to 1, ..., T rounds with the best of some tails, and what these leave out.

    Of the mean, the norm of an average is at most the average of norms; of the noise, n consecutive models have at
    most the variance of one, and about (1/n) lim T Cov θ̄.
    """
    T = np.arange(1, squares.size)
    norms = np.concatenate([[0.0], np.cumsum(np.sqrt(squares[1:]))])
    best, left_out = np.full(T.size, np.inf), np.zeros(T.size, dtype=np.int64)
    for share in SHARES:
        after = np.minimum(np.floor(share * T).astype(np.int64), T - 1)
        n = T - after
        errors = np.square((norms[T] - norms[after]) / n) + np.minimum(long_run / n, variances[1:])
        left_out = np.where(errors < best, after, left_out)
        best = np.minimum(errors, best)
    return best, left_out


def describe(method: Method) -> str:
    """A method with its settings, as one would write it; those that have their default are left out."""
    shown: dict[str, Any] = {
        name: value
        for name, value in vars(method).items()
        if name in DESCRIBED and (name != "participation" or value != 1.0)
    }
    if method.exchange is not None:
        shown["correction_gradients"] = method.exchange
    words = (f"{name}={_written(value)}" for name, value in shown.items())
    return f"{type(method).__name__}({', '.join(words)})"


def _written(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return describe(value) if isinstance(value, Scaffold) else repr(value)
