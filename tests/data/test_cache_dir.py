"""Tables in files: converted once, the same to the bit, never taken for another's or for more than they are."""

import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from fedscaffold import InvalidInput
from fedscaffold.core.errors import InUse
from fedscaffold.core.machine import in_file
from fedscaffold.data import from_file, from_frame, on_disk
from tests.data.test_files import OPTIONS, holed
from tests.hospitals import wine

FILES = ["records.json", "x.npy", "y.npy"]


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """More rows than a block, clients interleaved, every kind of column."""
    holed().to_parquet(tmp_path / "t.parquet", row_group_size=5000)
    return tmp_path / "t.parquet"


def converted(table: Path, **options: Any) -> Any:
    return from_file(table, cache_dir=table.parent / "records", **{**OPTIONS, **options})


@pytest.mark.parametrize("piece", [on_disk.PIECE, 8 * 1000, 8 * 60])
@pytest.mark.parametrize("intercept", [True, False])
def test_the_same_to_the_bit(piece: int, intercept: bool, table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However small the pieces that are put in order at once: here also some tens of rows, and a few."""
    monkeypatch.setattr(on_disk, "PIECE", piece)
    monkeypatch.setattr(on_disk, "AT_ONCE", 100_000)
    expected = from_frame(holed(), **OPTIONS, intercept=intercept)
    problem = converted(table, intercept=intercept)
    assert problem.fingerprint() == expected.fingerprint()
    assert problem.client_names == expected.client_names
    assert problem.encoding == expected.encoding
    assert in_file(problem.x)
    assert in_file(problem.y)
    assert not problem.x.flags.writeable
    assert sorted(file.name for file in (table.parent / "records").iterdir()) == FILES
    assert sorted(file.name for file in table.parent.iterdir()) == ["records", "t.parquet"]


def test_classes(tmp_path: Path) -> None:
    frame = wine()
    frame.to_parquet(tmp_path / "t.parquet")
    options: dict[str, Any] = {"target": "target", "client": "hospital", "kind": "logistic"}
    problem = from_file(tmp_path / "t.parquet", cache_dir=tmp_path / "r", **options)
    assert problem.kind == "multinomial"
    assert problem.fingerprint() == from_frame(frame, **options).fingerprint()
    two = frame[frame.target < 2]
    two.to_parquet(tmp_path / "two.parquet")
    problem = from_file(tmp_path / "two.parquet", cache_dir=tmp_path / "r2", **options)
    assert problem.classes == (0, 1)
    assert problem.fingerprint() == from_frame(two, **options).fingerprint()


def test_it_is_converted_once(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = converted(table)
    monkeypatch.setattr("fedscaffold.data.open.table_layout", None)  # nothing is read again
    again = converted(table)
    assert again.fingerprint() == first.fingerprint()
    other = converted(table, l2=0.7, weights="uniform")
    assert other.l2 == 0.7
    assert np.ptp(other.weights) == 0
    with pytest.raises(InvalidInput, match="weights has none for client 'Kiel'"):
        converted(table, weights={"Bonn": 1})


def test_another_table_or_other_options_are_refused(table: Path) -> None:
    converted(table)
    folder = table.parent / "records"
    for options, message in (
        ({"kind": "logistic", "target": "ward", "features": ["age"]}, "with target='cost', not 'ward'"),
        ({"features": ["age"]}, re.escape("not ['age']")),
        ({"standardize": False}, "standardize=True, not False"),
        ({"min_rows": 5}, "min_rows=2, not 5"),
    ):  # fmt: skip
        with pytest.raises(InvalidInput, match=message):
            converted(table, **options)
    other = table.parent / "other.parquet"
    shutil.copy2(table, other)
    with pytest.raises(
        InvalidInput, match=r"holds the records of another table, t\.parquet; choose another folder"
    ):
        from_file(other, cache_dir=folder, **OPTIONS)
    os.utime(table, ns=(1, 1))
    with pytest.raises(InvalidInput, match=r"t\.parquet has changed since its records were written"):
        converted(table)
    shutil.rmtree(folder)
    assert in_file(converted(table).x)


def test_bad_folders(table: Path) -> None:
    folder = table.parent / "records"
    folder.write_text("a file")
    with pytest.raises(InvalidInput, match="it is a file, but must be a folder"):
        converted(table)
    folder.unlink()
    folder.mkdir()
    (folder / "x.npy").write_text("mine")
    with pytest.raises(InvalidInput, match="holds files, but no records that fedscaffold wrote"):
        converted(table)
    assert (folder / "x.npy").read_text() == "mine"
    (folder / "x.npy").unlink()
    converted(table)  # into a folder that is there and empty
    with pytest.raises(InvalidInput, match="max_bytes_in_memory"):
        from_file(table, cache_dir=folder, max_bytes_in_memory=-1, **OPTIONS)


@pytest.mark.parametrize(
    "damage", ["not JSON", "[]", "{}", "other format", "short x", "other shape", "no y", "float32"]
)
def test_damaged_records(damage: str, table: Path) -> None:
    held = np.array(converted(table).x)
    folder = table.parent / "records"
    x, y, said = (folder / name for name in ("x.npy", "y.npy", "records.json"))
    if damage in ("not JSON", "[]", "{}"):
        said.write_text(damage)
    elif damage == "other format":
        said.write_text(json.dumps({**json.loads(said.read_text()), "format": "fedscaffold records 0"}))
    elif damage == "short x":
        os.truncate(x, x.stat().st_size - 8)
    elif damage == "no y":
        y.unlink()
    else:
        np.save(x, held[:-1] if damage == "other shape" else held.astype(np.float32))
    with pytest.raises(InvalidInput, match=r"damaged|another format") as refusal:
        converted(table)
    assert "remove this one to convert the table again" in str(refusal.value)


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError(28, "No space left on device")])
@pytest.mark.parametrize("when", ["encoded_targets", "encoded_features", "fsync"])
def test_an_interrupted_conversion_leaves_nothing(
    error: Any, when: str, table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken_after_a_block(*args: Any) -> Any:
        yield from list(whole(*args))[:1]
        raise error

    def broken_at_once(*args: Any) -> None:
        raise error

    with monkeypatch.context() as patched:
        if when == "fsync":
            patched.setattr(os, when, broken_at_once)
        else:
            whole = getattr(on_disk, when)
            patched.setattr(on_disk, when, broken_after_a_block)
        expected: Any = KeyboardInterrupt if error is KeyboardInterrupt else InvalidInput
        message = None if error is KeyboardInterrupt else "No space left on device"
        with pytest.raises(expected, match=message):
            converted(table)
    assert [file.name for file in table.parent.iterdir()] == ["t.parquet"]
    assert converted(table).n_clients == 3


def test_bad_values_are_refused_and_leave_nothing(table: Path) -> None:
    with pytest.raises(InvalidInput, match="there are missing values"):
        converted(table, missing="error")
    assert [file.name for file in table.parent.iterdir()] == ["t.parquet"]


KILLED = """
import os, sys
from fedscaffold.data import from_file
from tests.data.test_files import OPTIONS

def slow(handle):
    print("written", flush=True)
    sys.stdin.read()

os.fsync = slow
from_file(sys.argv[1], cache_dir=sys.argv[2], **OPTIONS)
"""


def test_a_killed_conversion_is_not_taken_for_whole_and_two_at_once_are_refused(table: Path) -> None:
    folder = table.parent / "records"
    with subprocess.Popen(
        [sys.executable, "-c", KILLED, str(table), str(folder)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2],
    ) as process:  # fmt: skip
        assert process.stdout is not None
        assert process.stdout.readline() == "written\n"
        with pytest.raises(InUse, match="records is in use by another process"):
            converted(table)
        process.kill()
    assert not folder.exists()
    assert (table.parent / ".records.converting" / "goal").exists()
    assert converted(table).fingerprint() == from_frame(holed(), **OPTIONS).fingerprint()
    assert sorted(file.name for file in table.parent.iterdir()) == ["records", "t.parquet"]


def test_a_disk_that_is_too_small(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The records must fit twice: x, y and the temporary files, of which there are as many numbers."""
    whole = from_frame(holed(), **OPTIONS)
    numbers = whole.x.size + whole.y.size

    class Room:
        free = 2 * 8 * numbers - 1

    monkeypatch.setattr("shutil.disk_usage", lambda path: Room)
    with pytest.raises(InvalidInput, match=r"records need .* GiB of disk, and twice that while"):
        converted(table)
    assert [file.name for file in table.parent.iterdir()] == ["t.parquet"]
    Room.free += 1
    assert converted(table).n_records == whole.n_records


def test_a_table_that_changes_while_it_is_converted(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def changed(handle: int) -> None:
        os.utime(table, ns=(time.time_ns(), 5))

    monkeypatch.setattr(os, "fsync", changed)
    with pytest.raises(InvalidInput, match="changed while it was being read"):
        converted(table)
    assert [file.name for file in table.parent.iterdir()] == ["t.parquet"]


def test_small_tables_stay_in_memory_if_asked(table: Path) -> None:
    size = from_file(table, **OPTIONS).x.nbytes
    assert not in_file(converted(table, max_bytes_in_memory=2 * size).x)
    assert not (table.parent / "records").exists()
    assert in_file(converted(table, max_bytes_in_memory=size).x)  # which leaves no room for the targets
    assert in_file(converted(table, max_bytes_in_memory=2 * size).x)  # since it is there


def test_several_files(table: Path, tmp_path: Path) -> None:
    frame = holed()
    folder = tmp_path / "parts"
    folder.mkdir()
    for k, begin in enumerate(range(0, len(frame), 4000)):
        frame.iloc[begin : begin + 4000].to_parquet(folder / f"part-{k}.parquet")
    (folder / "_SUCCESS").write_text("")
    expected = from_frame(frame, **OPTIONS).fingerprint()
    files = sorted(folder.glob("*.parquet"))
    assert len(files) > 2
    assert from_file(folder, **OPTIONS).fingerprint() == expected
    assert from_file(files, **OPTIONS).fingerprint() == expected
    assert from_file(folder, cache_dir=tmp_path / "r", **OPTIONS).fingerprint() == expected
    assert from_file(files, cache_dir=tmp_path / "r", **OPTIONS).fingerprint() == expected
    with pytest.raises(
        InvalidInput, match=r"another table, part-0.parquet, part-1.parquet, part-2.parquet, \.\.\."
    ):
        from_file(files[:2], cache_dir=tmp_path / "r", **OPTIONS)
    with pytest.raises(InvalidInput, match="the list of Parquet files is empty"):
        from_file([], **OPTIONS)
    pd.read_parquet(files[1]).drop(columns="age").to_parquet(files[1])
    with pytest.raises(InvalidInput, match=r"part-0.parquet has a column 'age', which .*part-1.parquet lacks"):
        from_file(folder, **OPTIONS)
    pd.read_parquet(files[1]).assign(age=1).to_parquet(files[1])
    with pytest.raises(InvalidInput, match=r"column 'age' is of type double in .*part-0.*, but int64 in .*part-1"):
        from_file(folder, **OPTIONS)


@pytest.mark.parametrize("name", FILES)
def test_a_flipped_bit_is_refused_and_named(name: str, table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever it is: refused with the folder's name, or, in what carries no meaning, the same problem."""
    monkeypatch.setattr(on_disk, "PIECE", 8 * 1000)
    expected = converted(table).fingerprint()
    file = table.parent / "records" / name
    content, rng = file.read_bytes(), np.random.default_rng(0)
    refused = 0
    for _ in range(40):
        flipped = bytearray(content)
        flipped[rng.integers(len(content))] ^= 1 << rng.integers(8)
        file.write_bytes(flipped)
        try:
            assert converted(table).fingerprint() == expected
        except InvalidInput as error:
            refused += str(table.parent / "records") in str(error)
    assert refused >= 30
    file.write_bytes(content[:-8] + bytes(8))
    with pytest.raises(InvalidInput, match=r"damaged \(.*digest|damaged"):
        converted(table)
