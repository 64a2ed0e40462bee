"""The Ray engine: blocks of clients in actors, on this machine's cores or on a cluster."""

import importlib
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from fedscaffold.core.checks import whole_number
from fedscaffold.core.errors import InvalidInput, MissingDependency
from fedscaffold.core.random.batches import Batches
from fedscaffold.core.sums import LEAF
from fedscaffold.core.types import Engine, LocalSgd, Method, Problem
from fedscaffold.engines.numba_.engine import Numba
from fedscaffold.engines.ray_.shards import Shards


@dataclass(frozen=True, kw_only=True)
class Ray:
    """Clients in shards, each an actor with its clients' records and memory; the same bits for any number of them.

    A round moves the server's state down and a sum up per shard. A shard whose worker dies is built again from
    its last snapshot, and what has happened since is done again. Where Ray runs already it is used, else it is
    started on this machine and stopped at the end.

    Parameters
    ----------
    shards
        How many; None for one per processor that Ray has. A shard holds whole leaves of 64 clients.
    within
        The engine that each shard runs; `Numba(threads=1)` by default.
    address
        Of a cluster, as `ray.init` takes it; None for this machine or for where Ray runs already.
    snapshot_every
        Rounds between two snapshots of the clients' memory, kept in Ray's object store.
    """

    shards: int | None = None
    within: Engine = field(default_factory=lambda: Numba(threads=1))
    address: str | None = None
    snapshot_every: int = 10

    def __post_init__(self) -> None:
        if self.shards is not None:
            whole_number("shards", self.shards, least=1)
        whole_number("snapshot_every", self.snapshot_every, least=1)
        if isinstance(self.within, Ray) or not hasattr(self.within, "open"):
            raise InvalidInput(
                f"within is the engine of each shard, such as Numba(threads=1); got {self.within!r}"
            )

    @property
    def name(self) -> str:
        """That of the engine within: shards don't change the numbers, and either can go on from the other's."""
        return self.within.name

    def open(
        self, problem: Any, batches: Batches, *, seed: int, first_client: int = 0
    ) -> AbstractContextManager[LocalSgd]:
        """Local steps alone are taken in this process."""
        return self.within.open(problem, batches, seed=seed, first_client=first_client)

    @contextmanager
    def running(self) -> Iterator[Any]:
        """Ray, started unless it runs already, and then stopped at the end."""
        ray = _ray()
        started = not ray.is_initialized()
        if started:
            ray.init(address=self.address, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
        try:
            yield ray
        finally:
            if started:
                ray.shutdown()

    @contextmanager
    def host(
        self, problem: Problem, method: Method, batches: Batches, *, seed: int, first_step: int
    ) -> Iterator[Shards]:
        """Start Ray unless it runs, and the actors."""
        if not hasattr(problem, "subset"):
            raise InvalidInput(f"a {type(problem).__name__} problem cannot be divided into shards")
        with self.running() as ray:
            processors = ray.cluster_resources().get("CPU", 1.0)
            blocks = split(problem.n_clients, self.shards or int(processors))
            per_shard = min(float(getattr(self.within, "threads", 1) or 1), processors / len(blocks))
            shards = Shards(
                problem, method, self.within, batches, seed=seed, first_step=first_step, blocks=blocks,
                processors=per_shard, snapshot_every=self.snapshot_every,
            )  # fmt: skip
            try:
                yield shards
            finally:
                shards.stop()


def split(n_clients: int, shards: int) -> list[tuple[int, int]]:
    """Blocks of clients, of about equal size, each of whole leaves; fewer than asked for where leaves are few."""
    leaves = -(-n_clients // LEAF)
    shards = min(shards, leaves)
    return list(pairwise([min(n_clients, LEAF * (leaves * k // shards)) for k in range(shards + 1)]))


def _ray() -> Any:
    try:
        return importlib.import_module("ray")
    except ImportError as error:
        raise MissingDependency("the ray engine needs Ray; pip install 'fedscaffold[ray]'") from error
