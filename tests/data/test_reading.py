"""Tables as people have them: encodings, semicolons, decimal commas, dates, identifiers, reference levels."""

import gzip
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from fedscaffold import InvalidInput
from fedscaffold.core.errors import DataWarning
from fedscaffold.data import Encoding, from_file, from_frame, open_problem
from fedscaffold.data.files import detect_delimiter, read_csv
from fedscaffold.data.settings import CsvFormat

TEXT = "größe;ort;alter\n1,5;Köln;61\n2,25;Ulm;47\n0,5;Köln;70\n3;Ulm;50\n"


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "latin-1", "cp1252", "utf-16"])
def test_encoding_delimiter_and_decimal_are_detected(encoding: str, tmp_path: Path) -> None:
    file = tmp_path / "t.csv"
    file.write_bytes(TEXT.encode(encoding))
    table = read_csv(file)
    assert table.column_names == ["größe", "ort", "alter"]
    assert table["größe"].to_pylist() == [1.5, 2.25, 0.5, 3.0]
    assert table["ort"].to_pylist() == ["Köln", "Ulm", "Köln", "Ulm"]
    assert from_file(file, target="größe", client="ort").n_clients == 2


def test_latin_1_in_cells_alone_and_in_compressed_files(tmp_path: Path) -> None:
    (tmp_path / "t.csv.gz").write_bytes(gzip.compress("a,b\nmüde,1\n".encode("latin-1")))
    assert read_csv(tmp_path / "t.csv.gz")["a"].to_pylist() == ["müde"]


def test_what_is_given_is_taken(tmp_path: Path) -> None:
    file = tmp_path / "t.csv"
    file.write_bytes("a|b\nñ|1,234\nm|5,678\n".encode("latin-1"))
    assert read_csv(file)["b"].to_pylist() == ["1,234", "5,678"]  # they may be thousands
    assert read_csv(file, CsvFormat(decimal=","))["b"].to_pylist() == [1.234, 5.678]
    with pytest.raises(InvalidInput, match="it is not in the encoding 'utf-8'; name the right one with encoding"):
        read_csv(file, CsvFormat(encoding="utf-8"))
    file.write_text("a;b,c\n1;2,3\n")
    assert read_csv(file).column_names == ["a;b", "c"]
    assert read_csv(file, CsvFormat(delimiter=";")).column_names == ["a", "b,c"]
    with pytest.raises(InvalidInput, match="delimiter=',' and decimal=',' must differ"):
        CsvFormat(delimiter=",", decimal=",")
    assert detect_delimiter("a\tb") == "\t"


def visits(**columns: Any) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    n = 60
    frame = pd.DataFrame({"site": list("uvw") * 20, "age": rng.normal(size=n), "ward": list("AABBB") * 12})
    return frame.assign(cost=rng.normal(size=n), **columns)


def test_dates_on_request(tmp_path: Path) -> None:
    days = pd.date_range("2019-11-05 13:00", periods=60, freq="9D")
    frame = visits(admitted=days)
    options: dict[str, Any] = {"target": "cost", "client": "site", "intercept": True, "l2": 0.1}
    with pytest.raises(InvalidInput, match=re.escape("dates=['year', 'month', 'weekday']")):
        from_frame(frame, **options)
    problem = from_frame(frame, **options, dates=("year", "weekday"))
    names = problem.encoding.names
    assert names[:3] == ("age", "ward=A", "admitted year")
    assert len([name for name in names if name.startswith("admitted weekday=")]) == 6
    spelled = frame.assign(year=days.year, weekday=days.day_name()).drop(columns="admitted")
    by_hand = from_frame(spelled, **options)
    np.testing.assert_array_equal(problem.x, by_hand.x)
    again = Encoding.from_json(problem.encoding.to_json())
    assert again == problem.encoding
    np.testing.assert_array_equal(again.encode(frame.head(7)), problem.encoding.encode(frame).tolist()[:7])
    frame.to_csv(tmp_path / "t.csv", index=False)
    frame.to_parquet(tmp_path / "t.parquet", index=False)
    for name in ("t.csv", "t.parquet"):
        file = open_problem(tmp_path / name, target="cost", client="site", dates=["month"])
        assert "admitted month=July" in file.encoding.names
    with pytest.raises(InvalidInput, match="should hold dates"):
        problem.encoding.encode(frame.assign(admitted="yesterday"))


def test_identifiers_of_16_digits_are_not_constant() -> None:
    card = 1234567890123456 + np.random.default_rng(1).permutation(60)
    with pytest.warns(DataWarning, match="'card': the column looks like an identifier"):
        problem = from_frame(visits(card=card), target="cost", client="site", standardize=True)
    at = problem.encoding.names.index("card")
    assert np.std(problem.x[:, at]) == pytest.approx(1.0)
    with pytest.raises(InvalidInput, match="more than 15 digits"):
        from_frame(visits(card=card * 100), target="cost", client="site")


@pytest.mark.parametrize(
    ("column", "warned"),
    [
        (np.arange(60), True),
        (np.arange(60)[::-1] * 3, True),
        ([f"p{k}" for k in range(60)], True),
        (np.random.default_rng(0).permutation(60), False),  # a measurement may well differ in all rows
        (np.arange(60) // 2, False),
        (np.arange(60) * 0.5, False),
    ],
)
def test_which_columns_look_like_identifiers(column: Any, warned: bool, recwarn: pytest.WarningsRecorder) -> None:
    from_frame(visits(number=column), target="cost", client="site")
    assert bool(recwarn.list) == warned
    recwarn.clear()
    if not isinstance(column, list) and column.dtype.kind == "i":
        from_frame(visits(patient_id=column), target="cost", client="site")
        assert len(recwarn.list) == 1
        recwarn.clear()


def test_reference_levels() -> None:
    frame = visits()
    options: dict[str, Any] = {"target": "cost", "client": "site", "features": ["ward"]}
    assert from_frame(frame, **options).encoding.names == ("ward=A", "ward=B")
    assert from_frame(frame, **options, intercept=True).encoding.names == ("ward=A", "intercept")
    named = from_frame(frame, **options, intercept=True, reference={"ward": "A"})
    assert named.encoding.names == ("ward=B", "intercept")
    assert from_frame(frame, **options, reference={"ward": "A"}).encoding.names == ("ward=B",)
    codes = frame.assign(ward=frame.ward.map({"A": 1, "B": 2}))
    coded = from_frame(codes, **options, categorical=["ward"], intercept=True, reference={"ward": "1"})
    assert coded.encoding.names == ("ward=2", "intercept")
    np.testing.assert_array_equal(coded.x, named.x)
    old = named.encoding.to_json().replace('"reference": "A"', '"reference": null')
    assert Encoding.from_json(old).names == ("ward=A", "ward=B", "intercept")  # as earlier versions wrote them


def test_without_a_penalty_categories_give_least_squares() -> None:
    frame = visits()
    problem = from_frame(frame, target="cost", client="site", intercept=True, l2=0.0)
    design = np.column_stack([frame.age, frame.ward == "A", np.ones(60)]).astype(float)
    wanted = np.linalg.lstsq(design, frame.cost.to_numpy(), rcond=None)[0]
    np.testing.assert_allclose(problem.optimum(), wanted, rtol=1e-9)


def test_the_default_penalty_is_scikit_learns(tmp_path: Path) -> None:
    frame = visits()
    frame.to_csv(tmp_path / "t.csv", index=False)
    assert open_problem(tmp_path / "t.csv", target="cost", client="site").l2 == 1 / 60
    assert from_frame(frame, target="cost", client="site", l2="auto").l2 == 1 / 60


def test_all_problems_at_once() -> None:
    frame = visits(empty=None, fixed="x", text=[str(k) for k in range(60)])
    frame.loc[0, "age"] = np.nan
    frame.loc[0, "cost"] = np.inf
    with pytest.raises(InvalidInput, match="the table has 6 problems:\n- ") as caught:
        from_frame(frame, target="cost", client="site", intercept=True, min_rows=30)
    for part in (
        "'empty' has no",
        "'fixed' has one value",
        "'text' holds numbers",
        "'age' has 1",
        "infinite",
        "min_rows",
    ):
        assert part in str(caught.value)
