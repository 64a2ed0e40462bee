"""The Ray engine: blocks of clients in actors, on this machine's cores or on a cluster."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from fedscaffold.core.checks import given, set_fields, whole_number
from fedscaffold.core.errors import EngineFailed, InvalidInput
from fedscaffold.core.imports import load_optional
from fedscaffold.core.privacy import RecordLevel
from fedscaffold.core.protocols import Engine, LocalSgd, Store, StoreFactory
from fedscaffold.core.random.stream import Batches
from fedscaffold.core.sums import LEAF
from fedscaffold.engines.native.engine import Native

Call = tuple[Any, ...]  # a method's name and its arguments
TRIES = 7  # for one call, before a shard is given up
PAUSE = 0.05  # seconds before the second try; twice as long before each further one, as a new worker takes time


class Empty(Exception):
    """The worker is a new one and has no store yet."""


class Shard:
    """One store in an actor."""

    def __init__(self) -> None:
        self.stack = ExitStack()
        self.store: Store | None = None

    def build(self, factory: StoreFactory, state: Any, calls: list[Call]) -> None:
        """Make the store, place a snapshot of its state if there is one, and repeat the calls since."""
        self.stack.close()
        self.store = self.stack.enter_context(factory())
        if state is not None:
            self.store.place(state)
        for call in calls:
            self.call(*call)

    def call(self, name: str, *arguments: Any) -> Any:
        """Call a method of the store."""
        if self.store is None:
            raise Empty
        return getattr(self.store, name)(*arguments)

    def snapshot(self) -> tuple[bool, Any]:
        """Return True and the state, as two objects, so that only the former need be fetched."""
        return True, self.call("snapshot")


class RayWorkers:
    """A worker pool of Ray actors (`core.protocols.WorkerPool`), with a log of the calls since the snapshots."""

    def __init__(
        self, ray: Any, blocks: Sequence[tuple[int, int]], factory: Callable[[int, int], StoreFactory], *,
        processors: float, snapshot_every: int,
    ) -> None:  # fmt: skip
        self.ray, self.blocks, self.snapshot_every = ray, blocks, snapshot_every
        self.snapshots: list[Any] = [None] * len(blocks)
        self.log: list[Call] = []
        self.rounds_since = 0  # the snapshots
        self.factories = [ray.put(factory(begin, end)) for begin, end in blocks]
        actor: Any = ray.remote(Shard)
        actor = actor.options(max_restarts=-1, num_cpus=processors, scheduling_strategy="SPREAD")
        self.actors = [actor.remote() for _ in blocks]
        self._answers(self._build)

    def call(self, name: str, *arguments: Any, changes: bool = True) -> list[Any]:
        """Call a method of every store at once; shards whose worker has died are rebuilt and asked again."""
        call = (name, *arguments)
        answers = self._answers(lambda actor: actor.call.remote(*call))
        if changes:
            self.log.append(call)
        return answers

    def place(self, states: Sequence[Any]) -> None:
        """Replace the state of every store; the states serve as snapshots."""
        self.snapshots, self.log, self.rounds_since = [self.ray.put(state) for state in states], [], 0
        self._answers(self._build)

    def end_round(self) -> None:
        """Take snapshots every `snapshot_every` rounds."""
        self.rounds_since += 1
        if self.rounds_since >= self.snapshot_every:
            self._take_snapshots()

    def stop(self) -> None:
        """End the actors and the processes in which they run."""
        for actor in self.actors:
            self.ray.kill(actor)

    def _take_snapshots(self) -> None:
        """Take snapshots, which stay with the shards, and bring copies to this machine in case they are lost."""
        taken: dict[Any, Any] = {}

        def take(actor: Any) -> Any:
            done, taken[actor] = actor.snapshot.options(num_returns=2).remote()
            return done

        self._answers(take)
        self.snapshots, self.log, self.rounds_since = [taken[actor] for actor in self.actors], [], 0
        self.ray.wait(self.snapshots, num_returns=len(self.snapshots), fetch_local=True)

    def _answers(self, ask: Callable[[Any], Any]) -> list[Any]:
        asked = [ask(actor) for actor in self.actors]
        return [self._answer(actor, ref, ask) for actor, ref in zip(self.actors, asked, strict=True)]

    def _answer(self, actor: Any, ref: Any, ask: Callable[[Any], Any]) -> Any:
        """Return a shard's answer, though its worker may die some times meanwhile."""
        errors = self.ray.exceptions
        for attempt in range(TRIES):
            try:
                return self.ray.get(ref)
            except errors.RayTaskError as error:
                if not isinstance(error.cause, Empty):
                    raise error.cause from None
            except errors.RayActorError:
                time.sleep(PAUSE * 2**attempt)  # Ray starts another worker
            self._build(actor)
            ref = ask(actor)
        return self.ray.get(ref)

    def _build(self, actor: Any) -> Any:
        """Ask an actor to build its store; calls to an actor are taken in order, so there is no need to wait."""
        k = self.actors.index(actor)
        return actor.build.remote(self.factories[k], self.snapshots[k], self.log)


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
