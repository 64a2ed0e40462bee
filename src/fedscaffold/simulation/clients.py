"""Where the clients of a run and their state live: in this process, in a folder, or in an engine's workers."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.privacy import ClientLevel, Privacy, RecordLevel
from fedscaffold.core.protocols import (
    Clients,
    DistributedEngine,
    Divisible,
    Engine,
    Method,
    Problem,
    StoreFactory,
    WorkerPool,
)
from fedscaffold.core.random.batches import Batches
from fedscaffold.core.random.noise import message_noise
from fedscaffold.core.storage.files import folder_at
from fedscaffold.core.sums import PartialSum
from fedscaffold.core.types import Array, ExchangedGradients, RoundInfo, WorstClient
from fedscaffold.simulation.block import Block, LocalResult, open_block
from fedscaffold.simulation.client_store import ClientStore, open_store, replace_rows
from fedscaffold.simulation.protection import MessageProtection


@dataclass(frozen=True)
class InMemoryClients:
    """Client state is arrays (repetition, client, coordinate) in the run's state; a round is a pure function."""

    block: Block

    def init_state(self, repetitions: int, dim: int, control_variates: ArrayLike | None) -> Any:
        """The method's initial client state."""
        return self.block.method.init_clients(repetitions, self.block.weights, dim, control_variates)

    def scatter(self, client_state: Any, round: int) -> Any:
        """Return the arrays as they are."""
        return client_state

    def gather(self, client_state: Any) -> Any:
        """Return the arrays as they are."""
        return client_state

    def is_current(self, client_state: Any) -> bool:
        """Return True: no state is ever overwritten."""
        return True

    def exchange(self, server: Any, info: RoundInfo) -> tuple[list[PartialSum], Array]:
        """Partial sums of the gradients at θ, and the gradients themselves."""
        own = self.block.gradients(server, info)
        return self.block.partial_sums(own, info), own

    def run_local_steps(
        self, client_state: Any, server: Any, info: RoundInfo, exchanged: ExchangedGradients | None
    ) -> tuple[list[PartialSum], LocalResult]:
        """Partial sums of the messages, and the local results."""
        result = self.block.run_local_steps(client_state, server, info, exchanged)
        return self.block.partial_sums(result.sent, info), result

    def worst_client(self, result: LocalResult) -> WorstClient:
        """The client whose local model holds the largest absolute value."""
        return self.block.worst_client(result)

    def update(self, client_state: Any, result: LocalResult, before: Any, after: Any) -> Any:
        """A copy of the client state in which the participants' entries are replaced."""
        new = self.block.update(result, before, after)
        if result.clients is None:
            return new
        merged = type(client_state)(*(values.copy() for values in client_state))
        replace_rows(merged, new, result.clients)
        return merged


class Token(NamedTuple):
    """Stands in a run's state for client state that is kept elsewhere: the state before this round."""

    round: int


class StoredClients:
    """Clients whose state is kept in the stores of a worker pool and changes there in place."""

    def __init__(self, workers: WorkerPool, method: Method, weights: Array) -> None:
        self.workers, self.method, self.weights = workers, method, weights
        self.round = -1  # the round before which the stores stand; -1 while they change

    def init_state(self, repetitions: int, dim: int, control_variates: ArrayLike | None) -> Token:
        """Make the initial state in every store; given values are checked and divided here."""
        n_clients = self.weights.size
        if self.method.participants(n_clients) < n_clients and repetitions > 1 and len(self.workers.blocks) > 1:
            raise InvalidInput(
                "an engine with several workers takes cohorts in one repetition at a time; run each repetition "
                "with a seed of its own"
            )
        if control_variates is not None:
            state = self.method.init_clients(repetitions, self.weights, dim, control_variates)
            return self.scatter(state, 0)
        self.workers.call("init_state", repetitions, dim, None)
        return self._now(0)

    def scatter(self, client_state: Any, round: int) -> Token:
        """Divide named arrays among the stores."""
        self.workers.place(
            [type(client_state)(*(v[:, begin:end] for v in client_state)) for begin, end in self.workers.blocks]
        )
        return self._now(round)

    def gather(self, client_state: Token) -> Any:
        """The state of all stores, as named arrays."""
        self._check(client_state)
        found = self.workers.call("snapshot", changes=False)
        if len(found) == 1:
            return found[0]
        return type(found[0])(*(np.concatenate(values, axis=1) for values in zip(*found, strict=True)))

    def is_current(self, client_state: Token) -> bool:
        """Whether the stores still hold this state."""
        return client_state.round == self.round

    def exchange(self, server: Any, info: RoundInfo) -> tuple[list[PartialSum], None]:
        """Partial sums of the gradients at θ; the clients' own stay in the stores."""
        return _joined(self.workers.call("exchange", server, info)), None

    def run_local_steps(
        self, client_state: Token, server: Any, info: RoundInfo, exchanged: ExchangedGradients | None
    ) -> tuple[list[PartialSum], None]:
        """Partial sums of the messages; the local results stay in the stores."""
        self._check(client_state)
        mean_gradient = None if exchanged is None else exchanged.mean
        return _joined(self.workers.call("run_local_steps", server, info, mean_gradient)), None

    def worst_client(self, result: None) -> WorstClient:
        """The client whose local model holds the largest absolute value."""
        return max(self.workers.call("worst_client", changes=False))

    def update(self, client_state: Token, result: None, before: Any, after: Any) -> Token:
        """Let every store update its clients that took part; returns the token of the next round."""
        self.round = -1
        self.workers.call("update", before, after)
        self.workers.end_round()
        return self._now(client_state.round + 1)

    def _now(self, round: int) -> Token:
        self.round = round
        return Token(round)

    def _check(self, client_state: Token) -> None:
        if not self.is_current(client_state):
            raise InvalidInput(f"the client state before round {client_state.round} has been overwritten since")


def _joined(found: Sequence[list[PartialSum]]) -> list[PartialSum]:
    return [part for parts in found for part in parts]


class LocalPool:
    """A worker pool of one store, in this process."""

    def __init__(self, store: ClientStore) -> None:
        self.store = store
        self.blocks: Sequence[tuple[int, int]] = [(0, store.block.n_clients)]

    def call(self, name: str, *arguments: Any, changes: bool = True) -> list[Any]:
        """Call a method of the store."""
        return [getattr(self.store, name)(*arguments)]

    def place(self, states: Sequence[Any]) -> None:
        """Replace the store's state."""
        self.store.place(states[0])

    def end_round(self) -> None:
        """Do nothing: this pool takes no snapshots."""


@contextmanager
def open_clients(
    problem: Problem,
    method: Method,
    engine: Engine,
    batches: Batches,
    *,
    seed: int,
    first_step: int = 0,
    folder: str | os.PathLike[str] | None = None,
    privacy: Privacy | None = None,
) -> Iterator[Clients]:
    """The clients of a problem, ready for a run; with their state in files of a folder, if one is given."""
    n_clients, weights = problem.n_clients, problem.weights
    shared: dict[str, Any] = {"n_clients": n_clients, "first_step": first_step}
    own: dict[str, Any] = (
        {"privacy": privacy} if isinstance(privacy, RecordLevel) else {}
    )  # other engines need not know of it

    def protection(begin: int, end: int) -> MessageProtection | None:
        if not isinstance(privacy, ClientLevel):
            return None
        scales = privacy.noise_scales(weights, float(weights.max()), method.participants(n_clients))
        return MessageProtection(privacy, scales[begin:end], partial(message_noise, seed, begin))

    if isinstance(engine, DistributedEngine):
        if folder is not None:
            raise InvalidInput(
                f"the {engine.name} engine keeps the clients' state in its workers; leave client_state_dir out"
            )
        if not isinstance(problem, Divisible):
            raise InvalidInput(f"a {type(problem).__name__} problem cannot be divided among workers")

        def factory(begin: int, end: int) -> StoreFactory:
            part = problem if end - begin == n_clients else problem.subset(np.arange(begin, end))
            return partial(
                open_store, part, method, engine.shard_engine, batches, seed=seed, weights=weights[begin:end],
                first=begin, protect=protection(begin, end), **own, **shared,
            )  # fmt: skip

        with engine.open_workers(n_clients, factory) as workers:
            yield StoredClients(workers, method, weights)
        return
    open_local_sgd = partial(engine.open, problem, seed=seed, **own)
    protect = protection(0, n_clients)
    with open_block(
        method, open_local_sgd, batches, weights=weights, seed=seed, protect=protect, **shared
    ) as block:
        if folder is None:
            yield InMemoryClients(block)
        else:
            yield StoredClients(LocalPool(ClientStore(block, folder_at(folder))), method, weights)
