"""Problems from tables against problems built by hand, on data that scikit-learn ships."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits, load_wine
from sklearn.linear_model import LogisticRegression
from sklearn.linear_model import Ridge as SklearnRidge

import fedscaffold as fs
from fedscaffold.data import from_frame, partition
from fedscaffold.data.tables import BLOCK
from fedscaffold.problems import Logistic, Ridge


class Stranger:
    """A table of another library, which knows its columns and Arrow's C stream interface."""

    def __init__(self, frame: pd.DataFrame) -> None:
        self.frame = frame
        self.columns = list(frame.columns)

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        return self.frame.__arrow_c_stream__(requested_schema)


AS: dict[str, Callable[[pd.DataFrame], Any]] = {
    "pandas": lambda frame: frame,
    "polars": pl.from_pandas,
    "pyarrow": lambda frame: pa.Table.from_pandas(frame, preserve_index=False),
    "batch": lambda frame: pa.RecordBatch.from_pandas(frame, preserve_index=False),
    "stranger": Stranger,
    "chunks": lambda frame: pa.Table.from_batches(
        pa.Table.from_pandas(frame, preserve_index=False).to_batches(max_chunksize=17)
    ),
}


def bunch(load: Any) -> pd.DataFrame:
    frame = load(as_frame=True).frame
    return frame.assign(site=partition.iid(frame.target, n_clients=7, seed=1))


def mixed() -> pd.DataFrame:
    """Every kind of column, clients of unequal sizes in a random order, more rows than a block."""
    rng = np.random.default_rng(0)
    n = 2 * BLOCK + 123
    return pd.DataFrame(
        {
            "age": rng.normal(50, 10, n),
            "ward": rng.choice(["B", "A", "C", "ä b"], n),
            "smoker": rng.random(n) < 0.3,
            "visits": rng.integers(0, 9, n),
            "grade": pd.Categorical(rng.choice(["2", "10", "1"], n)),
            "dose": rng.normal(size=n).astype(np.float32),
            "hospital": rng.choice(["Ulm", "Bonn", "Kiel"], n, p=[0.6, 0.3, 0.1]),
            "cost": rng.normal(size=n),
            "ill": rng.choice(["no", "yes"], n),
        }
    )


def by_hand(frame: pd.DataFrame) -> tuple[list[Any], list[pd.DataFrame]]:
    names = sorted(frame["hospital"].unique())
    parts = [frame[frame["hospital"] == name] for name in names]
    features = [
        np.column_stack(
            [part["age"]]
            + [(part["ward"] == ward).astype(float) for ward in ("A", "B", "C", "ä b")]
            + [part["smoker"].astype(float), part["visits"]]
            + [(part["grade"] == grade).astype(float) for grade in ("1", "10", "2")]
            + [part["dose"].astype(float)]
        )
        for part in parts
    ]
    return features, parts


FEATURES = ["age", "ward", "smoker", "visits", "grade", "dose"]


@pytest.mark.parametrize("library", AS)
def test_every_library_gives_the_problem_made_by_hand(library: str) -> None:
    frame = mixed()
    X, parts = by_hand(frame)
    sizes = [len(part) for part in parts]
    expected = Ridge(X, [part["cost"] for part in parts], l2=0.1, weights=sizes)
    table = AS[library](frame)
    problem = from_frame(table, target="cost", client="hospital", features=FEATURES, l2=0.1)
    assert isinstance(problem, Ridge)
    assert problem.fingerprint() == expected.fingerprint()
    assert problem.client_names == ("Bonn", "Kiel", "Ulm")
    assert problem.classes is None
    labels = [np.where(part["ill"] == "yes", 1.0, -1.0) for part in parts]
    logistic = from_frame(
        table, target="ill", client="hospital", features=FEATURES, kind="logistic", l2=0.2, weights="uniform"
    )
    assert isinstance(logistic, Logistic)
    assert logistic.fingerprint() == Logistic(X, labels, l2=0.2).fingerprint()
    assert logistic.classes == ("no", "yes")


def test_everything_but_the_metadata_is_as_the_ordinary_constructor_makes_it() -> None:
    """The problem is built around its parent's constructor, so whatever that sets must be set here too."""
    frame = mixed()
    X, parts = by_hand(frame)
    expected = vars(Ridge(X, [part["cost"] for part in parts], l2=0.1, weights=[len(part) for part in parts]))
    problem = from_frame(frame, target="cost", client="hospital", features=FEATURES, l2=0.1)
    found = vars(problem)
    assert set(found) == set(expected) | {"client_names", "encoding", "vectors"}
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value)
        assert type(found[name]) is type(value)
        if isinstance(value, np.ndarray):
            assert found[name].dtype == value.dtype
            assert not found[name].flags.writeable
    assert problem.x.ctypes.data % 64 == 0
    assert problem.x.flags.c_contiguous


@pytest.mark.parametrize("library", AS)
@pytest.mark.parametrize(
    ("load", "kind"),
    [(load_diabetes, "ridge"), (load_breast_cancer, "logistic"), (load_wine, "ridge"), (load_digits, "ridge")],
)
def test_real_data(load: Any, kind: Any, library: str) -> None:
    frame = bunch(load)
    options: dict[str, Any] = {"standardize": load is not load_digits, "l2": 0.1, "intercept": True}
    problem = from_frame(AS[library](frame), target="target", client="site", kind=kind, **options)
    assert (
        problem.fingerprint()
        == from_frame(frame, target="target", client="site", kind=kind, **options).fingerprint()
    )
    assert problem.client_names == tuple(range(7))
    assert problem.encoding.names == (*frame.columns.drop(["target", "site"]), "intercept")


def test_weights_by_rows_give_the_pooled_model() -> None:
    """θ* against scikit-learn's, whose penalty is not divided by the number of rows."""
    frame = bunch(load_diabetes).assign(
        site=lambda f: partition.quantity(f.target, n_clients=5, alpha=0.5, seed=0)
    )
    problem = from_frame(frame, target="target", client="site", l2=0.003)
    X, y = frame.drop(columns=["target", "site"]), frame["target"]
    pooled = SklearnRidge(alpha=0.003 * len(frame), fit_intercept=False).fit(X, y)
    np.testing.assert_allclose(problem.optimum(), pooled.coef_, rtol=1e-8)
    uniform = from_frame(frame, target="target", client="site", l2=0.003, weights="uniform")
    assert np.abs(uniform.optimum() - pooled.coef_).max() > 1
    cancer = bunch(load_breast_cancer)
    logistic = from_frame(cancer, target="target", client="site", kind="logistic", l2=0.05, standardize=True)
    Z = cancer.drop(columns=["target", "site"])
    Z = (Z - Z.mean()) / Z.std(ddof=0)
    model = LogisticRegression(C=1 / (0.05 * len(Z)), fit_intercept=False, tol=1e-10, max_iter=10_000)
    np.testing.assert_allclose(logistic.optimum(), model.fit(Z, cancer["target"]).coef_[0], rtol=0, atol=1e-6)


def test_weights_by_name_and_runs() -> None:
    frame = mixed().iloc[:2000]
    weights = {"Ulm": 1, "Bonn": 2, "Kiel": 5}
    problem = from_frame(
        frame,
        target="ill",
        client="hospital",
        features=["smoker", "dose"],
        kind="logistic",
        l2=0.1,
        weights=weights,
    )
    assert problem.weights.tolist() == [0.25, 0.625, 0.125]
    trace = fs.run(problem, fs.Scaffold(step_size=0.2, local_steps=10), rounds=60)
    assert trace.mse[0, -1] < 1e-6 * trace.mse[0, 0]
    assert isinstance(problem, fs.problems.Logistic)
    assert fs.theory.predict(problem, fs.Scaffold(step_size=0.2, local_steps=10), batch_size=5).mse > 0


def test_columns_that_are_not_asked_for_may_hold_anything() -> None:
    junk: Any = [object()] * 50
    frame = mixed().iloc[:50].assign(junk=junk)
    odd = pl.from_pandas(frame.drop(columns="junk")).with_columns(junk=pl.Series(junk, dtype=pl.Object))
    made = [from_frame(table, target="cost", client="hospital", features=["age"]) for table in (frame, odd)]
    assert made[0].fingerprint() == made[1].fingerprint()


def test_a_subset_keeps_names_and_encoding() -> None:
    problem = from_frame(mixed(), target="cost", client="hospital", features=FEATURES, l2=0.1)
    part = problem.subset([2, 0])
    assert type(part) is type(problem)
    assert part.client_names == ("Ulm", "Bonn")
    assert part.encoding is problem.encoding
    rows = [slice(problem.offsets[c], problem.offsets[c + 1]) for c in (2, 0)]
    plain = Ridge(
        [problem.x[r] for r in rows], [problem.y[r] for r in rows], l2=0.1, weights=problem.weights[[2, 0]]
    )
    assert part.fingerprint() == plain.fingerprint()


def test_clients_are_sorted_and_rows_keep_their_order() -> None:
    frame = pd.DataFrame({"c": [10, 2, 10, 2, 1, 1], "x": [0.0, 1, 2, 3, 4, 5], "y": [0.0, 10, 20, 30, 40, 50]})
    problem = from_frame(frame, target="y", client="c")
    assert problem.client_names == (1, 2, 10)
    assert problem.x[:, 0].tolist() == [4, 5, 1, 3, 0, 2]
    assert problem.y.tolist() == [40, 50, 10, 30, 0, 20]


@pytest.mark.parametrize(
    ("values", "classes"),
    [
        ([True, False, True, False], (False, True)),
        ([3, 7, 3, 7], (3, 7)),
        (["sick", "well", "sick", "sick"], ("sick", "well")),
        ([1.0, 0.0, 1.0, 0.0], (0.0, 1.0)),
        (pd.Categorical(["b", "a", "a", "b"], categories=["b", "a", "never"]), ("a", "b")),
    ],
)
@pytest.mark.parametrize("library", AS)
def test_any_two_classes(values: Any, classes: tuple[Any, Any], library: str) -> None:
    frame = pd.DataFrame({"c": ["u", "u", "v", "v"], "x": [1.0, 2, 3, 4], "y": values})
    problem = from_frame(AS[library](frame), target="y", client="c", kind="logistic")
    assert problem.classes == classes
    assert [type(value) for value in problem.classes or ()] == [type(value) for value in classes]
    assert problem.y.tolist() == [1.0 if value == classes[1] else -1.0 for value in frame["y"]]


@pytest.mark.parametrize("library", AS)
def test_missing_values_by_means_and_a_category_of_their_own(library: str) -> None:
    frame = pd.DataFrame(
        {
            "c": ["u", "u", "u", "v", "v", "v"],
            "x": [1.0, np.nan, 2.0, 30.0, np.nan, np.nan],
            "flag": pd.array([True, None, False, True, True, False], dtype="boolean"),
            "ward": ["A", None, "B", "A", "B", None],
            "y": [1.0, 2, 3, 4, 5, 6],
        }
    )
    problem = from_frame(AS[library](frame), target="y", client="c", missing="mean")
    mean = (2 * 1.5 + 1 * 30.0) / 3  # clients' means weighted by how many values they have
    assert problem.encoding.names == ("x", "flag", "ward=A", "ward=B", "ward missing")
    np.testing.assert_allclose(problem.x[:, 0], [1, mean, 2, 30, mean, mean], rtol=1e-15)
    np.testing.assert_allclose(problem.x[:, 1], [1, 0.6, 0, 1, 1, 0], rtol=1e-15)
    assert problem.x[:, 2:].tolist() == [[1, 0, 0], [0, 0, 1], [0, 1, 0], [1, 0, 0], [0, 1, 0], [0, 0, 1]]
    again = problem.encoding.encode(frame.assign(y=None, c=None))
    np.testing.assert_array_equal(again, problem.x)


def test_standardised_columns() -> None:
    frame = mixed()
    options: dict[str, Any] = {
        "target": "cost",
        "client": "hospital",
        "features": ["age", "smoker", "visits", "ward"],
    }
    plain = from_frame(frame, **options)
    problem = from_frame(frame, **options, standardize=True)
    raw = plain.x[:, :3]
    np.testing.assert_allclose(problem.x[:, :3], (raw - raw.mean(axis=0)) / raw.std(axis=0), rtol=0, atol=1e-12)
    np.testing.assert_array_equal(problem.x[:, 3:], plain.x[:, 3:])


def test_whole_numbers_as_categories_and_an_intercept() -> None:
    frame = pd.DataFrame({"c": [0, 0, 1, 1], "zip": [20095, 10115, 20095, 10115], "y": [0.0, 1, 2, 3]})
    problem = from_frame(frame, target="y", client="c", categorical=["zip"], intercept=True)
    assert problem.encoding.names == (
        "zip=20095",
        "intercept",
    )  # the first of two equally frequent
    assert problem.x.tolist() == [[1, 1], [0, 1], [1, 1], [0, 1]]


@given(
    rows=st.lists(
        st.tuples(
            st.integers(0, 4),
            st.floats(-1e6, 1e6, allow_subnormal=False),
            st.sampled_from(["", "a", "b c", "ü", "=", "a,b"]),
            st.booleans(),
        ),
        min_size=1,
        max_size=60,
    )
)
def test_every_row_arrives_once_with_its_client(rows: list[tuple[int, float, str, bool]]) -> None:
    frame = pd.DataFrame(rows, columns=["c", "x", "t", "b"]).assign(y=np.arange(len(rows)) * 1.0)
    problems = [from_frame(to(frame), target="y", client="c", min_rows=1) for to in AS.values()]
    assert len({problem.fingerprint() for problem in problems}) == 1
    problem = problems[0]
    owners = np.repeat(problem.client_names, problem.sizes)
    texts = sorted({row[2] for row in rows})
    for owner, x, y in zip(owners, problem.x, problem.y, strict=True):
        c, number, text, flag = rows[int(y)]
        assert (owner, x[0], x[-1]) == (c, number, flag)
        assert x[1:-1].tolist() == [float(text == other) for other in texts]
    assert sorted(problem.y) == list(range(len(rows)))
