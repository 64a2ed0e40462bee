"""Arrays in files are told from others, and a pass over them reads every row once and in order."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedscaffold.core import machine as mapped
from fedscaffold.core.machine import grouped, in_file, let_go, read_ahead, spans


@pytest.fixture
def array(tmp_path: Path) -> Any:
    """Some pages of numbers in a file."""
    np.save(tmp_path / "a.npy", np.arange(30_000.0).reshape(3000, 10))
    return np.load(tmp_path / "a.npy", mmap_mode="r")


def test_what_lies_in_a_file(array: Any, tmp_path: Path) -> None:
    assert in_file(array)
    assert in_file(np.asarray(array))
    assert in_file(np.asarray(array)[5:].reshape(-1))
    for other in (np.zeros(3), array + 0.0, array[[1, 2]], array.copy(), np.array(array), None):
        assert not in_file(other)
    private = np.load(tmp_path / "a.npy", mmap_mode="c")  # whose changes the file does not have
    assert not in_file(private)


def test_advice_changes_no_number(array: Any, tmp_path: Path) -> None:
    expected = np.arange(30_000.0).reshape(3000, 10)
    for begin, end in ((0, 3000), (7, 2111), (2999, 3000), (5, 5)):
        read_ahead(array, begin, end)
        let_go(array, begin, end)
        np.testing.assert_array_equal(array, expected)
    written = np.memmap(tmp_path / "w", dtype=np.float64, mode="w+", shape=(3000, 10))
    written[:] = expected
    let_go(written, 0, 3000)  # not yet on the disk
    np.testing.assert_array_equal(written, expected)


@given(st.lists(st.integers(0, 50), max_size=40), st.integers(1, 100))
def test_groups_are_all_of_them_once_in_order_and_not_too_large(sizes: list[int], most: int) -> None:
    groups = grouped(sizes, most)
    assert [i for begin, end in groups for i in range(begin, end)] == list(range(len(sizes)))
    for begin, end in groups:
        assert end - begin == 1 or sum(sizes[begin:end]) <= most
    for begin, end in groups[:-1]:  # none could have been longer
        assert sum(sizes[begin : end + 1]) > most


def test_a_pass_reads_ahead_and_lets_go_behind(array: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    bounds = np.array([0, 100, 100, 1000, 1500, 3000])
    expected = [(0, 100), (100, 100), (100, 1000), (1000, 1500), (1500, 3000)]
    assert list(spans(bounds, np.zeros((3000, 10)))) == expected
    told: list[tuple[str, int, int]] = []
    monkeypatch.setattr(mapped, "AT_ONCE", 1000 * array.strides[0])
    for name in ("read_ahead", "let_go"):
        monkeypatch.setattr(mapped, name, lambda array, begin, end, name=name: told.append((name, begin, end)))
    seen = []
    for span in spans(bounds, np.zeros((3000, 10)), array):
        if span == (1000, 1500):
            assert told[-2:] == [("let_go", 0, 1000), ("read_ahead", 1500, 3000)]
        seen.append(span)
    assert seen == expected
    assert [(b, e) for name, b, e in told if name == "read_ahead"] == [(0, 1000), (1000, 1500), (1500, 3000)]
    assert [(b, e) for name, b, e in told if name == "let_go"] == [(0, 1000), (1000, 1500), (1500, 3000)]


def test_where_the_system_takes_no_advice(array: Any, tmp_path: Path) -> None:
    code = (
        "import mmap, numpy as np; del mmap.MADV_WILLNEED; from fedscaffold.core.machine import spans; "
        f"array = np.load({str(tmp_path / 'a.npy')!r}, mmap_mode='r'); "
        "print(list(spans(np.array([0, 1, 3000]), array)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[(0, 1), (1, 3000)]\n"
