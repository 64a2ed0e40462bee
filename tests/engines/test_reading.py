"""Records in files: the same bits as in memory, read ahead of the kernel, and only those of who takes part."""

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedscaffold as fs
from fedscaffold.core.machine import in_file
from fedscaffold.core.random.stream import Batches
from fedscaffold.engines.numba_ import reading
from fedscaffold.engines.numba_.reading import Reading
from fedscaffold.engines.numba_.tables import tables

CLIENTS, RECORDS, DIM = 40, 30, 7
KINDS: dict[str, Any] = {
    "ridge": fs.problems.Ridge,
    "logistic": fs.problems.Logistic,
    "multinomial": fs.problems.Multinomial,
}


def both(kind: str, folder: Path) -> tuple[Any, Any]:
    """The same problem in memory and in files."""
    rng = np.random.default_rng(1)
    x = rng.normal(size=(CLIENTS, RECORDS, DIM)) + rng.normal(size=(CLIENTS, 1, DIM))
    y = x @ rng.normal(size=DIM) + rng.normal(size=(CLIENTS, RECORDS))
    if kind != "ridge":
        y = np.digitize(y, [0.0] if kind == "logistic" else [-1.0, 1.0]).astype(float)
    if kind == "logistic":
        y = 2.0 * y - 1.0
    np.save(folder / "x.npy", x)
    np.save(folder / "y.npy", y)
    mapped = [np.load(folder / f"{name}.npy", mmap_mode="r") for name in "xy"]
    return KINDS[kind](x, y, l2=0.1), KINDS[kind](*mapped, l2=0.1)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("cohort", [None, 11])
def test_the_same_bits(kind: str, cohort: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    held, mapped = both(kind, tmp_path)
    assert in_file(mapped.x)
    assert in_file(mapped.y)
    assert mapped.fingerprint() == held.fingerprint()
    np.testing.assert_array_equal(mapped.optimum(), held.optimum())
    monkeypatch.setattr(reading, "BYTES_PER_BLOCK", 3 * RECORDS * (DIM + 1) * 8)
    method = fs.Scaffold(step_size=0.02, local_steps=9, cohort=cohort)

    def bits(problem: Any, batch_size: int | None, threads: int) -> list[bytes]:
        engine = fs.engines.Numba(threads=threads, specialise=False)
        trace = fs.run(problem, method, rounds=4, batch_size=batch_size, repetitions=2, engine=engine)
        return [trace.theta.tobytes(), trace.control_variates.tobytes(), trace.mse.tobytes()]

    for batch_size in (5, None):
        expected = bits(held, batch_size, 2)
        assert bits(mapped, batch_size, 1) == expected
        assert bits(mapped, batch_size, 3) == expected


class AtOnce:
    """An executor that does not put things off."""

    def submit(self, work: Any, *args: Any) -> None:
        work(*args)


def test_each_block_is_read_before_its_turn_and_let_go_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[tuple[str, int, int]] = []
    monkeypatch.setattr(reading, "BYTES_PER_BLOCK", 4 * RECORDS * (DIM + 1) * 8)
    for name in ("read_ahead", "let_go"):
        monkeypatch.setattr(reading, name, lambda table, b, e, name=name: told.append((name, b, e)))
    files = Reading(tables(both("ridge", tmp_path)[1], Batches(2, "with_replacement"), "float64"))
    everyone = np.arange(CLIENTS)[None, :]
    blocks = files.blocks(everyone, at_least=1)
    assert len(blocks) == 10
    reader: Any = AtOnce()
    work = files.around(lambda b, e: told.append(("work", b, e)), everyone, blocks, reader, again=True)
    for begin, end in blocks:
        rows = (begin * RECORDS, end * RECORDS)
        assert ("read_ahead", *rows) in told
        work(begin, end)
        assert told[-3:] == [("work", begin, end), ("let_go", *rows), ("let_go", *rows)]  # of x and y
    read = [(b, e) for name, b, e in told if name == "read_ahead"]
    assert len(read) == 2 * (10 + reading.BLOCKS_AHEAD)
    assert read[-1] == (12 * RECORDS, 16 * RECORDS)  # for the next round
    told.clear()
    work = files.around(lambda b, e: None, everyone, blocks, reader, again=False)
    for begin, end in blocks:
        work(begin, end)
    assert sum(name == "read_ahead" for name, *_ in told) == 2 * 10


def test_a_cohort_reads_its_own_rows_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[int, int]] = []
    monkeypatch.setattr(reading, "read_ahead", lambda table, b, e: told.append((b, e)))
    monkeypatch.setattr(reading, "let_go", lambda table, b, e: told.append((b, e)))
    files = Reading(tables(both("ridge", tmp_path)[1], Batches(2, "with_replacement"), "float64"))
    clients = np.array([[3, 20, 4], [4, 39, 5]])
    reader: Any = AtOnce()
    files.around(lambda b, e: None, clients, [(0, 3)], reader, again=False)(0, 3)
    rows = {(c * RECORDS, (c + 1) * RECORDS) for c in (20, 39)} | {(3 * RECORDS, 6 * RECORDS)}
    assert set(told) == rows
    assert len(told) == 2 * 2 * 3


def test_blocks_by_bytes_and_by_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    held, mapped = both("ridge", tmp_path)
    batches = Batches(2, "with_replacement")
    assert not Reading(tables(held, batches, "float64"))
    files = Reading(tables(mapped, batches, "float64"))
    assert files
    everyone = np.arange(CLIENTS)[None, :]
    assert files.blocks(everyone, at_least=1) == [(0, CLIENTS)]
    assert len(files.blocks(everyone, at_least=8)) >= 8
    monkeypatch.setattr(reading, "BYTES_PER_BLOCK", 10 * RECORDS * (DIM + 1) * 8)
    assert files.blocks(everyone, at_least=1) == [(0, 10), (10, 20), (20, 30), (30, 40)]
    assert files.blocks(np.concatenate([everyone, everyone]), at_least=1)[0] == (0, 5)


def test_no_copy_is_made(tmp_path: Path) -> None:
    problem = both("ridge", tmp_path)[1]
    read = tables(problem, Batches(2, "with_replacement"), "float64")
    assert np.shares_memory(read.x, problem.x)
    assert np.shares_memory(read.y, problem.y)
    with pytest.raises(fs.InvalidInput, match="would copy all of them into memory; use dtype='float64'"):
        tables(problem, Batches(2, "with_replacement"), "float32")
    some = problem.subset(range(5, 9))
    assert np.shares_memory(some.x, problem.x)
    assert in_file(some.x)
    assert some.fingerprint() == both("ridge", tmp_path)[0].subset([5, 6, 7, 8]).fingerprint()
    with pytest.raises(fs.InvalidInput, match="the jax engine holds all records in memory"):
        fs.run(problem, fs.FedAvg(step_size=0.1, local_steps=1), rounds=1, engine="jax")


def test_threads_are_not_left_behind(tmp_path: Path) -> None:
    before = threading.active_count()
    problem = both("ridge", tmp_path)[1]
    engine = fs.engines.Numba(specialise=False)
    fs.run(problem, fs.FedAvg(step_size=0.01, local_steps=2), rounds=2, batch_size=2, engine=engine)
    assert threading.active_count() == before
