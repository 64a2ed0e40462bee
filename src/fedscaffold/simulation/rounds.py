"""One round: who takes part, the clients' local steps, the server's step, the clients' update."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass
from functools import lru_cache
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np

from fedscaffold.core.errors import Diverged, InvalidInput
from fedscaffold.core.protocols import Availability, Divisible, Method, Problem
from fedscaffold.core.random.stream import Batches, cohorts, round_uniforms
from fedscaffold.core.sums import total
from fedscaffold.core.types import Array, ExchangedGradients, IntArray, RoundInfo, WorstClient
from fedscaffold.simulation.clients import Clients, open_clients
from fedscaffold.simulation.setup import RunSetup

ROUNDS_AT_ONCE = 64  # whose uniform numbers are drawn at a time
ALL_WEIGHT = np.ones(1)  # the share of the weight when every client takes part


class State(NamedTuple):
    """Everything that the next round depends on."""

    round: int
    server: Any  # a named tuple of arrays (repetition, coordinate), θ first
    client_state: Any  # a named tuple of arrays (repetition, client, coordinate), or a token for arrays elsewhere

    @property
    def theta(self) -> Array:
        """The server's model θ of each repetition, (repetitions, dim)."""
        return self.server.theta


def initial_state(problem: Problem, method: Method, theta: Array, control_variates: Any = None) -> State:
    """Return the state before the first round, from θ (repetitions, dim), for clients whose state is in memory."""
    client_state = method.init_clients(len(theta), problem.weights, problem.dim, control_variates)
    return State(0, method.init_server(theta), client_state)


def participants_of(
    method: Method, n_clients: int, round: int, availability: Availability | None
) -> tuple[IntArray | None, int]:
    """Return which clients are available in a round, None for all, and how many of them take part."""
    count = method.participants(n_clients)
    if availability is None:
        return None, count
    available = availability.available(round, n_clients)
    if available.size == 0:
        raise InvalidInput(f"no client is available in round {round}; take another availability or fewer rounds")
    return available, min(count, available.size)


def round_info(
    method: Method,
    weights: Array,
    *,
    seed: int,
    round: int,
    round_uniform: Array,
    availability: Availability | None = None,
) -> RoundInfo:
    """Draw who takes part in a round; `round_uniform` has one number per repetition."""
    n_clients = weights.size
    available, count = participants_of(method, n_clients, round, availability)
    if count == n_clients:
        return RoundInfo(round, round_uniform, None, ALL_WEIGHT)
    candidates = np.arange(n_clients) if available is None else available
    cohort = candidates[cohorts(seed, len(round_uniform), round, count, candidates.size)]
    return RoundInfo(round, round_uniform, cohort, weights[cohort].sum(axis=1))


@dataclass(frozen=True)
class RoundStep:
    """A function from a state to the state one round later; raises `Diverged` when θ leaves the limit."""

    setup: RunSetup
    clients: Clients
    uniforms_of: Callable[[int, int], Array]  # (block of rounds, repetitions)

    def __call__(self, state: State) -> State:
        """Run one round."""
        setup, clients, info = self.setup, self.clients, self.round_info(state)
        method, exchanged = setup.method, None
        if method.exchange is not None:
            sums, own = clients.exchange(state.server, info)
            exchanged = ExchangedGradients(own, total(sums))
        sums, result = clients.run_local_steps(state.client_state, state.server, info, exchanged)
        server = method.aggregate(state.server, total(sums), info.share)
        if has_diverged(server, setup.limit):
            worst = clients.worst_client(result)
            raise diverged(method, state.round + 1, worst, problem=setup.problem, batches=setup.batches)
        client_state = clients.update(state.client_state, result, state.server, server)
        return State(state.round + 1, server, client_state)

    def round_info(self, state: State) -> RoundInfo:
        """Return who takes part in the round after this state, and the round's uniform numbers."""
        setup, (block, within) = self.setup, divmod(state.round, ROUNDS_AT_ONCE)
        uniform = self.uniforms_of(block, len(state.theta))[:, within]
        return round_info(
            setup.method, setup.problem.weights, seed=setup.seed, round=state.round, round_uniform=uniform,
            availability=setup.availability,
        )  # fmt: skip

    def initial_state(self) -> State:
        """Return the state before the first round, from the setup's models and control variates."""
        theta, problem = self.setup.theta, self.setup.problem
        client_state = self.clients.init_state(len(theta), problem.dim, self.setup.control_variates)
        return State(0, self.setup.method.init_server(theta), client_state)

    def scatter(self, state: State) -> State:
        """Bring a state whose client state is named arrays to where the clients are."""
        return state._replace(client_state=self.clients.scatter(state.client_state, state.round))

    def gather(self, state: State) -> State:
        """Return the same state with the client state as named arrays."""
        return state._replace(client_state=self.clients.gather(state.client_state))

    def is_current(self, state: State) -> bool:
        """Return whether the clients still hold this state."""
        return self.clients.is_current(state.client_state)


@contextmanager
def open_rounds(setup: RunSetup) -> Iterator[RoundStep]:
    """Open the clients of a run, and yield a function from a state to the state one round later.

    The client state is part of the state, unless the engine keeps it in its workers or a folder is given.
    """
    with open_clients(setup) as clients:

        @lru_cache(maxsize=1)
        def uniforms_of(block: int, repetitions: int) -> Array:
            rounds = range(block * ROUNDS_AT_ONCE, (block + 1) * ROUNDS_AT_ONCE)
            return round_uniforms(setup.seed, repetitions, rounds)

        yield RoundStep(setup, clients, uniforms_of)


def run_rounds(
    step: RoundStep,
    state: State,
    *,
    until: int,
    record: Callable[[State], bool],
    progress: Callable[[int], None],
    save: Callable[[State], None],
    save_every: int,
) -> State:
    """Run rounds until `until` rounds are done, or until `record` returns True.

    Parameters
    ----------
    step
        One round.
    state
        Where to start.
    until
        Number of rounds, counted from the beginning of the run.
    record
        Called with the state after every round; True ends the loop.
    progress
        Called with the number of rounds done, at the beginning and after every round.
    save
        Called with the state every `save_every` rounds, at the end, and on Ctrl-C between two rounds. A round that
        is only half done or half recorded is never saved.
    save_every
        Rounds between two calls of `save`.
    """
    complete = True
    try:
        progress(state.round)
        while state.round < until:
            new = step(state)
            complete = False
            ended = record(new)
            state, complete = new, True
            if ended or state.round % save_every == 0 or state.round == until:
                save(state)
            progress(state.round)
            if ended:
                break
    except KeyboardInterrupt:
        if complete and step.is_current(state):
            save(state)
        raise
    return state


@runtime_checkable
class LocalSmoothness(Protocol):
    """A problem whose smoothness is known only near the start, and is slow to measure for all clients."""

    smoothness_is_local: bool


def has_diverged(server: Any, limit: float) -> bool:
    """Return whether an entry of θ is beyond the limit or not a number."""
    return not np.abs(server.theta).max() < limit


def diverged(
    method: Method,
    round: int,
    worst: WorstClient,
    *,
    problem: Problem | None = None,
    batches: Batches | None = None,
) -> Diverged:
    """Return the error that names the round, the worst client and, given the problem, a safe step size."""
    safe, advice = 0.0, "No step size can be vouched for here; try a tenth of this one."
    if problem is not None and batches is not None:
        safe, advice = _safe_step_size(method, problem, batches, worst.client, advice)
    return Diverged(
        f"{type(method).__name__} diverged in round {round}: client {worst.client}'s model reached "
        f"{worst.size:.3g} with {_settings_of(method)}. {advice}",
        round=round,
        client=worst.client,
        safe_step_size=safe,
    )


def _safe_step_size(
    method: Method, problem: Problem, batches: Batches, client: int, otherwise: str
) -> tuple[float, str]:
    measured, estimated = problem, isinstance(problem, LocalSmoothness) and problem.smoothness_is_local
    if estimated and isinstance(problem, Divisible):
        measured = problem.subset([client])
    safe = method.safe_step_size(measured.smoothness(batches), problem.strong_convexity())
    if safe == 0.0:
        return safe, otherwise
    if method.step_size <= safe and not estimated:
        return safe, (
            f"The step size is not to blame, as {safe:.3g} is safe here: the problem's own numbers are so large "
            "that its solution lies beyond what a run takes for sound. Divide targets and features by their size."
        )
    if estimated:
        return safe, (
            f"Going by its curvature where it started, step_size={safe:.3g} should do; this is an estimate."
        )
    return safe, f"step_size={safe:.3g} is safe for this problem and batch size."


def _settings_of(method: Method) -> str:
    """Return step_size=0.05, local_steps=100 and every other setting that is not the default."""
    if not is_dataclass(method):
        return f"step_size={method.step_size:g}"
    chosen = ((field.name, getattr(method, field.name), field.default) for field in fields(method))
    return ", ".join(
        f"{name}={value:g}" if isinstance(value, float) else f"{name}={value}"
        for name, value, default in chosen
        if value != default
    )
