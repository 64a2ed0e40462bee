"""One round: who takes part, local steps, the server's step, the clients' memory."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from fedscaffold.core.errors import Diverged
from fedscaffold.core.random.batches import Batches
from fedscaffold.core.random.stream import round_uniforms, cohorts
from fedscaffold.core.sums import total
from fedscaffold.core.types import Array, Clients, Engine, ExchangedGradients, WorstClient, Method, Problem, RoundInfo
from fedscaffold.simulation.clients import open_clients

AT_ONCE = 64  # rounds whose chances are drawn at a time
EVERYONE = np.ones(1)  # their share of all weight
EXPLODED = 1e15  # times 1 + the largest number of the first θ


class State(NamedTuple):
    """All that the next round depends on."""

    round: int
    server: Any  # a named tuple of arrays (repetition, coordinate), θ first
    memory: Any  # a named tuple of arrays (repetition, client, coordinate)

    @property
    def theta(self) -> Array:
        """θ, (repetitions, dim)."""
        return self.server.theta


def divergence_limit(theta: Array) -> float:
    """A number above which entries of θ are taken for divergence, for a run from this θ."""
    return EXPLODED * (1.0 + float(np.abs(theta).max()))


def initial_state(problem: Problem, method: Method, theta: Array, control_variates: Any = None) -> State:
    """Before the first round, from θ (repetitions, dim), for clients whose memory is in the state."""
    memory = method.init_clients(len(theta), problem.weights, problem.dim, control_variates)
    return State(0, method.init_server(theta), memory)


@dataclass(frozen=True)
class Step:
    """A function from a state to the state one round later; raises `Diverged` when θ leaves the limit."""

    problem: Problem
    method: Method
    batches: Batches
    clients: Clients
    seed: int
    limit: float
    uniforms_of: Callable[[int, int], Array]  # (block of rounds, repetitions)

    def __call__(self, state: State) -> State:
        """One round."""
        method, clients, told = self.method, self.clients, self.told(state)
        exchanged = None
        if method.exchange is not None:
            parts, own = clients.exchange(state.server, told)
            exchanged = ExchangedGradients(own, total(parts))
        parts, worked = clients.work(state.memory, state.server, told, exchanged)
        server = method.aggregate(state.server, total(parts), told.share)
        if not np.abs(server.theta).max() < self.limit:
            raise _diverged(self.problem, method, self.batches, state.round + 1, clients.largest(worked))
        memory = clients.remember(state.memory, worked, state.server, server)
        return State(state.round + 1, server, memory)

    def told(self, state: State) -> RoundInfo:
        """Who takes part, and the round's chance."""
        repetitions, n_clients = len(state.theta), self.problem.n_clients
        block, within = divmod(state.round, AT_ONCE)
        round_uniform = self.uniforms_of(block, repetitions)[:, within]
        count = self.method.participants(n_clients)
        if count == n_clients:
            return RoundInfo(state.round, round_uniform, None, EVERYONE)
        cohort = cohorts(self.seed, repetitions, state.round, count, n_clients)
        return RoundInfo(state.round, round_uniform, cohort, self.problem.weights[cohort].sum(axis=1))

    def first(self, theta: Array, control_variates: ArrayLike | None = None) -> State:
        """Before the first round, from θ (repetitions, dim)."""
        memory = self.clients.start(len(theta), self.problem.dim, control_variates)
        return State(0, self.method.init_server(theta), memory)

    def placed(self, state: State) -> State:
        """A state whose memory is arrays, ready to go on from."""
        return state._replace(memory=self.clients.placed(state.memory, state.round))

    def holds(self, state: State) -> bool:
        """Whether the clients' memory is still this state's."""
        return self.clients.holds(state.memory)

    def collected(self, state: State) -> State:
        """A state whose memory is arrays again."""
        return state._replace(memory=self.clients.collected(state.memory))


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
) -> Iterator[Step]:
    """A function from a state to the state one round later.

    Local steps draw as steps first_step, ... of their rounds would, so that two runs may share draws or not. The
    clients' memory is part of the state unless the engine has them elsewhere or a folder is given for it.
    """
    with open_clients(problem, method, engine, batches, seed=seed, first_step=first_step, folder=folder) as clients:

        @lru_cache(maxsize=1)
        def uniforms_of(block: int, repetitions: int) -> Array:
            return round_uniforms(seed, repetitions, range(block * AT_ONCE, (block + 1) * AT_ONCE))

        yield Step(problem, method, batches, clients, seed, limit, uniforms_of)


def _diverged(problem: Problem, method: Method, batches: Batches, round: int, largest: WorstClient) -> Diverged:
    """Which client went first, and what would have been safe."""
    local: Any = problem if getattr(problem, "smoothness_is_local", False) else None
    measured = problem if local is None else local.subset([largest.client])  # networks are slow to measure
    safe = method.safe_step_size(measured.smoothness(batches), problem.strong_convexity())
    advice = f"step_size={safe:.3g} is safe for this problem and batch size."
    if local is not None:
        advice = f"Going by its curvature where it started, step_size={safe:.3g} should do; this is an estimate."
    if safe == 0.0:
        advice = "No step size can be vouched for here; try a tenth of this one."
    return Diverged(
        f"{type(method).__name__} diverged in round {round}: client {largest.client}'s model reached "
        f"{largest.size:.3g} with {_in_words(method)}. {advice}",
        round=round,
        client=largest.client,
        safe_step_size=safe,
    )


def _in_words(method: Method) -> str:
    """step_size=0.05, local_steps=100 and what else was chosen."""
    if not is_dataclass(method):
        return f"step_size={method.step_size:g}"
    chosen = ((field.name, getattr(method, field.name), field.default) for field in fields(method))
    return ", ".join(
        f"{name}={value:g}" if isinstance(value, float) else f"{name}={value}"
        for name, value, default in chosen
        if value != default
    )
