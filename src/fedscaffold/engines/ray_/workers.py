"""Stores in Ray actors, which are rebuilt when their worker dies: last snapshot, then the calls since."""

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

from fedscaffold.core.protocols import Store, StoreFactory

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
