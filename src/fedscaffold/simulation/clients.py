"""Where the clients of a run and their state live: in this process, in a folder, or in an engine's workers."""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from fedscaffold.core.errors import InvalidInput, NotWritten
from fedscaffold.core.files import folder_at
from fedscaffold.core.machine import new_array_file
from fedscaffold.core.privacy import ClientLevel, RecordLevel
from fedscaffold.core.protocols import DistributedEngine, Divisible, Method, StoreFactory, WorkerPool
from fedscaffold.core.random.noise import message_noise
from fedscaffold.core.sums import PartialSum
from fedscaffold.core.types import Array, ExchangedGradients, IntArray, RoundInfo, WorstClient
from fedscaffold.simulation.block import Block, LocalResult, open_block
from fedscaffold.simulation.protection import MessageProtection
from fedscaffold.simulation.setup import RunSetup


@dataclass(frozen=True)
class InMemoryClients:
    """Client state is arrays (repetition, client, coordinate) in the run's state; a round is a pure function."""

    block: Block

    def init_state(self, repetitions: int, dim: int, control_variates: ArrayLike | None) -> Any:
        """Return the method's initial client state."""
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
        """Return the partial sums of the gradients at θ, and the gradients themselves."""
        own = self.block.gradients(server, info)
        return self.block.partial_sums(own, info), own

    def run_local_steps(
        self, client_state: Any, server: Any, info: RoundInfo, exchanged: ExchangedGradients | None
    ) -> tuple[list[PartialSum], LocalResult]:
        """Return the partial sums of the messages, and the local results."""
        result = self.block.run_local_steps(client_state, server, info, exchanged)
        return self.block.partial_sums(result.sent, info), result

    def worst_client(self, result: LocalResult) -> WorstClient:
        """Return the client whose local model holds the largest absolute value."""
        return self.block.worst_client(result)

    def update(self, client_state: Any, result: LocalResult, before: Any, after: Any) -> Any:
        """Return a copy of the client state in which the participants' entries are replaced."""
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
        """Return the state of all stores, as named arrays."""
        self._check(client_state)
        found = self.workers.call("snapshot", changes=False)
        if len(found) == 1:
            return found[0]
        return type(found[0])(*(np.concatenate(values, axis=1) for values in zip(*found, strict=True)))

    def is_current(self, client_state: Token) -> bool:
        """Return whether the stores still hold this state."""
        return client_state.round == self.round

    def exchange(self, server: Any, info: RoundInfo) -> tuple[list[PartialSum], Any]:
        """Return the partial sums of the gradients at θ; the clients' own stay in the stores."""
        return _joined(self.workers.call("exchange", server, info)), None

    def run_local_steps(
        self, client_state: Token, server: Any, info: RoundInfo, exchanged: ExchangedGradients | None
    ) -> tuple[list[PartialSum], Any]:
        """Return the partial sums of the messages; the local results stay in the stores."""
        self._check(client_state)
        mean_gradient = None if exchanged is None else exchanged.mean
        return _joined(self.workers.call("run_local_steps", server, info, mean_gradient)), None

    def worst_client(self, result: Any) -> WorstClient:
        """Return the client whose local model holds the largest absolute value."""
        return max(self.workers.call("worst_client", changes=False))

    def update(self, client_state: Token, result: Any, before: Any, after: Any) -> Token:
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


class ClientStore:
    """A block of clients and their state; one call at a time, in the order of a round."""

    def __init__(self, block: Block, folder: Path | None = None) -> None:
        self.block, self.folder = block, folder
        self.client_state: Any = None
        self.own_gradients: Array | None = None
        self.result: LocalResult | None = None

    def init_state(self, repetitions: int, dim: int, control_variates: ArrayLike | None) -> None:
        """Make the initial state; in a folder, piece by piece, unless values are given."""
        weights, method = self.block.weights, self.block.method
        if self.folder is None or control_variates is not None:
            self.place(method.init_clients(repetitions, weights, dim, control_variates))
            return
        count = max(1, (1 << 22) // (repetitions * dim))  # pieces of 32 MB
        nobody = method.init_clients(repetitions, weights[:0], dim, None)
        shape = (repetitions, weights.size, dim)
        self.client_state = type(nobody)(*(self._file(name, shape) for name in nobody._fields))
        for begin in range(0, weights.size, count):
            piece = method.init_clients(repetitions, weights[begin : begin + count], dim, None)
            for values, new in zip(self.client_state, piece, strict=True):
                if new.any():
                    values[:, begin : begin + count] = new

    def place(self, state: Any) -> None:
        """Replace the clients' state."""
        if self.folder is None:
            self.client_state = state
            return
        self.client_state = type(state)(
            *(self._file(name, values.shape) for name, values in state._asdict().items())
        )
        self._overwrite(state)

    def snapshot(self) -> Any:
        """Return the clients' state as it is now."""
        return self.client_state

    def exchange(self, server: Any, info: RoundInfo) -> list[PartialSum]:
        """Return the partial sums of the gradients at θ; the clients' own are kept for `run_local_steps`."""
        self.own_gradients = self.block.gradients(server, info)
        return self.block.partial_sums(self.own_gradients, info)

    def run_local_steps(self, server: Any, info: RoundInfo, mean_gradient: Array | None) -> list[PartialSum]:
        """Return the partial sums of the messages; the result is kept for `update`."""
        exchanged = None
        if mean_gradient is not None and self.own_gradients is not None:
            exchanged = ExchangedGradients(self.own_gradients, mean_gradient)
        self.result = self.block.run_local_steps(self.client_state, server, info, exchanged)
        return self.block.partial_sums(self.result.sent, info)

    def worst_client(self) -> WorstClient:
        """Return the client whose local model was largest in the last local steps."""
        assert self.result is not None
        return self.block.worst_client(self.result)

    def update(self, before: Any, after: Any) -> None:
        """Update the state of the clients that took part."""
        assert self.result is not None
        new = self.block.update(self.result, before, after)
        if self.result.clients is not None:
            replace_rows(self.client_state, new, self.result.clients)
        elif self.folder is None:
            self.client_state = new
        else:
            self._overwrite(new)
        self.result = self.own_gradients = None

    def _file(self, name: str, shape: tuple[int, ...]) -> Array:
        assert self.folder is not None
        try:
            return new_array_file(self.folder / f"{name}.npy", shape)
        except OSError as error:
            raise NotWritten(f"cannot keep client state in {self.folder}: {error.strerror or error}") from None

    def _overwrite(self, state: Any) -> None:
        for values, new in zip(self.client_state, state, strict=True):
            values[...] = new


def replace_rows(client_state: Any, new: Any, clients: IntArray) -> None:
    """Replace the state of some clients (repetitions, clients), in place."""
    rows = np.arange(len(clients))[:, None]
    for values, part in zip(client_state, new, strict=True):
        values[rows, clients] = part


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


Clients = InMemoryClients | StoredClients


@contextmanager
def open_clients(setup: RunSetup) -> Iterator[Clients]:
    """Open the clients of a run, with their state in files of `setup.folder` if there is one."""
    problem, method, engine, weights = setup.problem, setup.method, setup.engine, setup.problem.weights
    if isinstance(engine, DistributedEngine):
        if setup.folder is not None:
            raise InvalidInput(
                f"the {engine.name} engine keeps the clients' state in its workers; leave client_state_dir out"
            )

        def factory(begin: int, end: int) -> StoreFactory:
            return partial(open_store, shard_of(replace(setup, engine=engine.shard_engine), begin, end))

        if not isinstance(problem, Divisible):
            raise InvalidInput(f"a {type(problem).__name__} problem cannot be divided among workers")
        with engine.open_workers(problem.n_clients, factory) as workers:
            yield StoredClients(workers, method, weights)
        return
    with open_shard(shard_of(setup, 0, problem.n_clients)) as block:
        if setup.folder is None:
            yield InMemoryClients(block)
        else:
            yield StoredClients(LocalPool(ClientStore(block, folder_at(setup.folder))), method, weights)


class ClientShard(NamedTuple):
    """Consecutive clients of a run, which one process holds."""

    setup: RunSetup  # whose problem has these clients alone
    weights: Array  # their shares of the total weight of all clients
    n_clients: int  # of all shards together
    first: int  # index of the first client of this shard
    protect: MessageProtection | None


def shard_of(setup: RunSetup, begin: int, end: int) -> ClientShard:
    """Return clients begin, ..., end − 1 of a run, without the records of the others."""
    problem, privacy, weights = setup.problem, setup.privacy, setup.problem.weights
    n_clients, protect = problem.n_clients, None
    if isinstance(privacy, ClientLevel):
        scales = privacy.noise_scales(weights, float(weights.max()), setup.method.participants(n_clients))
        protect = MessageProtection(privacy, scales[begin:end], partial(message_noise, setup.seed, begin))
    if end - begin < n_clients:
        assert isinstance(problem, Divisible)
        setup = replace(setup, problem=problem.subset(np.arange(begin, end)), control_variates=None)
    return ClientShard(setup, weights[begin:end], n_clients, begin, protect)


def open_shard(shard: ClientShard) -> AbstractContextManager[Block]:
    """Open the engine for the clients of a shard, and return them as a block."""
    setup = shard.setup
    own: dict[str, Any] = {"first_client": shard.first} if shard.first else {}
    if isinstance(setup.privacy, RecordLevel):  # engines that cannot clip need not know of privacy
        own["privacy"] = setup.privacy
    return open_block(
        setup.method, partial(setup.engine.open, setup.problem, seed=setup.seed, **own), setup.batches,
        weights=shard.weights, n_clients=shard.n_clients, seed=setup.seed, first=shard.first,
        first_step=setup.first_step, protect=shard.protect,
    )  # fmt: skip


@contextmanager
def open_store(shard: ClientShard) -> Iterator[ClientStore]:
    """Open a shard together with the state of its clients, in memory."""
    with open_shard(shard) as block:
        yield ClientStore(block)
