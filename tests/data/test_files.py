"""Problems from files, and how much memory Parquet takes."""

import json
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fedscaffold import InvalidInput
from fedscaffold.data import from_file, from_frame
from fedscaffold.data.encoded import build_problem
from fedscaffold.data.files import read_table
from fedscaffold.data.settings import TableSettings
from fedscaffold.data.tables import Source
from tests.data.test_frames import FEATURES, mixed

OPTIONS: dict[str, Any] = {
    "target": "cost",
    "client": "hospital",
    "features": FEATURES,
    "l2": 0.1,
    "standardize": True,
    "missing": "mean",
}


def holed() -> pd.DataFrame:
    """With missing values, and grades as text for files that know no categories."""
    frame = mixed().assign(grade=lambda f: "g" + f["grade"].astype(str))
    return frame.assign(
        dose=frame["dose"].astype(float).mask(frame["visits"] == 3), ward=frame["ward"].mask(frame["smoker"])
    )


@pytest.mark.parametrize("group", [100, 5000, 8192, 1_000_000])
def test_parquet_gives_the_same_bits_whatever_its_row_groups(group: int, tmp_path: Path) -> None:
    frame = holed()
    frame.to_parquet(tmp_path / "t.parquet", row_group_size=group)
    assert from_file(tmp_path / "t.parquet", **OPTIONS).fingerprint() == from_frame(frame, **OPTIONS).fingerprint()


def test_labels_of_rows_that_pandas_keeps_are_no_columns(tmp_path: Path) -> None:
    frame = pd.DataFrame({"shop": ["a", "a", "b", "b"], "price": [1.0, 2.0, 4.0, 3.0], "sold": [3, 1, 2, 5]})
    frame[["shop", "price", "sold"]].sample(frac=1.0, random_state=0).to_parquet(tmp_path / "1.parquet")
    assert "__index_level_0__" in pq.read_schema(tmp_path / "1.parquet").names
    frame.to_parquet(tmp_path / "2.parquet")
    several = from_file([tmp_path / "1.parquet", tmp_path / "2.parquet"], target="sold", client="shop")
    assert several.encoding.names == ("price",)
    assert read_table(tmp_path / "1.parquet").column_names == ["shop", "price", "sold"]


def test_parquet_with_dictionaries_that_grow(tmp_path: Path) -> None:
    frame = holed().assign(
        hospital=lambda f: pd.Categorical(f["hospital"]), ward=lambda f: f["ward"].astype("category")
    )
    expected = from_frame(frame, **OPTIONS)
    table = pa.Table.from_pandas(frame)
    with pq.ParquetWriter(tmp_path / "t.parquet", table.schema) as writer:
        for begin in range(0, len(frame), 3000):
            part = frame.iloc[begin : begin + 3000]
            part = part.assign(ward=part["ward"].cat.remove_unused_categories().cat.reorder_categories(
                sorted(part["ward"].dropna().unique(), reverse=bool(begin % 2000))))  # fmt: skip
            writer.write_table(pa.Table.from_pandas(part, schema=table.schema))
    problem = from_file(tmp_path / "t.parquet", **OPTIONS)
    assert problem.fingerprint() == expected.fingerprint()
    assert problem.client_names == ("Bonn", "Kiel", "Ulm")


@pytest.mark.parametrize("delimiter", [",", ";"])
def test_csv(delimiter: str, tmp_path: Path) -> None:
    frame = holed()
    frame.to_csv(tmp_path / "t.csv", index=False, sep=delimiter)
    problem = from_file(tmp_path / "t.csv", delimiter=delimiter, **OPTIONS)
    assert problem.fingerprint() == from_frame(frame, **OPTIONS).fingerprint()


def test_csv_types_come_from_all_rows(tmp_path: Path) -> None:
    rows = ["c,x,y", *["u,1,2"] * 200_000, "v,0.5,3", "v,2,3"]
    (tmp_path / "t.csv").write_text("\n".join(rows))
    assert from_file(tmp_path / "t.csv", target="y", client="c").x[-2:, 0].tolist() == [0.5, 2]
    rows[150_001] = "u,n.a.,2"
    (tmp_path / "t.csv").write_text("\n".join(rows))
    with pytest.raises(
        InvalidInput, match=re.escape("column 'x' holds mostly numbers, but row 150000 has 'n.a.'")
    ):
        from_file(tmp_path / "t.csv", target="y", client="c")


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    columns: dict[str, Any] = {"target": "y", "client": "c"}
    for name in ("none.csv", "none.parquet"):
        with pytest.raises(InvalidInput, match=r"cannot read .*none.*: there is no such file"):
            from_file(tmp_path / name, **columns)
        with pytest.raises(InvalidInput, match="kind must be one of 'ridge', 'logistic'"):
            from_file(tmp_path / name, **{**columns, "kind": "svm"})
    with pytest.raises(InvalidInput, match=re.escape("has no files whose names end in .parquet")):
        from_file(tmp_path, **columns)
    with pytest.raises(InvalidInput, match=re.escape("whose name ends in .csv or .parquet")):
        from_file(tmp_path / "t.txt", **columns)
    (tmp_path / "bad.parquet").write_text("a,b\n1\n")
    with pytest.raises(InvalidInput, match=r"bad\.parquet as Parquet"):
        from_file(tmp_path / "bad.parquet", **columns)
    bad = tmp_path / "bad.csv"
    bad.write_text("a,b\n1\n")
    with pytest.raises(InvalidInput, match=r"bad\.csv as CSV"):
        from_file(bad, **columns)
    with pytest.raises(InvalidInput, match="delimiter must be one character, got ';;'"):
        from_file(bad, **columns, delimiter=";;")
    bad.write_text("")
    with pytest.raises(InvalidInput, match=r"bad\.csv as CSV"):
        from_file(bad, **columns)
    bad.write_text("c,x,y\n")
    with pytest.raises(InvalidInput, match="the table has no rows"):
        from_file(bad, **columns)
    bad.write_text("c,x,x,y\n1,2,3,4\n1,2,3,4\n")
    with pytest.raises(InvalidInput, match="more than one column named 'x'"):
        from_file(bad, **columns)


def test_a_damaged_parquet_file(tmp_path: Path) -> None:
    """The footer is whole, the data are not."""
    file = tmp_path / "t.parquet"
    holed().to_parquet(file)
    whole = bytearray(file.read_bytes())
    whole[4:200] = bytes(196)
    file.write_bytes(whole)
    with pytest.raises(InvalidInput, match=r"t\.parquet as Parquet"):
        from_file(file, **OPTIONS)


CHANGES: dict[str, Callable[[pd.DataFrame], pd.DataFrame]] = {
    "shorter": lambda frame: frame.iloc[:-1],
    "longer": lambda frame: pd.concat([frame, frame.iloc[:1]]),
    "another client": lambda frame: frame.assign(hospital="new"),
    "other sizes": lambda frame: frame.assign(hospital="Ulm"),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("when", [1, 2])
def test_a_table_that_changes_while_it_is_read(when: int, change: str) -> None:
    """Read are, in this order: all columns; clients and targets; features."""
    frame = holed()
    other = CHANGES[change](frame)
    reads: list[Sequence[str]] = []

    def read(columns: Sequence[str]) -> Any:
        reads.append(columns)
        table = frame if len(reads) <= when else other
        return pa.Table.from_pandas(table[list(columns)], preserve_index=False).to_batches()

    source = Source(tuple(frame.columns), read)
    if when == 2 and len(other) == len(frame):  # the clients had been read already
        assert build_problem(source, TableSettings(**OPTIONS)).n_clients == 3
        return
    with pytest.raises(InvalidInput, match="the table changed while it was being read"):
        build_problem(source, TableSettings(**OPTIONS))
    assert len(reads) > 1


STATUS = Path("/proc/self/status")  # its VmHWM, unlike getrusage's peak, does not begin with the parent's memory
MEASURE = """
import json, pathlib, re, sys
import pyarrow.compute, pyarrow.parquet
from fedscaffold.data import from_file
def peak():
    return 1024 * int(re.search(r"VmHWM:\\s+(\\d+) kB", pathlib.Path("/proc/self/status").read_text())[1])
before = peak()
problem = from_file(sys.argv[1], target="y", client="client")
print(json.dumps([peak() - before, problem.x.nbytes + problem.y.nbytes, problem.n_clients]))
"""


@pytest.mark.skipif(not STATUS.exists(), reason="needs Linux's account of a process's memory")
@pytest.mark.parametrize("group", [50_000, pytest.param(500_000, marks=pytest.mark.slow)])
def test_peak_memory_is_the_result_and_little_more(group: int, tmp_path: Path) -> None:
    """500,000 rows of 30 columns, 1,000 clients interleaved: 124 MB, which must not be there twice."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(31, 500_000))
    names = [*(f"x{j}" for j in range(30)), "y", "client"]
    table = pa.table([*x, rng.integers(0, 1000, 500_000)], names=names)
    pq.write_table(table, tmp_path / "t.parquet", row_group_size=group)
    done = subprocess.run(
        [sys.executable, "-c", MEASURE, str(tmp_path / "t.parquet")], capture_output=True, text=True, check=True
    )
    grown, result, clients = json.loads(done.stdout)
    assert clients == 1000
    assert result == 31 * 500_000 * 8
    assert grown < 2 * result


def test_importing_the_library_loads_no_table_library() -> None:
    heavy = ("pyarrow", "pandas", "polars", "sklearn", "matplotlib")
    code = f"import fedscaffold, sys; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
