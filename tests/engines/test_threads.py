"""The same bits on any number of threads, and how clients are shared out."""

import os
import threading
from contextlib import closing

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedscaffold as fs
from fedscaffold.engines.numba_.engine import (
    BLOCKS_PER_THREAD,
    NUMBERS_PER_BLOCK,
    NUMBERS_WORTH_A_THREAD,
    split,
)
from fedscaffold.engines.threads import Helpers
from tests.samples import KINDS, Kind, make


@given(st.integers(1, 5000), st.integers(0, 10**13), st.integers(1, 64))
def test_blocks_are_all_clients_once_and_in_order(n_clients: int, work: int, threads: int) -> None:
    blocks = split(n_clients, work, threads)
    assert [c for begin, end in blocks for c in range(begin, end)] == list(range(n_clients))
    lengths = [end - begin for begin, end in blocks]
    assert min(lengths) >= 1
    assert max(lengths) - min(lengths) <= 1


def test_little_work_is_one_block_and_much_is_many() -> None:
    assert split(1000, NUMBERS_WORTH_A_THREAD, 8) == [(0, 1000)]
    assert len(split(1000, 3 * NUMBERS_WORTH_A_THREAD, 8)) == 3 * BLOCKS_PER_THREAD
    assert len(split(1000, 100 * NUMBERS_WORTH_A_THREAD, 2)) == 2 * BLOCKS_PER_THREAD
    assert len(split(1000, 100 * NUMBERS_PER_BLOCK, 2)) == 100
    assert len(split(1000, 100 * NUMBERS_WORTH_A_THREAD, 1)) == 100 * NUMBERS_WORTH_A_THREAD // NUMBERS_PER_BLOCK
    assert len(split(3, 10**12, 2)) == 3


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", ["float64", pytest.param("float32", marks=pytest.mark.slow)])
def test_the_number_of_threads_does_not_change_a_bit(kind: Kind, dtype: str) -> None:
    sizes = [20 + c % 7 for c in range(50)]
    problem = make(kind, sizes, 7)
    one_step = 2 * len(sizes) * problem.dim * 10
    local_steps = 20 * NUMBERS_WORTH_A_THREAD // one_step + 1
    blocks = [len(split(len(sizes), one_step * local_steps, threads)) for threads in (1, 2, 5)]
    assert blocks == [1, 2 * BLOCKS_PER_THREAD, 5 * BLOCKS_PER_THREAD]

    def bits(threads: int) -> list[bytes]:
        engine = fs.engines.Numba(threads=threads, dtype=dtype)  # type: ignore[arg-type]
        method = fs.Scaffold(step_size=0.05, local_steps=local_steps)
        trace = fs.run(problem, method, rounds=3, batch_size=10, repetitions=2, engine=engine)
        return [trace.theta.tobytes(), trace.control_variates.tobytes(), trace.mse.tobytes()]

    alone = bits(1)
    assert bits(2) == alone
    assert bits(5) == alone


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_every_block_runs_once_and_an_error_in_one_ends_the_round(threads: int) -> None:
    blocks = [(k, k + 1) for k in range(17)]
    seen: list[int] = []

    def block(begin: int, end: int) -> None:
        seen.append(begin)

    def failing(begin: int, end: int) -> None:
        if begin == 3:
            raise ArithmeticError("block 3")

    with closing(Helpers(threads - 1)) as helpers:
        for _ in range(3):  # the same threads again, also after an error
            seen.clear()
            helpers.run_blocks(block, blocks)
            assert sorted(seen) == list(range(17))
            with pytest.raises(ArithmeticError, match="block 3"):
                helpers.run_blocks(failing, blocks)


def test_an_error_on_another_thread_is_raised_here() -> None:
    here = threading.get_ident()
    started = threading.Barrier(2, timeout=10)  # both threads have a block

    def block(begin: int, end: int) -> None:
        started.wait()
        if threading.get_ident() != here:
            raise ArithmeticError("there")

    with closing(Helpers(1)) as helpers, pytest.raises(ArithmeticError, match="there"):
        helpers.run_blocks(block, [(0, 1), (1, 2)])


def test_threads_are_not_left_behind() -> None:
    before = threading.active_count()
    fs.run(
        make("ridge"),
        fs.FedAvg(step_size=0.1, local_steps=1),
        rounds=2,
        batch_size=1,
        engine=fs.engines.Numba(threads=4),
    )
    assert threading.active_count() == before


def test_runs_where_the_system_does_not_tell_which_cores_are_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    """MacOS and Windows have no os.sched_getaffinity."""
    method = fs.FedAvg(step_size=0.1, local_steps=2)
    usual = fs.run(make("ridge"), method, rounds=2, batch_size=1).theta
    monkeypatch.delattr(os, "sched_getaffinity")
    np.testing.assert_array_equal(fs.run(make("ridge"), method, rounds=2, batch_size=1).theta, usual)
