"""The Ray engine: blocks of clients in actors, on this machine's cores or on a cluster."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from fedscaffold.core.checks import given, set_fields, whole_number
from fedscaffold.core.errors import EngineFailed, InvalidInput
from fedscaffold.core.imports import load_optional
from fedscaffold.core.privacy import RecordLevel
from fedscaffold.core.protocols import Engine, LocalSgd, StoreFactory
from fedscaffold.core.random.stream import Batches
from fedscaffold.core.sums import LEAF
from fedscaffold.engines.native.engine import Native
from fedscaffold.engines.ray_.workers import RayWorkers


@dataclass(frozen=True, kw_only=True)
class Ray:
    """Clients divided into shards, each in an actor with its records and state; any number gives the same bits.

    A round moves the server's state to each shard and a sum back. A shard whose worker dies is rebuilt from its
    last snapshot, and the calls since are repeated. A running Ray is used; otherwise one is started on this
    machine and stopped at the end.

    Parameters
    ----------
    shards
        Number of shards; None for one per processor that Ray has. A shard holds whole leaves of 64 clients.
    shard_engine
        The engine that each shard runs; `Native(threads=1)` by default.
    address
        Address of a cluster, as `ray.init` takes it; None for this machine or for a Ray that runs already.
    snapshot_every
        Rounds between two snapshots of the client state, kept in Ray's object store.

    Examples
    --------
    >>> from fedscaffold.engines import Native, Ray
    >>> Ray(shards=2, shard_engine=Native(threads=1)).name
    'native-float64'
    """

    shards: int | None = None
    shard_engine: Engine = field(default_factory=lambda: Native(threads=1))
    address: str | None = None
    snapshot_every: int = 10

    def __post_init__(self) -> None:
        if self.shards is not None:
            set_fields(self, shards=whole_number("shards", self.shards, least=1))
        set_fields(self, snapshot_every=whole_number("snapshot_every", self.snapshot_every, least=1))
        if isinstance(self.shard_engine, Ray) or not isinstance(self.shard_engine, Engine):
            raise InvalidInput(
                f"shard_engine is the engine of each shard, such as Native(threads=1); "
                f"got {given(self.shard_engine)}"
            )

    @property
    def name(self) -> str:
        """Name of the shard engine: shards don't change the numbers, so either can resume the other's runs."""
        return self.shard_engine.name

    def open(
        self,
        problem: Any,
        batches: Batches,
        *,
        seed: int,
        first_client: int = 0,
        privacy: RecordLevel | None = None,
    ) -> AbstractContextManager[LocalSgd]:
        """Return local steps without client state, computed in this process by the shard engine."""
        return self.shard_engine.open(problem, batches, seed=seed, first_client=first_client, privacy=privacy)

    @contextmanager
    def running(self) -> Iterator[Any]:
        """Yield the module `ray`, started unless it runs already, and then stopped at the end."""
        ray = load_optional("ray", "the ray engine needs Ray", extra="ray")
        started = not ray.is_initialized()
        if started:
            self._start(ray)
        try:
            yield ray
        finally:
            if started:
                ray.shutdown()

    def _start(self, ray: Any) -> None:
        try:
            ray.init(address=self.address, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
        except Exception as error:  # Ray raises what its parts raise, down to a plain Exception
            where = "" if self.address is None else f" at the address {given(self.address)}"
            why = " ".join(str(error).split())[:200] or type(error).__name__
            raise EngineFailed(f"Ray did not start{where}: {why}; engine='native' needs none") from error

    @contextmanager
    def open_workers(self, n_clients: int, factory: Callable[[int, int], StoreFactory]) -> Iterator[RayWorkers]:
        """Start one actor per shard; factory(begin, end) makes the store of clients begin, ..., end − 1."""
        with self.running() as ray:
            processors = ray.cluster_resources().get("CPU", 1.0)
            blocks = split(n_clients, self.shards or int(processors))
            threads = float(getattr(self.shard_engine, "threads", 1) or 1)
            workers = RayWorkers(
                ray, blocks, factory, processors=min(threads, processors / len(blocks)),
                snapshot_every=self.snapshot_every,
            )  # fmt: skip
            try:
                yield workers
            finally:
                workers.stop()


def split(n_clients: int, shards: int) -> list[tuple[int, int]]:
    """Return blocks of clients of about equal size, each of whole leaves, and fewer of them if leaves are few."""
    leaves = -(-n_clients // LEAF)
    shards = min(shards, leaves)
    return list(pairwise([min(n_clients, LEAF * (leaves * k // shards)) for k in range(shards + 1)]))
