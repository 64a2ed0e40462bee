"""Records in files: the same bits as in memory, read ahead of the kernel, for the participants only."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedscaffold as fs
from fedscaffold.core.machine import in_file
from fedscaffold.core.random.stream import Batches
from fedscaffold.engines.native import engine as native
from fedscaffold.engines.native.records import NativeRecords

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
    monkeypatch.setattr(native, "BYTES_PER_CALL", 3 * RECORDS * (DIM + 1) * 8)
    method = fs.Scaffold(step_size=0.02, local_steps=9, cohort=cohort)

    def bits(problem: Any, batch_size: int | None, threads: int) -> list[bytes]:
        engine = fs.engines.Native(threads=threads)
        trace = fs.run(problem, method, rounds=4, batch_size=batch_size, repetitions=2, engine=engine)
        return [trace.theta.tobytes(), trace.control_variates.tobytes(), trace.mse.tobytes()]

    for batch_size in (5, None):
        expected = bits(held, batch_size, 2)
        assert bits(mapped, batch_size, 1) == expected
        assert bits(mapped, batch_size, 3) == expected


def read(problem: Any, dtype: str = "float64") -> NativeRecords:
    return NativeRecords(problem, Batches(2, "with_replacement"), dtype, seed=0)


def watched(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int, int]]:
    told: list[tuple[str, int, int]] = []
    for name in ("read_ahead", "let_go"):
        monkeypatch.setattr(native, name, lambda table, b, e, name=name: told.append((name, b, e)))
    return told


def test_each_group_is_read_before_its_turn_and_let_go_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = watched(monkeypatch)
    monkeypatch.setattr(native, "BYTES_PER_CALL", 4 * RECORDS * (DIM + 1) * 8)
    calls = native._calls(read(both("ridge", tmp_path)[1]), np.arange(CLIENTS)[None, :], 0, 1)
    groups = []
    for begin, end in calls:
        groups.append((begin, end))
        assert ("read_ahead", begin * RECORDS, (begin + 1) * RECORDS) in told
        assert ("let_go", begin * RECORDS, (begin + 1) * RECORDS) not in told
        later = min(begin + 4, CLIENTS - 1)  # the group after this one is being read already
        assert ("read_ahead", later * RECORDS, (later + 1) * RECORDS) in told
    assert groups == [(4 * k, 4 * k + 4) for k in range(10)]
    each = sorted(2 * [(c * RECORDS, (c + 1) * RECORDS) for c in range(CLIENTS)])  # of x and y
    for name in ("read_ahead", "let_go"):
        assert sorted((b, e) for what, b, e in told if what == name) == each


def test_a_cohort_reads_its_own_rows_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = watched(monkeypatch)
    clients = np.array([[3, 20, 4], [4, 39, 5]])
    assert list(native._calls(read(both("ridge", tmp_path)[1]), clients, 0, 1)) == [(0, 3)]
    assert {(b, e) for _, b, e in told} == {(c * RECORDS, (c + 1) * RECORDS) for c in (3, 4, 5, 20, 39)}


def test_no_copy_is_made(tmp_path: Path) -> None:
    problem = both("ridge", tmp_path)[1]
    x, y, *_ = read(problem).kept
    assert np.shares_memory(x, problem.x)
    assert np.shares_memory(y, problem.y)
    with pytest.raises(fs.InvalidInput, match="would copy all of them into memory; use dtype='float64'"):
        read(problem, "float32")
    some = problem.subset(range(5, 9))
    assert np.shares_memory(some.x, problem.x)
    assert in_file(some.x)
    assert some.fingerprint() == both("ridge", tmp_path)[0].subset([5, 6, 7, 8]).fingerprint()
    with pytest.raises(fs.InvalidInput, match="the jax engine holds all records in memory"):
        fs.run(problem, fs.FedAvg(step_size=0.1, local_steps=1), rounds=1, engine="jax")
