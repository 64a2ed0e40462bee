"""Real processes, killed at any moment and started again, end with the bits of a run that was left alone."""

import multiprocessing
import os
import signal
import time
from pathlib import Path

import numpy as np
import pytest

import fedscaffold as fs
from tests.attacks.killed_run import work

KINDS = ("run", "files", "staged")
FAST, SLOW = 2, 67  # kills of each kind of run


def bits(folder: Path) -> tuple[bytes, ...]:
    trace = fs.Trace.load(folder / "trace.npz")
    return trace.theta.tobytes(), trace.control_variates.tobytes(), *(m.tobytes() for m in trace.metrics.values())


def attack(kind: str, folder: Path, kills: int, seed: int) -> int:
    """Kill runs until there were so many kills; how many there were."""
    processes = multiprocessing.get_context("forkserver")  # which imports once, for all processes
    processes.set_forkserver_preload(["tests.attacks.killed_run"])
    rng, done, number = np.random.default_rng(seed), 0, 0
    alone = folder / "alone"
    alone.mkdir()
    begin = time.monotonic()
    work(kind, alone)
    takes = time.monotonic() - begin
    while done < kills:
        number += 1
        place = folder / str(number)
        place.mkdir()
        while not (place / "trace.npz").exists():
            process = processes.Process(target=work, args=(kind, place))
            process.start()
            process.join(timeout=rng.uniform(0.02, takes))
            if process.is_alive():
                assert process.pid is not None
                os.kill(process.pid, signal.SIGKILL)
                done += 1
            process.join()
            assert process.exitcode in (0, -signal.SIGKILL)
            takes *= 1.1 if process.exitcode else 0.7  # so that about two of three are killed on any machine
        assert bits(place) == bits(alone)
        work(kind, place)  # begins and ends a run, which tidies up
        left = sorted(path.name for path in place.iterdir() if path.name != "state")
        assert left == ["run.npz", "trace.npz"]
    return done


@pytest.mark.parametrize("kind", KINDS)
def test_killed_and_resumed(kind: str, tmp_path: Path) -> None:
    assert attack(kind, tmp_path, FAST, 0) >= FAST


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_two_hundred_times_killed_and_resumed(kind: str, tmp_path: Path) -> None:
    assert attack(kind, tmp_path, SLOW, 1) >= SLOW
