"""Shards of clients in Ray actors, which are built again when their worker dies."""

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.random.batches import Batches
from fedscaffold.core.types import Engine, Method, Problem
from fedscaffold.simulation.block import opened
from fedscaffold.simulation.client_store import RemoteClients, ClientStore

Call = tuple[Any, ...]  # a method's name and its arguments
CHANGING = ("start", "exchange", "work", "remember")  # calls after which a shard is another
TRIES = 5  # for one call, before a shard is given up


class Empty(Exception):
    """The worker is a new one, and has not been told of its clients."""


class Shard:
    """What runs in an actor: a block of clients and their memory."""

    def __init__(self) -> None:
        self.stack = ExitStack()
        self.held: ClientStore | None = None

    def build(self, problem: Problem, settings: dict[str, Any], memory: Any, calls: list[Call]) -> None:
        """From a snapshot of its memory, if there is one, and the calls since."""
        self.stack.close()
        self.held = ClientStore(self.stack.enter_context(opened(problem, **settings)))
        if memory is not None:
            self.held.place(memory)
        for call in calls:
            self.ask(*call)

    def ask(self, name: str, *arguments: Any) -> Any:
        """Call a method of `ClientStore`."""
        if self.held is None:
            raise Empty
        return getattr(self.held, name)(*arguments)

    def snapshot(self) -> tuple[bool, Any]:
        """The memory, as an object of its own, and that it is there."""
        return True, self.ask("collected")


class Shards(RemoteClients):
    """All shards of a run. The log has what they were told since their snapshots."""

    def __init__(
        self, problem: Problem, method: Method, engine: Engine, batches: Batches, *, seed: int, first_step: int,
        blocks: list[tuple[int, int]], processors: float, snapshot_every: int,
    ) -> None:  # fmt: skip
        import ray

        self.ray, self.problem, self.method = ray, problem, method
        self.blocks, self.snapshot_every = blocks, snapshot_every
        self.snapshots: list[Any] = [None] * len(blocks)
        self.log: list[Call] = []
        self.since = 0  # rounds since the snapshots
        self.parts = [ray.put(_part(problem, begin, end)) for begin, end in blocks]
        common = {
            "method": method, "engine": engine, "batches": batches, "seed": seed, "first_step": first_step,
            "n_clients": problem.n_clients,
        }  # fmt: skip
        self.settings = [common | {"first": a, "weights": problem.weights[a:b]} for a, b in blocks]
        actor: Any = ray.remote(Shard)
        actor = actor.options(max_restarts=-1, num_cpus=processors, scheduling_strategy="SPREAD")
        self.actors = [actor.remote() for _ in blocks]
        self._answers(self._build)

    def ask(self, name: str, *arguments: Any) -> list[Any]:
        """All at once; those whose worker has died are built again and asked again."""
        call = (name, *arguments)
        answers = self._answers(lambda actor: actor.ask.remote(*call))
        if name in CHANGING:
            self.log.append(call)
        if name == "remember":
            self.since += 1
            if self.since >= self.snapshot_every:
                self._take_snapshots()
        return answers

    def begin(self, repetitions: int, dim: int, control_variates: ArrayLike | None) -> None:
        """Each its own; where values are given they are checked and divided here."""
        some = self.method.participants(self.problem.n_clients) < self.problem.n_clients
        if some and repetitions > 1 and len(self.blocks) > 1:
            raise InvalidInput("the ray engine takes cohorts in one repetition at a time; give each its own seed")
        if control_variates is None:
            self.ask("start", repetitions, dim, None)
        else:
            self.place(self.method.init_clients(repetitions, self.problem.weights, dim, control_variates), 0)

    def place(self, memory: Any, round: int) -> None:
        """Divide it, and take the parts for snapshots."""
        parts = [type(memory)(*(values[:, a:b] for values in memory)) for a, b in self.blocks]
        self.snapshots, self.log, self.since = [self.ray.put(part) for part in parts], [], 0
        self._answers(self._build)

    def join(self, found: list[Any]) -> Any:
        """Client after client."""
        return type(found[0])(*(np.concatenate(values, axis=1) for values in zip(*found, strict=True)))

    def stop(self) -> None:
        """End the actors."""
        for actor in self.actors:
            self.ray.kill(actor)

    def _take_snapshots(self) -> None:
        """Where the shards are; a copy is brought to this machine, in case theirs is lost."""
        taken: dict[Any, Any] = {}

        def take(actor: Any) -> Any:
            there, taken[actor] = actor.snapshot.options(num_returns=2).remote()
            return there

        self._answers(take)
        self.snapshots, self.log, self.since = [taken[actor] for actor in self.actors], [], 0
        self.ray.wait(self.snapshots, num_returns=len(self.snapshots), fetch_local=True)

    def _answers(self, ask: Callable[[Any], Any]) -> list[Any]:
        asked = [ask(actor) for actor in self.actors]
        return [self._answer(actor, ref, ask) for actor, ref in zip(self.actors, asked, strict=True)]

    def _answer(self, actor: Any, ref: Any, ask: Callable[[Any], Any]) -> Any:
        """What a shard answers, though its worker may die some times meanwhile."""
        errors = self.ray.exceptions
        for _ in range(TRIES):
            try:
                return self.ray.get(ref)
            except errors.RayTaskError as error:
                if not isinstance(error.cause, Empty):
                    raise error.cause from None
            except errors.RayActorError:
                pass  # Ray starts another worker
            self._build(actor)
            ref = ask(actor)
        return self.ray.get(ref)

    def _build(self, actor: Any) -> Any:
        """Calls to an actor are taken in order, so there is no need to wait."""
        k = self.actors.index(actor)
        return actor.build.remote(self.parts[k], self.settings[k], self.snapshots[k], self.log)


def _part(problem: Any, begin: int, end: int) -> Any:
    return problem if end - begin == problem.n_clients else problem.subset(np.arange(begin, end))
