"""The same bits on any number of threads, and how clients are divided among calls."""

import os
import signal
import subprocess
import sys
import threading
import time
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedscaffold as fs
from fedscaffold.core.random.stream import Batches
from fedscaffold.engines.native import engine as native
from fedscaffold.engines.native.records import NativeRecords
from tests.samples import KINDS, Kind, make

RECORDS = NativeRecords(make("ridge"), Batches(2), "float64", seed=0)


@given(st.integers(1, 5000), st.integers(0, 10**13), st.integers(1, 64))
def test_calls_are_all_clients_once_and_in_order(n_clients: int, work: int, threads: int) -> None:
    calls = list(native._calls(RECORDS, np.arange(n_clients)[None, :], work, threads))
    assert [c for begin, end in calls for c in range(begin, end)] == list(range(n_clients))
    assert all(end > begin for begin, end in calls)
    assert len(calls) == min(n_clients, max(1, work // (native.NUMBERS_PER_CALL * threads)))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_the_number_of_threads_does_not_change_a_bit(kind: Kind, dtype: Any) -> None:
    sizes = [20 + c % 7 for c in range(50)]
    problem = make(kind, sizes, 7)
    enough = (
        20 * native.NUMBERS_WORTH_A_THREAD // (2 * len(sizes) * problem.dim * 10) + 1
    )  # steps for five threads

    def bits(threads: int) -> list[bytes]:
        method = fs.Scaffold(step_size=0.05, local_steps=enough)
        engine = fs.engines.Native(threads=threads, dtype=dtype)
        trace = fs.run(problem, method, rounds=3, batch_size=10, repetitions=2, engine=engine)
        return [trace.theta.tobytes(), trace.control_variates.tobytes(), trace.mse.tobytes()]

    alone = bits(1)
    assert bits(2) == alone
    assert bits(5) == alone


def test_runs_of_several_python_threads_at_once() -> None:
    """One call at a time has the helpers; those meanwhile run alone."""
    problem, method = make("logistic", [30] * 40, 7), fs.Scaffold(step_size=0.05, local_steps=400)
    found: list[bytes] = []

    def one() -> None:
        trace = fs.run(problem, method, rounds=10, batch_size=10, engine=fs.engines.Native(threads=2))
        found.append(trace.theta.tobytes())

    several = [threading.Thread(target=one) for _ in range(4)]
    for thread in several:
        thread.start()
    for thread in several:
        thread.join()
    assert len(found) == 4
    assert len(set(found)) == 1


SMALL = """
import os, sys
import fedscaffold as fs
problem = fs.problems.Ridge([[[1.0]] * 50] * 40, [[1.0] * 50] * 40, l2=0.1)
method = fs.Scaffold(step_size=0.05, local_steps=20_000)
def run():
    return fs.run(problem, method, rounds=3, batch_size=10, engine=fs.engines.Native(threads=2)).theta.tobytes()
before = run()
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_forked_process_starts_threads_of_its_own() -> None:
    code = SMALL + (
        "child = os.fork()\n"
        "same = run() == before\n"
        "if child == 0: os._exit(0 if same else 1)\n"
        "sys.exit(not same or os.waitpid(child, 0)[1])"
    )
    assert subprocess.run([sys.executable, "-W", "ignore", "-c", code], timeout=60).returncode == 0


@pytest.mark.skipif(os.name != "posix", reason="signals are sent as POSIX does")
def test_an_interrupt_is_heard_during_a_long_round() -> None:
    code = SMALL.replace("20_000", "50_000_000").replace("before = run()", "print('begun', flush=True); run()")
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "begun\n"
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=20)  # the round alone would take minutes
    assert "KeyboardInterrupt" in errors


def test_runs_where_the_system_does_not_report_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """MacOS and Windows have no os.sched_getaffinity."""
    method = fs.FedAvg(step_size=0.1, local_steps=2)
    usual = fs.run(make("ridge"), method, rounds=2, batch_size=1).theta
    monkeypatch.delattr(os, "sched_getaffinity")
    np.testing.assert_array_equal(fs.run(make("ridge"), method, rounds=2, batch_size=1).theta, usual)
