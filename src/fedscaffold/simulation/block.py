"""The clients' half of a round, for a block of clients: all of them, or those of one machine."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from fedscaffold.core.random.batches import Batches
from fedscaffold.core.sums import PartialSum, parts, partial_sums_of_cohort
from fedscaffold.core.types import Array, Engine, ExchangedGradients, WorstClient, LocalSgd, Method, Problem, RoundInfo, IntArray


class LocalResult(NamedTuple):
    """What those of a block who took part have after their local steps."""

    clients: IntArray | None  # (repetitions, those who took part), counted from the block's first; None for all
    memory: Any
    local: Array
    sent: Array


@dataclass(frozen=True, kw_only=True)
class Block:
    """Clients first, first + 1, ... of n_clients, with their shares of all weight."""

    method: Method
    weights: Array
    n_clients: int
    first: int
    first_step: int
    local_sgd: LocalSgd
    gradients_by: LocalSgd

    def gradients(self, server: Any, told: RoundInfo) -> Array:
        """Each client's gradient at θ: one local step of size one, without correction."""
        clients = self._taking_part(told)
        if clients is not None and clients.size == 0:
            return np.zeros((*clients.shape, server.theta.shape[-1]))
        after_all = self.first_step + int(self._lengths(told, clients).max())
        after = self.gradients_by(
            server.theta, np.zeros((1, 1, server.theta.shape[-1])), step_size=1.0, local_steps=1,
            round=told.round, clients=clients, first_step=after_all,
        )  # fmt: skip
        return server.theta[:, None, :] - after

    def work(self, memory: Any, server: Any, told: RoundInfo, exchanged: ExchangedGradients | None) -> LocalResult:
        """Local steps, and what comes of them."""
        clients = self._taking_part(told)
        if clients is not None:
            memory = type(memory)(*(_of(values, clients) for values in memory))
        lengths = self._lengths(told, clients)
        if clients is not None and clients.size == 0:  # nobody of this block
            nothing = np.zeros((*clients.shape, server.theta.shape[-1]))
            return LocalResult(clients, memory, nothing, nothing)
        local = self.local_sgd(
            server.theta, self.method.correction(memory, server, exchanged), step_size=self.method.step_size,
            local_steps=lengths, round=told.round, clients=clients, first_step=self.first_step,
        )  # fmt: skip
        return LocalResult(clients, memory, local, self.method.message(local, server, lengths))

    def parts(self, values: Array, told: RoundInfo) -> list[PartialSum]:
        """Of Σ w_c v_c over those who take part, what this block adds; their weights sum to one."""
        clients = self._taking_part(told)
        if clients is None:
            return parts(values, self.weights, first=self.first)
        weights = self.weights[clients] / told.share[:, None]
        last = self.first + self.weights.size
        return partial_sums_of_cohort(values, weights, clients + self.first, first=self.first, last=last)

    def remember(self, worked: LocalResult, before: Any, after: Any) -> Any:
        """The memory of those who took part, once they hear the server's next state."""
        return self.method.update_clients(worked.memory, worked.sent, before, after)

    def largest(self, worked: LocalResult) -> WorstClient:
        """To tell who diverged."""
        if worked.local.size == 0:
            return WorstClient(-1.0, self.first)
        sizes = np.nan_to_num(np.abs(worked.local), nan=np.inf).max(axis=2)
        r, k = np.unravel_index(int(sizes.argmax()), sizes.shape)
        client = k if worked.clients is None else worked.clients[r, k]
        return WorstClient(float(sizes[r, k]), self.first + int(client))

    def _taking_part(self, told: RoundInfo) -> IntArray | None:
        if told.cohort is None or self.weights.size == self.n_clients:
            return told.cohort
        here = (told.cohort >= self.first) & (told.cohort < self.first + self.weights.size)
        return told.cohort[here].reshape(len(told.cohort), -1) - self.first

    def _lengths(self, told: RoundInfo, clients: IntArray | None) -> IntArray:
        lengths = self.method.local_step_counts(self.n_clients, told.round_uniform)
        if lengths.shape[1] > 1:
            lengths = lengths[:, self.first : self.first + self.weights.size]
        return lengths if clients is None else _of(lengths, clients)


@contextmanager
def opened(
    problem: Problem,
    method: Method,
    engine: Engine,
    batches: Batches,
    *,
    seed: int,
    first_step: int = 0,
    first: int = 0,
    weights: Array | None = None,
    n_clients: int | None = None,
) -> Iterator[Block]:
    """The problem's clients on an engine; as a block of n_clients, with their weights among these, or as all."""
    with ExitStack() as stack:

        def opened_for(batches: Batches) -> LocalSgd:
            return stack.enter_context(engine.open(problem, batches, seed=seed, first_client=first))

        local_sgd = opened_for(batches)
        yield Block(
            method=method,
            weights=problem.weights if weights is None else weights,
            n_clients=n_clients or problem.n_clients,
            first=first,
            first_step=first_step,
            local_sgd=local_sgd,
            gradients_by=opened_for(Batches()) if method.exchange == "full" else local_sgd,
        )


def _of(values: Any, clients: IntArray) -> Any:
    """The part of (repetitions or 1, clients or 1, ...) that belongs to each repetition's cohort."""
    if values.shape[1] == 1:
        return values
    rows = np.arange(len(clients))[:, None] if len(values) > 1 else 0
    return values[rows, clients]
