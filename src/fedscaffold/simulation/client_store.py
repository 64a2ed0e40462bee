"""Clients whose memory is not part of the run's state but held beside it, changing in place."""

from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.sums import PartialSum
from fedscaffold.core.types import Array, ExchangedGradients, WorstClient, RoundInfo, IntArray
from fedscaffold.simulation.block import Block, LocalResult

NUMBERS_AT_ONCE = 1 << 22  # that a copy to disk moves


class ClientStore:
    """A block of clients and their memory, in this process's memory or in a folder."""

    def __init__(self, block: Block, folder: Path | None = None) -> None:
        self.block, self.folder = block, folder
        self.memory: Any = None
        self.own: Array | None = None
        self.worked: LocalResult | None = None

    def start(self, repetitions: int, dim: int, control_variates: ArrayLike | None) -> None:
        """As the method starts; in a folder without ever being elsewhere, unless values are given."""
        weights, method = self.block.weights, self.block.method
        if self.folder is None or control_variates is not None:
            self.place(method.init_clients(repetitions, weights, dim, control_variates))
            return
        some = max(1, NUMBERS_AT_ONCE // (repetitions * dim))
        first = method.init_clients(repetitions, weights[:some], dim, None)
        shape = (repetitions, weights.size, dim)
        self.memory = type(first)(*(self._file(name, shape) for name in first._fields))
        for begin in range(0, weights.size, some):
            block = method.init_clients(repetitions, weights[begin : begin + some], dim, None)
            for values, new in zip(self.memory, block, strict=True):
                if new.any():
                    values[:, begin : begin + some] = new

    def place(self, memory: Any) -> None:
        """Hold this."""
        if self.folder is None:
            self.memory = memory
            return
        self.memory = type(memory)(*(self._file(name, values.shape) for name, values in memory._asdict().items()))
        self._overwrite(memory)

    def collected(self) -> Any:
        """The memory, as it is now."""
        return self.memory

    def exchange(self, server: Any, told: RoundInfo) -> list[PartialSum]:
        """Gradients at θ, which are kept until `work`."""
        self.own = self.block.gradients(server, told)
        return self.block.parts(self.own, told)

    def work(self, server: Any, told: RoundInfo, mean_gradient: Array | None) -> list[PartialSum]:
        """Local steps, whose result is kept until `remember`."""
        exchanged = None if mean_gradient is None or self.own is None else ExchangedGradients(self.own, mean_gradient)
        self.worked = self.block.work(self.memory, server, told, exchanged)
        return self.block.parts(self.worked.sent, told)

    def largest(self) -> WorstClient:
        """Of the local steps just taken."""
        assert self.worked is not None
        return self.block.largest(self.worked)

    def remember(self, before: Any, after: Any) -> None:
        """Change the memory of those who took part."""
        assert self.worked is not None
        new = self.block.remember(self.worked, before, after)
        if self.worked.clients is not None:
            put(self.memory, new, self.worked.clients)
        elif self.folder is None:
            self.memory = new
        else:
            self._overwrite(new)
        self.worked = self.own = None

    def _file(self, name: str, shape: tuple[int, ...]) -> Array:
        assert self.folder is not None
        return np.lib.format.open_memmap(self.folder / f"{name}.npy", mode="w+", dtype=np.float64, shape=shape)

    def _overwrite(self, memory: Any) -> None:
        for values, new in zip(self.memory, memory, strict=True):
            values[...] = new


def put(memory: Any, new: Any, clients: IntArray) -> None:
    """Replace the rows of some clients (repetitions, clients), in place."""
    rows = np.arange(len(clients))[:, None]
    for values, part in zip(memory, new, strict=True):
        values[rows, clients] = part


class Token(NamedTuple):
    """Stands in a run's state for memory that is held elsewhere."""

    round: int


class RemoteClients(ABC):
    """Clients that are held, as `fedscaffold.core.types.Clients`: a run's state has a token for their memory."""

    round = -1  # whose memory is held now; none while it changes

    @abstractmethod
    def ask(self, name: str, *arguments: Any) -> list[Any]:
        """Call this method of every `ClientStore`; what they answer, in the order of their clients."""

    @abstractmethod
    def begin(self, repetitions: int, dim: int, control_variates: ArrayLike | None) -> None:
        """Have memory started."""

    @abstractmethod
    def place(self, memory: Any, round: int) -> None:
        """Have these arrays held, as they are before a round."""

    @abstractmethod
    def join(self, found: list[Any]) -> Any:
        """The memory of all, from that of each."""

    def start(self, repetitions: int, dim: int, control_variates: ArrayLike | None) -> Token:
        """Their memory before the first round."""
        self.begin(repetitions, dim, control_variates)
        return self._now(0)

    def placed(self, memory: Any, round: int) -> Token:
        """Their memory before some round."""
        self.place(memory, round)
        return self._now(round)

    def collected(self, memory: Token) -> Any:
        """As named arrays again."""
        self._check(memory)
        return self.join(self.ask("collected"))

    def holds(self, memory: Token) -> bool:
        """Whether it has not been overwritten since."""
        return memory.round == self.round

    def exchange(self, server: Any, told: RoundInfo) -> tuple[list[PartialSum], None]:
        """Parts of the mean gradient at θ."""
        return self._parts("exchange", server, told), None

    def work(self, memory: Token, server: Any, told: RoundInfo, exchanged: ExchangedGradients | None) -> tuple[list[PartialSum], None]:
        """Parts of the mean of what is sent."""
        self._check(memory)
        return self._parts("work", server, told, None if exchanged is None else exchanged.mean), None

    def largest(self, worked: None) -> WorstClient:
        """Who went furthest."""
        return max(self.ask("largest"))

    def remember(self, memory: Token, worked: None, before: Any, after: Any) -> Token:
        """Have the memory changed."""
        self.round = -1
        self.ask("remember", before, after)
        return self._now(memory.round + 1)

    def _parts(self, name: str, *arguments: Any) -> list[PartialSum]:
        return [part for found in self.ask(name, *arguments) for part in found]

    def _now(self, round: int) -> Token:
        self.round = round
        return Token(round)

    def _check(self, memory: Token) -> None:
        if not isinstance(memory, Token):
            raise InvalidInput("an engine that keeps the clients' memory can be used with `run` only")
        if not self.holds(memory):
            raise InvalidInput(f"the clients' memory before round {memory.round} has been overwritten since")


class OnDiskClients(RemoteClients):
    """All clients in this process, their memory in files of a folder."""

    def __init__(self, block: Block, folder: Path) -> None:
        self.held = ClientStore(block, folder)

    def ask(self, name: str, *arguments: Any) -> list[Any]:
        """At once."""
        return [getattr(self.held, name)(*arguments)]

    def begin(self, repetitions: int, dim: int, control_variates: ArrayLike | None) -> None:
        """Straight in the files."""
        self.held.start(repetitions, dim, control_variates)

    def place(self, memory: Any, round: int) -> None:
        """Copy to the files."""
        self.held.place(memory)

    def join(self, found: list[Any]) -> Any:
        """There is one."""
        return found[0]
