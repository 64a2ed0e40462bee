"""One round: who takes part, the clients' local steps, the server's step, the clients' update."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.privacy import Privacy
from fedscaffold.core.protocols import Availability, Clients, Engine, Method, Problem
from fedscaffold.core.random.batches import Batches
from fedscaffold.core.random.stream import cohorts, round_uniforms
from fedscaffold.core.sums import total
from fedscaffold.core.types import Array, ExchangedGradients, IntArray, RoundInfo
from fedscaffold.simulation.clients import open_clients
from fedscaffold.simulation.divergence import diverged, has_diverged

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
    """The state before the first round, from θ (repetitions, dim), for clients whose state is in memory."""
    client_state = method.init_clients(len(theta), problem.weights, problem.dim, control_variates)
    return State(0, method.init_server(theta), client_state)


def participants_of(
    method: Method, n_clients: int, round: int, availability: Availability | None
) -> tuple[IntArray | None, int]:
    """Which clients are available in a round, None for all, and how many of them take part."""
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
    """Who takes part in a round, drawn from the seed; `round_uniform` has one number per repetition."""
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

    problem: Problem
    method: Method
    batches: Batches
    clients: Clients
    seed: int
    limit: float
    uniforms_of: Callable[[int, int], Array]  # (block of rounds, repetitions)
    availability: Availability | None = None

    def __call__(self, state: State) -> State:
        """Run one round."""
        method, clients, info = self.method, self.clients, self.round_info(state)
        exchanged = None
        if method.exchange is not None:
            sums, own = clients.exchange(state.server, info)
            exchanged = ExchangedGradients(own, total(sums))
        sums, result = clients.run_local_steps(state.client_state, state.server, info, exchanged)
        server = method.aggregate(state.server, total(sums), info.share)
        if has_diverged(server, self.limit):
            worst = clients.worst_client(result)
            raise diverged(method, state.round + 1, worst, problem=self.problem, batches=self.batches)
        client_state = clients.update(state.client_state, result, state.server, server)
        return State(state.round + 1, server, client_state)

    def round_info(self, state: State) -> RoundInfo:
        """Who takes part in the round after this state, and the round's uniform numbers."""
        block, within = divmod(state.round, ROUNDS_AT_ONCE)
        uniform = self.uniforms_of(block, len(state.theta))[:, within]
        return round_info(
            self.method, self.problem.weights, seed=self.seed, round=state.round, round_uniform=uniform,
            availability=self.availability,
        )  # fmt: skip

    def initial_state(self, theta: Array, control_variates: ArrayLike | None = None) -> State:
        """The state before the first round, from θ (repetitions, dim)."""
        client_state = self.clients.init_state(len(theta), self.problem.dim, control_variates)
        return State(0, self.method.init_server(theta), client_state)

    def scatter(self, state: State) -> State:
        """Bring a state whose client state is named arrays to where the clients are."""
        return state._replace(client_state=self.clients.scatter(state.client_state, state.round))

    def gather(self, state: State) -> State:
        """The same state with the client state as named arrays."""
        return state._replace(client_state=self.clients.gather(state.client_state))

    def is_current(self, state: State) -> bool:
        """Whether the clients still hold this state."""
        return self.clients.is_current(state.client_state)


@contextmanager
def open_rounds(
    problem: Problem,
    method: Method,
    engine: Engine,
    batches: Batches,
    *,
    seed: int,
    limit: float,
    first_step: int = 0,
    folder: str | os.PathLike[str] | None = None,
    availability: Availability | None = None,
    privacy: Privacy | None = None,
) -> Iterator[RoundStep]:
    """A function from a state to the state one round later.

    Local steps draw as steps first_step, first_step + 1, ... of their rounds, so that two runs may share draws or
    not. The client state is part of the state, unless the engine keeps it in its workers or a folder is given.
    """
    with open_clients(
        problem, method, engine, batches, seed=seed, first_step=first_step, folder=folder, privacy=privacy
    ) as clients:

        @lru_cache(maxsize=1)
        def uniforms_of(block: int, repetitions: int) -> Array:
            return round_uniforms(seed, repetitions, range(block * ROUNDS_AT_ONCE, (block + 1) * ROUNDS_AT_ONCE))

        yield RoundStep(problem, method, batches, clients, seed, limit, uniforms_of, availability)


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
