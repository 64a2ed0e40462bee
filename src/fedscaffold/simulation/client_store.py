"""A block of clients together with their state, which changes in place, in memory or in a folder."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from fedscaffold.core.errors import NotWritten
from fedscaffold.core.protocols import Engine, Method, Problem
from fedscaffold.core.random.batches import Batches
from fedscaffold.core.storage.memmap import new_array_file
from fedscaffold.core.sums import PartialSum
from fedscaffold.core.types import Array, ExchangedGradients, IntArray, RoundInfo, WorstClient
from fedscaffold.simulation.block import Block, LocalResult, open_block
from fedscaffold.simulation.protection import MessageProtection

NUMBERS_AT_ONCE = 1 << 22  # moved at a time by a copy to disk


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
        count = max(1, NUMBERS_AT_ONCE // (repetitions * dim))
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
        """The clients' state as it is now."""
        return self.client_state

    def exchange(self, server: Any, info: RoundInfo) -> list[PartialSum]:
        """Partial sums of the gradients at θ; the clients' own are kept for `run_local_steps`."""
        self.own_gradients = self.block.gradients(server, info)
        return self.block.partial_sums(self.own_gradients, info)

    def run_local_steps(self, server: Any, info: RoundInfo, mean_gradient: Array | None) -> list[PartialSum]:
        """Partial sums of the messages; the result is kept for `update`."""
        exchanged = None
        if mean_gradient is not None and self.own_gradients is not None:
            exchanged = ExchangedGradients(self.own_gradients, mean_gradient)
        self.result = self.block.run_local_steps(self.client_state, server, info, exchanged)
        return self.block.partial_sums(self.result.sent, info)

    def worst_client(self) -> WorstClient:
        """The client whose local model was largest in the last local steps."""
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


@contextmanager
def open_store(
    problem: Problem,
    method: Method,
    engine: Engine,
    batches: Batches,
    *,
    seed: int,
    weights: Array,
    n_clients: int,
    first: int,
    first_step: int,
    folder: Path | None = None,
    protect: MessageProtection | None = None,
    **own: Any,
) -> Iterator[ClientStore]:
    """The store of a problem's clients, a block of n_clients that begins with client `first`.

    `own` is what the engine is told besides: privacy at the level of records.
    """
    with open_block(
        method, lambda batches: engine.open(problem, batches, seed=seed, first_client=first, **own), batches,
        weights=weights, n_clients=n_clients, seed=seed, first=first, first_step=first_step,
        protect=protect,
    ) as block:  # fmt: skip
        yield ClientStore(block, folder)
