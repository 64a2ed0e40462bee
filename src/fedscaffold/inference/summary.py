"""The table of coefficients with standard errors, tests and intervals, also as plain values for JSON files."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import chdtrc, fdtrc, ndtr, ndtri, stdtr, stdtrit

from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.types import Array
from fedscaffold.inference.closing import FitStatistics
from fedscaffold.inference.layout import COLUMNS, summary_html, summary_text

if TYPE_CHECKING:
    import pandas as pd

MOST_IN_MATRIX = 100  # coefficients up to which the whole covariance matrix is kept


class WaldTest(NamedTuple):
    """A test that some combinations of coefficients are zero.

    Attributes
    ----------
    statistic
        The Wald statistic; divided by df if it is compared with an F distribution.
    df
        Number of combinations.
    df_resid
        Second degrees of freedom of the F distribution; None if a χ² distribution is used.
    p
        Probability of a statistic at least as large if all combinations were zero.

    Examples
    --------
    >>> import numpy as np
    >>> import fedscaffold as fs
    >>> rng = np.random.default_rng(0)
    >>> problem = fs.problems.Ridge(rng.normal(size=(3, 20, 2)), rng.normal(size=(3, 20)))
    >>> fs.inference.summarise(problem).wald_test(["x0", "x1"]).df
    2
    """

    statistic: float
    df: int
    df_resid: int | None
    p: float


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Summary:
    """Coefficients with standard errors, tests and intervals; made by `fedscaffold.inference.summarise`.

    Attributes
    ----------
    names
        Of the coefficients.
    coef, se
        Coefficients and their standard errors, (k,).
    optimisation_error
        Distance of each coefficient to that of the pooled fit, estimated by a Newton step, (k,). z, p, low and
        high take it into account: with it, the error of a coefficient is √(se² + optimisation_error²).
    cov
        Covariance matrix of the coefficients, (k, k).
    intercepts
        Which of the coefficients are intercepts, (k,).
    level
        Confidence level of the intervals.
    df_resid
        Degrees of freedom of the t distribution; None if the normal distribution is used.
    statistics
        Likelihood, AIC, deviance and so on.
    ratio
        Name of exp(coef), such as "odds ratio"; None if it has no meaning.
    facts
        Header lines shown above the table.
    notes
        Sentences shown below the table.

    Examples
    --------
    >>> import numpy as np
    >>> import fedscaffold as fs
    >>> rng = np.random.default_rng(0)
    >>> X = np.stack([rng.normal(size=(4, 100)), np.ones((4, 100))], axis=2)
    >>> y = rng.random((4, 100)) < 1 / (1 + np.exp(-X[:, :, 0]))
    >>> problem = fs.problems.Logistic(X, y)
    >>> summary = fs.inference.summarise(problem, names=("dose", "intercept"), n_intercepts=1)
    >>> summary.to_frame().loc["dose", ["coef", "se"]].round(2).tolist()
    [0.98, 0.13]
    >>> summary.ratios().loc["dose"].round(2).tolist()
    [2.66, 2.06, 3.44]
    """

    names: tuple[str, ...]
    coef: Array
    se: Array
    optimisation_error: Array
    cov: Array
    intercepts: NDArray[np.bool_]
    level: float
    df_resid: int | None
    statistics: FitStatistics
    ratio: str | None
    facts: dict[str, str]
    notes: tuple[str, ...]

    @cached_property
    def error(self) -> Array:
        """√(se² + optimisation_error²), the whole error of each coefficient, (k,)."""
        return np.hypot(self.se, self.optimisation_error)

    @cached_property
    def z(self) -> Array:
        """Coefficients over their errors, (k,); t statistics if `df_resid` is given."""
        with np.errstate(divide="ignore", invalid="ignore"):
            return self.coef / self.error

    @cached_property
    def p(self) -> Array:
        """Two-sided probability of a z at least as large in size if the coefficient were zero, (k,)."""
        tail = -np.abs(self.z)
        return np.asarray(2.0 * (ndtr(tail) if self.df_resid is None else stdtr(self.df_resid, tail)))

    @cached_property
    def low(self) -> Array:
        """Lower ends of the intervals, (k,)."""
        return self.coef - self._half_width()

    @cached_property
    def high(self) -> Array:
        """Upper ends of the intervals, (k,)."""
        return self.coef + self._half_width()

    def _half_width(self) -> Array:
        tail = 0.5 * (1.0 - self.level)
        return np.asarray(-(ndtri(tail) if self.df_resid is None else stdtrit(self.df_resid, tail)) * self.error)

    def to_frame(self) -> "pd.DataFrame":
        """Return a table indexed by coefficient: coef, se, z, p, low, high and optimisation_error."""
        import pandas as pd

        index = pd.Index(self.names, name="coefficient")
        return pd.DataFrame({name: getattr(self, name) for name in COLUMNS}, index=index)

    def ratios(self) -> "pd.DataFrame":
        """Return exp(coefficient) with its interval: odds or rate ratios; raise if they have no meaning."""
        import pandas as pd

        if self.ratio is None:
            raise InvalidInput("exp(coefficient) has no meaning for a Gaussian target; use to_frame()")
        columns = {self.ratio: np.exp(self.coef), "low": np.exp(self.low), "high": np.exp(self.high)}
        return pd.DataFrame(columns, index=pd.Index(self.names, name="coefficient"))

    def wald_test(self, which: Sequence[str] | ArrayLike | None = None) -> WaldTest:
        """Test that several coefficients, or combinations of them, are all zero.

        Parameters
        ----------
        which
            Names of coefficients, or a matrix whose rows are combinations; None for all but intercepts.
        """
        R = self._combinations(which)
        values, matrix = R @ self.coef, R @ self.cov @ R.T
        if np.linalg.matrix_rank(matrix) < len(R):
            raise InvalidInput("these combinations depend on each other; leave some out")
        statistic = float(values @ np.linalg.solve(matrix, values))
        if self.df_resid is None:
            return WaldTest(statistic, len(R), None, float(chdtrc(len(R), statistic)))
        ratio = statistic / len(R)
        return WaldTest(ratio, len(R), self.df_resid, float(fdtrc(len(R), self.df_resid, ratio)))

    def _combinations(self, which: Any) -> Array:
        k = len(self.names)
        if which is None:
            chosen = np.eye(k)[~self.intercepts]
            if not len(chosen):
                raise InvalidInput("there is no coefficient besides intercepts to test")
            return chosen
        if isinstance(which, str):
            which = [which]
        given = list(which) if not isinstance(which, np.ndarray) else which
        if len(given) and all(isinstance(name, str) for name in given):
            unknown = [name for name in given if name not in self.names]
            if unknown:
                raise InvalidInput(f"there is no coefficient {unknown[0]!r}; there are {', '.join(self.names)}")
            return np.eye(k)[[self.names.index(name) for name in given]]
        try:
            R = np.atleast_2d(np.asarray(given, dtype=np.float64))
        except (TypeError, ValueError):
            raise InvalidInput("which must be names of coefficients, or a matrix of numbers") from None
        if R.ndim != 2 or R.shape[1] != k or not len(R) or not np.isfinite(R).all():
            raise InvalidInput(f"which must have {k} columns, one for each coefficient, got shape {R.shape}")
        return R

    def text(self) -> str:
        """Return the summary as text, of at most 79 columns if names are short."""
        return summary_text(self)

    def __repr__(self) -> str:
        return self.text()

    def _repr_html_(self) -> str:
        return summary_html(self)


def summary_to_plain(summary: Summary) -> dict[str, Any]:
    """Return a summary as plain values; of many coefficients without their covariances."""
    k = len(summary.names)
    rows = zip(*(getattr(summary, name).tolist() for name in COLUMNS), strict=True)
    return {
        "level": summary.level,
        "df_resid": summary.df_resid,
        "coefficients": {
            name: dict(zip(COLUMNS, map(_finite, row), strict=True))
            for name, row in zip(summary.names, rows, strict=True)
        },
        "intercepts": [summary.names[j] for j in np.flatnonzero(summary.intercepts).tolist()],
        "covariance": summary.cov.tolist() if k <= MOST_IN_MATRIX else None,
        "statistics": {name: _finite(value) for name, value in asdict(summary.statistics).items()},
        "ratio": summary.ratio,
        "facts": dict(summary.facts),
        "notes": list(summary.notes),
    }


def summary_from_plain(found: Mapping[str, Any]) -> Summary:
    """Return the summary that `summary_to_plain` was given; raise for anything else."""
    try:
        names = tuple(found["coefficients"])
        column = {
            name: np.array([_number(found["coefficients"][own][name]) for own in names])
            for name in ("coef", "se", "optimisation_error")
        }
        k, matrix = len(names), found["covariance"]
        return Summary(
            names=names,
            cov=np.full((k, k), np.nan) if matrix is None else np.array(matrix, dtype=np.float64).reshape(k, k),
            intercepts=np.array([name in found["intercepts"] for name in names]),
            level=float(found["level"]),
            df_resid=None if found["df_resid"] is None else int(found["df_resid"]),
            statistics=FitStatistics(**{name: _number(value) for name, value in found["statistics"].items()}),
            ratio=found["ratio"],
            facts=dict(found["facts"]),
            notes=tuple(found["notes"]),
            **column,
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InvalidInput(f"these are not standard errors that fedscaffold wrote: {error}") from None


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _number(value: float | None) -> float:
    return math.nan if value is None else float(value)
