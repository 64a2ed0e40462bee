"""Where a run's clients and their memory are: in this process, unless the engine or the user says otherwise."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from numpy.typing import ArrayLike

from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.files import folder_at
from fedscaffold.core.random.batches import Batches
from fedscaffold.core.sums import PartialSum
from fedscaffold.core.types import Array, Clients, Engine, ExchangedGradients, DistributedEngine, WorstClient, Method, Problem, RoundInfo
from fedscaffold.simulation.block import Block, LocalResult, opened
from fedscaffold.simulation.client_store import OnDiskClients, put


@dataclass(frozen=True)
class InMemoryClients:
    """Memory is arrays (repetition, client, coordinate) in the run's state, which a round leaves as they were."""

    block: Block

    def start(self, repetitions: int, dim: int, control_variates: ArrayLike | None) -> Any:
        """As the method starts."""
        return self.block.method.init_clients(repetitions, self.block.weights, dim, control_variates)

    def placed(self, memory: Any, round: int) -> Any:
        """They are in place."""
        return memory

    def collected(self, memory: Any) -> Any:
        """They are arrays."""
        return memory

    def holds(self, memory: Any) -> bool:
        """Nothing is overwritten."""
        return True

    def exchange(self, server: Any, told: RoundInfo) -> tuple[list[PartialSum], Array]:
        """Gradients at θ."""
        own = self.block.gradients(server, told)
        return self.block.parts(own, told), own

    def work(self, memory: Any, server: Any, told: RoundInfo, exchanged: ExchangedGradients | None) -> tuple[list[PartialSum], LocalResult]:
        """Local steps."""
        worked = self.block.work(memory, server, told, exchanged)
        return self.block.parts(worked.sent, told), worked

    def largest(self, worked: LocalResult) -> WorstClient:
        """Who went furthest."""
        return self.block.largest(worked)

    def remember(self, memory: Any, worked: LocalResult, before: Any, after: Any) -> Any:
        """Memory in which those who took part have theirs replaced."""
        new = self.block.remember(worked, before, after)
        if worked.clients is None:
            return new
        merged = type(memory)(*(values.copy() for values in memory))
        put(merged, new, worked.clients)
        return merged


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
) -> Iterator[Clients]:
    """The clients, ready for a run; with their memory in files of a folder, if one is given."""
    if isinstance(engine, DistributedEngine):
        if folder is not None:
            raise InvalidInput(f"the {engine.name} engine keeps the clients' memory itself; leave client_state_dir out")
        with engine.host(problem, method, batches, seed=seed, first_step=first_step) as clients:
            yield clients
    else:
        with opened(problem, method, engine, batches, seed=seed, first_step=first_step) as block:
            yield InMemoryClients(block) if folder is None else OnDiskClients(block, folder_at(folder))
