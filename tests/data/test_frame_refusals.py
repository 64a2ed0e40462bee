"""What tables are refused, and with which words."""

import re
import sys
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from fedscaffold import InvalidInput, MissingDependency
from fedscaffold.data import from_frame

N = 12


def good(**columns: Any) -> pd.DataFrame:
    frame = pd.DataFrame(
        {
            "site": ["u", "v", "w"] * 4,
            "age": np.arange(N) * 1.5,
            "ward": ["A", "B"] * 6,
            "y": np.arange(N) * 2.0,
            "ill": ["no", "no", "yes"] * 4,
        }
    )
    return frame.assign(**columns)


def refused(frame: Any, message: str, **options: Any) -> None:
    options = {"target": "y", "client": "site", "features": ["age", "ward"], **options}
    with pytest.raises(InvalidInput, match=re.escape(message)) as caught:
        from_frame(frame, **options)
    assert "\n" not in str(caught.value)


def changed(column: str, row: int, value: Any) -> list[Any]:
    values = list(good()[column])
    values[row] = value
    return values


def test_the_table_that_the_others_spoil_is_accepted() -> None:
    assert from_frame(good(), target="y", client="site", features=["age", "ward"]).n_clients == 3


def test_columns() -> None:
    refused(good(), "the table has no column 'agee'; did you mean 'age'? it has 'site', 'age',", features=["agee"])
    refused(good(), "the table has no column 'zzz'; it has 'site', 'age', 'ward', 'y', 'ill'", target="zzz")
    refused(good(), "the table has no column 'Site'; did you mean 'site'?", client="Site")
    refused(good(), "the table has no column 3; it has", features=[3])
    refused(good(), "column 'y' is the target and cannot be a feature too", features=["age", "y"])
    refused(good(), "column 'site' names the client and cannot be a feature too", features=["site"])
    refused(good(), "column 'y' cannot be both target and client", client="y")
    refused(good(), "features names column 'age' more than once", features=["age", "age"])
    refused(good(), "features must be a list of column names, got the text 'age'", features="age")
    refused(good(), "features is an empty list", features=[])
    refused(good()[["site", "y"]], "the table has no feature columns besides 'y' and 'site'", features=None)
    refused(good(), "categorical names column 'ill', which is not a feature", categorical=["ill"])
    refused(good(), "categorical must be a list of column names, got the text 'age'", categorical="age")
    many = pd.DataFrame({f"a{i}": [1.0] for i in range(30)})
    refused(many.assign(site="u"), "'a11' and 19 more", target="none")


def test_names() -> None:
    twice = pd.concat([good(), good()[["age"]]], axis=1)
    refused(twice, "the table has more than one column named 'age'; rename all but one")
    table = pa.Table.from_pandas(good())
    refused(table.append_column("y", table["y"]), "the table has more than one column named 'y'")
    refused(good().rename(columns={"ill": 7}), "column names must be text, got 7; rename the columns first")


def test_tables() -> None:
    refused(good().iloc[:0], "the table has no rows")
    refused(pl.from_pandas(good()).clear(), "the table has no rows")
    refused({"y": [1.0]}, "must be a pandas or polars DataFrame or a pyarrow Table, got dict")
    refused(pl.from_pandas(good()).lazy(), "got LazyFrame; collect a lazy frame first")
    refused(None, "got NoneType")


def test_clients() -> None:
    refused(
        good(site=changed("site", 0, "lone")),
        "client 'lone' has only 1 row; drop the rows of such clients, or accept them with min_rows=1",
    )
    refused(good(site=range(N)), "client 0 has only 1 row (12 clients are that small); drop the rows")
    refused(good(), "client 'u' has only 4 rows (3 clients are that small)", min_rows=5)
    refused(good(site=changed("site", 4, None)), "the client column 'site' has 1 missing values")
    refused(good(site=[None] * N), "the client column 'site' has 12 missing values")
    refused(good(site=np.arange(N) // 4 * 1.0), "the client column 'site' is of type double; clients are named by")
    refused(good(site=pd.to_datetime(["2024-01-01"] * N)), "the client column 'site' is of type timestamp")


def test_one_row_is_enough_on_request() -> None:
    problem = from_frame(
        good(site=changed("site", 0, "lone")), target="y", client="site", features=["age"], min_rows=1
    )
    assert dict(zip(problem.client_names, problem.sizes.tolist(), strict=True))["lone"] == 1


@pytest.mark.parametrize("convert", [lambda frame: frame, pl.from_pandas, pa.Table.from_pandas])
def test_missing_and_infinite_values(convert: Any) -> None:
    nan = good(age=changed("age", 3, np.nan))
    refused(
        convert(nan), "there are missing values: column 'age' has 1; fill them, drop those rows, or pass missing="
    )
    both = good(age=changed("age", 3, None), ward=[None, *["A"] * 10, None])
    refused(convert(both), "there are missing values: column 'age' has 1, 'ward' has 2;")
    infinite = good(age=[np.inf, -np.inf, *range(10)])
    refused(convert(infinite), "there are infinite values: column 'age' has 2; replace them, or drop those rows")
    refused(convert(infinite), "column 'age' has 2;", missing="mean")
    refused(convert(good(y=changed("y", 2, np.nan))), "the target 'y' has 1 missing values", missing="mean")
    refused(convert(good(y=changed("y", 2, np.inf))), "the target 'y' has 1 infinite values")
    refused(
        convert(good(ill=changed("ill", 2, None))), "the target 'ill' has 1 missing", target="ill", kind="logistic"
    )


def test_nan_in_arrow_tables_is_missing_too() -> None:
    table = pa.table({**good().to_dict("list"), "age": pa.array([np.nan, np.nan, *range(10)])})
    refused(table, "column 'age' has 2;")
    filled = from_frame(table, target="y", client="site", features=["age"], missing="mean")
    assert np.isfinite(filled.x).all()


def test_many_bad_columns_are_counted() -> None:
    frame = good(**{f"a{i}": changed("age", i, np.nan) for i in range(8)})
    refused(frame, "'a4' has 1 and 3 more columns have some;", features=[f"a{i}" for i in range(8)])


def test_empty_columns() -> None:
    message = "column 'age' has no values at all; leave it out with drop=['age']"
    refused(good(age=None), message)
    refused(good(age=np.nan), message, missing="mean")


def test_text_where_numbers_should_be() -> None:
    mostly = good(age=[str(v) for v in changed("age", 5, "n/a?")])
    refused(mostly, "column 'age' holds mostly numbers, but row 5 has 'n/a?'; convert it")
    refused(pl.from_pandas(mostly), "column 'age' holds mostly numbers, but row 5 has 'n/a?'")
    refused(
        good(age=changed("age", 5, "x")),
        "column 'age' holds mostly numbers, but row 5 has 'x'; make it all numbers",
    )
    refused(
        good(ward=changed("ward", 5, 1.5)), "column 'ward' holds mostly text, but row 5 has 1.5; make it all text"
    )
    refused(
        good(age=[str(v) for v in good()["age"]]),
        "column 'age' holds numbers written as text, such as '0.0' in row 0",
    )
    assert from_frame(mostly, target="y", client="site", features=["age"], categorical=["age"]).dim == N
    codes = good(age=pd.Categorical(["1", "2"] * 6))
    assert from_frame(codes, target="y", client="site", features=["age"]).dim == 2


def test_a_late_bad_value_is_found_in_a_long_column_of_text() -> None:
    n = 20_000
    values = [f"{i}.5" for i in range(n)]
    values[19_000] = "oops"
    frame = pd.DataFrame({"site": np.arange(n) % 3, "age": values, "y": np.arange(n) * 1.0, "ward": "A"})
    refused(frame, "column 'age' holds mostly numbers, but row 19000 has 'oops'")


def test_types_and_categories() -> None:
    refused(
        good(age=pd.to_datetime(["2024-01-01"] * N)), "column 'age' holds dates; leave it out with drop=['age']"
    )
    refused(good(age=[[1.0]] * N), "column 'age' is of type list<")
    refused(good(), "column 'age' is of type double; categories must be text, whole numbers", categorical=["age"])
    refused(good(age=pd.Categorical(good()["age"])), "categories must be text, whole numbers or booleans")
    refused(
        good(ward=[f"w{i}" for i in range(N)]),
        "column 'ward' has more than 11 different values",
        max_categories=11,
    )
    assert from_frame(good(), target="y", client="site", features=["ward"], max_categories=2).dim == 2
    refused(
        good(age=3.7),
        "column 'age' has the same number in all rows; leave",
        standardize=True,
    )
    huge = good(code=np.array([2**63 + 1] * N, dtype=np.uint64))
    refused(huge, "column 'code' has whole numbers beyond 2^63", features=["code"], categorical=["code"])


def test_targets() -> None:
    refused(good(), "the target 'ill' must hold numbers for kind='ridge', but is of type", target="ill")
    refused(good(ill="no"), "the target 'ill' has one class only, 'no'; two or more are needed",
            target="ill", kind="logistic")  # fmt: skip
    n = 4000
    frame = pd.DataFrame({"site": np.arange(n) % 3, "age": 1.0, "ward": "A", "y": np.arange(n) * 0.5})
    refused(
        frame,
        "the target 'y' has more than 1000 different values; if it is a number, pass kind=",
        kind="logistic",
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kind": "svm"}, "kind must be one of 'ridge', 'logistic', 'poisson', 'gamma', 'cox', got 'svm'"),
        ({"missing": "drop"}, "missing must be one of 'error', 'mean', got 'drop'"),
        ({"l2": -1}, "l2 must be a number of at least 0, got -1"),
        ({"min_rows": 0}, "min_rows must be a whole number of at least 1, got 0"),
        ({"max_categories": 1.5}, "max_categories must be a whole number of at least 1, got 1.5"),
        (
            {"weights": "size"},
            "weights must be 'rows', 'uniform' or a dictionary from client to weight, got 'size'",
        ),
        ({"weights": [1, 2, 3]}, "weights must be 'rows', 'uniform' or a dictionary"),
        ({"weights": {"u": 1, "v": 2}}, "weights has none for client 'w'"),
        ({"weights": {"u": 1, "v": 2, "w": 3, "z": 1}}, "weights names clients that the table does not have: 'z'"),
        ({"weights": {"u": 1, "v": 2, "w": 0}}, "the weight of client 'w' must be a positive number, got 0"),
        ({"weights": {"u": 1, "v": 2, "w": "heavy"}}, "client 'w' must be a positive number, got 'heavy'"),
    ],
)
def test_options(options: dict[str, Any], message: str) -> None:
    refused(good(), message, **options)


def test_more_than_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(shape: tuple[int, ...]) -> Any:
        raise MemoryError

    monkeypatch.setattr("fedscaffold.data.encoded.aligned_empty", full)
    refused(good(), "12 rows of 3 features need 0.0 GiB of memory; take fewer rows or features")


def test_without_pyarrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow.compute", None)
    with pytest.raises(MissingDependency, match=r"pip install 'fedscaffold\[data\]'"):
        from_frame(good(), target="y", client="site")
