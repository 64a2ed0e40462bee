"""Real data that scikit-learn and statsmodels ship, as regressions with clients."""

import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from sklearn import datasets
from statsmodels import datasets as sm

from fedscaffold.core.types import Array, IntArray


class Regression(NamedTuple):
    """Rows with a constant as the last column, a target, and the client of each row; columns are standardised."""

    kind: str
    names: tuple[str, ...]
    X: Array
    y: Array
    clients: IntArray
    offset: Array | None = None


def regression(kind: str, X: Any, y: Any, clients: Any, names: Any, offset: Any = None) -> Regression:
    """Clients are numbered; columns are standardised so that the pooled fit is exact to many digits."""
    X = np.asarray(X, dtype=np.float64)
    X = np.column_stack([(X - X.mean(axis=0)) / X.std(axis=0), np.ones(len(X))])
    groups = np.unique(np.asarray(clients), return_inverse=True)[1].astype(np.int64)
    shift = None if offset is None else np.asarray(offset, dtype=np.float64)
    return Regression(kind, (*map(str, names), "intercept"), X, np.asarray(y, dtype=np.float64), groups, shift)


def bins(values: Any, count: int) -> Any:
    """Clients that differ in a column: as many of about equal size."""
    edges = np.quantile(values, np.linspace(0, 1, count + 1)[1:-1])
    return np.searchsorted(edges, values)


def shipped(name: str) -> Any:
    """A data set of statsmodels as a frame."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return getattr(sm, name).load_pandas().data


def _of_frame(kind: str, name: str, target: str, columns: str, clients: str | int, *, of: str = "") -> Regression:
    """Columns of a data set of statsmodels; clients by a column, or quantiles of the column `of`."""
    frame = shipped(name).dropna()
    names = columns.split()
    groups = frame[clients] if isinstance(clients, str) else bins(frame[of or names[0]], clients)
    return regression(kind, frame[names], frame[target], groups, names)


def breast_cancer() -> Regression:
    data = datasets.load_breast_cancer()
    X = data.data[:, [1, 4, 8, 9]]
    return regression("logistic", X, data.target, bins(data.data[:, 0], 5), data.feature_names[[1, 4, 8, 9]])


def diabetes() -> Regression:
    data = datasets.load_diabetes()
    return regression("ridge", data.data, data.target, bins(data.data[:, 0], 8), data.feature_names)


def iris() -> Regression:
    data = datasets.load_iris()
    return regression("multinomial", data.data[:, 1:2], data.target, np.arange(150) % 6, data.feature_names[1:2])


def wine() -> Regression:
    data = datasets.load_wine()
    return regression("multinomial", data.data[:, [1, 2, 3]], data.target, np.arange(178) % 7, ("a", "b", "c"))


def linnerud() -> Regression:
    data = datasets.load_linnerud()
    return regression("poisson", data.target[:, :2], data.data[:, 1], np.arange(20) % 4, data.target_names[:2])


def anes_classes() -> Regression:
    frame = shipped("anes96")
    names = ["logpopul", "selfLR", "age", "educ"]
    return regression("multinomial", frame[names], frame["PID"].clip(1, 5) - 1, bins(frame["income"], 6), names)


def rand_visits() -> Regression:
    frame = shipped("randhie").iloc[::5]
    names = ["lncoins", "idp", "lpi", "physlm", "disea", "hlthg", "hlthf"]
    return regression(
        "poisson", frame[names], frame["mdvis"], bins(frame["disea"] + np.arange(len(frame)) % 7, 12), names
    )


def committee() -> Regression:
    """With an exposure."""
    frame = shipped("committee")
    names = ["PRESTIGE", "STAFF"]
    offset = np.log(frame["SIZE"])
    return regression("poisson", frame[names], frame["BILLS104"], np.arange(len(frame)) % 5, names, offset)


def strikes() -> Regression:
    frame = shipped("strikes")
    return regression("gamma", frame[["iprod"]], frame["duration"], np.arange(len(frame)) % 6, ["iprod"])


def affairs() -> Regression:
    frame = shipped("fair")
    names = ["rate_marriage", "age", "yrs_married", "children", "religious", "educ"]
    return regression("logistic", frame[names], frame["affairs"] > 0, frame["occupation"], names)


DATA_SETS: dict[str, Callable[[], Regression]] = {
    "breast_cancer": breast_cancer,
    "diabetes": diabetes,
    "iris": iris,
    "wine": wine,
    "linnerud": linnerud,
    "anes_classes": anes_classes,
    "rand_visits": rand_visits,
    "committee": committee,
    "strikes": strikes,
    "anes_vote": lambda: _of_frame("logistic", "anes96", "vote", "logpopul selfLR age educ income", 7, of="age"),
    "affairs": affairs,
    "spector": lambda: _of_frame("logistic", "spector", "GRADE", "GPA TUCE PSI", 3),
    "grunfeld": lambda: _of_frame("ridge", "grunfeld", "invest", "value capital", "firm"),
    "statecrime": lambda: _of_frame("ridge", "statecrime", "murder", "urban poverty hs_grad single", 6),
    "stackloss": lambda: _of_frame("ridge", "stackloss", "STACKLOSS", "AIRFLOW WATERTEMP ACIDCONC", 3),
    "scotland": lambda: _of_frame("gamma", "scotland", "YES", "COUTAX UNEMPF MOR ACT GDP AGE", 4),
    "punishment": lambda: _of_frame(
        "poisson", "cpunish", "EXECUTIONS", "INCOME PERPOVERTY VC100k96 SOUTH DEGREE", 3
    ),
}
