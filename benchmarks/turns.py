"""Contenders in processes of their own, which take turns: none disturbs another, and all see the same machine."""

import multiprocessing
import os
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from benchmarks import c_limit, contenders
from benchmarks.contenders import LOCAL_STEPS, Round, Workload
from fedscaffold.problems import Logistic, Multinomial, Ridge

SECONDS_OF_A_TURN = 0.01  # at least; short rounds are repeated
KINDS = {kind.kind: kind for kind in (Ridge, Logistic, Multinomial)}


@dataclass(frozen=True)
class Shape:
    """A workload that a process can make for itself."""

    kind: str
    n_clients: int
    dim: int  # features
    batch: int | None = contenders.BATCH
    dtype: str = "float64"

    def workload(self) -> Workload:
        """The records, drawn from a fixed seed."""
        return contenders.workload(KINDS[self.kind], self.n_clients, self.dim, self.batch, self.dtype)


@dataclass(frozen=True)
class Contender:
    """One way to run the local steps, by its name in `rounds_of`, and on how many clients at most to time it."""

    name: str
    cores: int = 1
    at_most: int | None = None


@dataclass(frozen=True)
class Timing:
    """Best nanoseconds per client and step, by the clock and of processor time, and the form that took them."""

    clock: float
    processor: float
    form: str


def rounds_of(name: str, work: Workload, stack: ExitStack) -> Mapping[str, Round]:
    """The functions to time, by the name of their form; of several the fastest counts."""
    if name == "c_limit":
        return stack.enter_context(c_limit.c_limit(work))
    threads = {"one_thread": 1, "two_threads": 2}
    if name in threads:
        return {name: stack.enter_context(contenders.ours(work, threads[name]))}
    opened = {
        "numpy_across": contenders.numpy_across,
        "numpy_loop": contenders.numpy_loop,
        "jax": contenders.jax_map,
    }
    return {name: stack.enter_context(opened[name](work))}


def serve(pipe: Connection, contender: Contender, shape: Shape, cores: list[int]) -> None:
    """A contender's process: get ready, tell the norm of some models, then time a turn whenever asked to."""
    os.sched_setaffinity(0, cores[-contender.cores :])
    work = shape.workload()
    if contender.at_most is not None and contender.at_most < work.clients:
        work = work.first_clients(contender.at_most)
    with ExitStack() as stack:
        rounds = rounds_of(contender.name, work, stack)
        models = {name: one_round()[:20].copy() for name, one_round in rounds.items()}
        pipe.send({name: float(np.linalg.norm(found)) for name, found in models.items()})
        while pipe.recv():
            pipe.send({name: _turn(one_round, work.clients) for name, one_round in rounds.items()})


def _turn(one_round: Round, clients: int) -> tuple[float, float]:
    """Nanoseconds of the best round in a turn, by the clock and of processor time."""
    clock = processor = np.inf
    end = time.perf_counter() + SECONDS_OF_A_TURN
    while True:
        began, used = time.perf_counter(), time.process_time()
        one_round()
        clock = min(clock, time.perf_counter() - began)
        processor = min(processor, time.process_time() - used)
        if time.perf_counter() > end:
            return clock * 1e9 / clients / LOCAL_STEPS, processor * 1e9 / clients / LOCAL_STEPS


def measure(contenders_: list[Contender], shape: Shape, turns: int) -> dict[str, Timing]:
    """Best time of each contender, each in its own process, taking turns."""
    context = multiprocessing.get_context("spawn")
    cores = sorted(os.sched_getaffinity(0))
    ends: dict[str, Any] = {}
    processes = []
    best: dict[str, Timing] = {}
    try:
        for contender in contenders_:
            here, there = context.Pipe()
            process = context.Process(target=serve, args=(there, contender, shape, cores), daemon=True)
            process.start()
            there.close()
            processes.append(process)
            ends[contender.name] = here
        norms = {name: end.recv() for name, end in ends.items()}
        found = np.array([norm for forms in norms.values() for norm in forms.values()])
        if not np.allclose(found, found[0], rtol=0.15):
            raise RuntimeError(f"contenders do not compute the same thing: {norms}")
        for _ in range(turns):
            for name, end in ends.items():
                end.send(True)
                for form, (clock, processor) in end.recv().items():
                    old = best.get(name, Timing(np.inf, np.inf, form))
                    best[name] = Timing(
                        min(old.clock, clock),
                        min(old.processor, processor),
                        form if processor < old.processor else old.form,
                    )
    finally:
        for end in ends.values():
            end.send(False)
        for process in processes:
            process.join()
    return best
