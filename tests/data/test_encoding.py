"""New rows are encoded as the old ones were."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedscaffold import InvalidInput
from fedscaffold.data import Encoding, from_frame
from fedscaffold.data.encoding import Category, Number
from fedscaffold.data.tables import BLOCK

ENCODING = Encoding(
    columns=(
        Number(name="age", shift=50.0, scale=10.0),
        Category(name="ward", values=("A", "B")),
        Number(name="dose", fill=2.5),
        Category(name="code", values=(7, 8, None)),
    ),
    target="ill",
    client="site",
    classes=("no", "yes"),
    intercept=True,
)
ROWS = {"age": [40.0, 65.0], "ward": ["B", "A"], "dose": [None, 1.0], "code": [None, 8]}
CODED = [[-1, 0, 1, 2.5, 0, 0, 1, 1], [1.5, 1, 0, 1.0, 0, 1, 0, 1]]


def refused(message: str, frame: Any, **options: Any) -> None:
    with pytest.raises(InvalidInput, match=re.escape(message)):
        ENCODING.encode(frame, **options)


def test_by_hand() -> None:
    assert ENCODING.names == ("age", "ward=A", "ward=B", "dose", "code=7", "code=8", "code missing", "intercept")
    assert ENCODING.dim == 8
    for frame in (pd.DataFrame(ROWS).astype({"code": "Int64"}), pl.DataFrame(ROWS), pa.table(ROWS)):
        assert ENCODING.encode(frame).tolist() == CODED
    extra = pa.table({"more": ["x", "y"], **dict(reversed(ROWS.items()))})
    assert ENCODING.encode(extra).tolist() == CODED
    assert ENCODING.encode(pa.table(ROWS).slice(0, 0)).shape == (0, 8)


def test_a_problem_s_rows_come_back_from_its_encoding(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    n = BLOCK + 50
    frame = pd.DataFrame(
        {
            "site": np.sort(rng.integers(0, 4, n)),
            "age": rng.normal(size=n),
            "ward": rng.choice(["x", "y"], n),
            "y": 1.0,
        }
    )
    problem = from_frame(frame, target="y", client="site", standardize=True, intercept=True)
    problem.encoding.save(tmp_path / "encoding.json")
    again = Encoding.load(tmp_path / "encoding.json")
    assert again == problem.encoding
    np.testing.assert_array_equal(again.encode(frame), problem.x)
    assert len(list(tmp_path.iterdir())) == 1


def test_unknown_values() -> None:
    new = pa.table({**ROWS, "ward": ["A", "Z"]})
    refused("column 'ward' has the unknown value 'Z' in row 1; known are 'A', 'B'; unknown='ignore'", new)
    assert ENCODING.encode(new, unknown="ignore").tolist()[1] == [1.5, 0, 0, 1.0, 0, 1, 0, 1]
    refused("unknown must be one of 'error', 'ignore', got 'zero'", new, unknown="zero")
    late = pa.table({"age": np.ones(BLOCK + 5), "ward": ["A"] * (BLOCK + 4) + ["Z"], "dose": [1.0] * (BLOCK + 5),
                     "code": [7] * (BLOCK + 5)})  # fmt: skip
    refused(f"'Z' in row {BLOCK + 4}", late)


def test_missing_and_infinite_values() -> None:
    refused(
        "column 'age' has no value in row 1, and the encoding has none to fill in",
        pa.table({**ROWS, "age": [1.0, None]}),
    )
    refused("column 'age' has no value in row 0", pa.table({**ROWS, "age": [np.nan, 1.0]}))
    refused("column 'ward' has no value in row 1", pa.table({**ROWS, "ward": ["A", None]}))
    refused("column 'ward' has no value in row 1", pa.table({**ROWS, "ward": ["A", None]}), unknown="ignore")
    refused("column 'dose' is infinite in row 1", pa.table({**ROWS, "dose": [0.0, -np.inf]}))
    empty = pa.table({**ROWS, "code": pa.nulls(2)})
    assert ENCODING.encode(empty)[:, 4:7].tolist() == [[0, 0, 1], [0, 0, 1]]
    assert ENCODING.encode(pa.table({**ROWS, "dose": pa.nulls(2)}))[:, 3].tolist() == [2.5, 2.5]


def test_wrong_columns_and_types() -> None:
    refused("the table has no columns 'ward', 'dose', 'code'; it has 'age'", pa.table({"age": [1.0]}))
    refused("column 'age' should hold numbers, but row 0 has 'old'", pa.table({**ROWS, "age": ["old", "1"]}))
    refused("column 'code' holds text, such as '7', but held whole numbers when the encoding was made",
            pa.table({**ROWS, "code": ["7", "8"]}))  # fmt: skip
    refused("column 'ward' holds booleans, such as True, but held text", pa.table({**ROWS, "ward": [True, False]}))
    refused("the table must be", [1, 2])


NAMES = st.text(max_size=8)
NUMBERS = st.floats(allow_nan=False, allow_infinity=False, allow_subnormal=False)  # JAX may switch them off
COLUMNS = st.one_of(
    st.builds(Number, name=NAMES, fill=st.none() | NUMBERS, shift=NUMBERS, scale=NUMBERS.map(abs).filter(bool)),
    st.builds(Category, name=NAMES, values=st.lists(NAMES, unique=True).map(tuple)),
    st.builds(
        Category, name=NAMES, values=st.lists(st.integers(-(2**63), 2**63 - 1) | st.none(), unique=True).map(tuple)
    ),
    st.builds(Category, name=NAMES, values=st.just((False, True, None))),
)


@given(
    st.builds(
        Encoding,
        columns=st.lists(COLUMNS, max_size=5).map(tuple),
        target=NAMES,
        client=NAMES,
        classes=st.none() | st.tuples(NAMES, NAMES) | st.tuples(NUMBERS, NUMBERS) | st.just((False, True)),
        intercept=st.booleans(),
    )
)
def test_json_round_trip(encoding: Encoding) -> None:
    text = encoding.to_json()
    again = Encoding.from_json(text)
    assert again == encoding
    assert repr(again) == repr(encoding)  # True is not 1, 0.0 is not 0 nor -0.0
    assert json.loads(text)["format"] == "fedscaffold encoding 1"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        "null",
        '{"format": "other"}',
        ENCODING.to_json().replace("encoding 1", "encoding 2"),
        ENCODING.to_json().replace('"target"', '"goal"'),
        ENCODING.to_json().replace('"number"', '"spline"'),
        ENCODING.to_json().replace('"scale"', '"zoom"'),
        ENCODING.to_json().replace('"scale": 10.0', '"scale": "ten"'),
        ENCODING.to_json().replace('"scale": 10.0', '"scale": 0.0'),
        ENCODING.to_json().replace('"shift": 50.0', '"shift": NaN'),
        ENCODING.to_json().replace('"A"', '"B"'),
        ENCODING.to_json().replace('"A"', "1"),
        ENCODING.to_json().replace('"A"', "[]"),
        ENCODING.to_json().replace('"name": "age"', '"name": 3'),
        ENCODING.to_json().replace('"no",', ""),
        ENCODING.to_json().replace('"intercept": true', '"intercept": "yes"'),
    ],
)
def test_other_files_are_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="this is not an encoding that fedscaffold wrote"):
        Encoding.from_json(text)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="cannot read the encoding"):
        Encoding.load(tmp_path / "none.json")
    (tmp_path / "bytes.json").write_bytes(b"\xff\xfe\xff")
    with pytest.raises(InvalidInput, match="cannot read the encoding"):
        Encoding.load(tmp_path / "bytes.json")
