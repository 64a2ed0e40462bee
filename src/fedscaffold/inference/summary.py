"""The table of coefficients with standard errors, tests and intervals: as text, HTML and plain values."""

import math
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from html import escape
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import chdtrc, fdtrc, ndtr, ndtri, stdtr, stdtrit

from fedscaffold.core.display import html_summary
from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.imports import load_optional
from fedscaffold.core.types import Array
from fedscaffold.inference.closing import FitStatistics

if TYPE_CHECKING:
    import pandas as pd

WIDTH = 79  # of a terminal
COLUMNS = ("coef", "se", "z", "p", "low", "high", "optimisation_error")
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
        return self._frame({name: getattr(self, name) for name in COLUMNS})

    def ratios(self) -> "pd.DataFrame":
        """Return exp(coefficient) with its interval: odds or rate ratios; raise if they have no meaning."""
        if self.ratio is None:
            raise InvalidInput("exp(coefficient) has no meaning for a Gaussian target; use to_frame()")
        return self._frame({self.ratio: np.exp(self.coef), "low": np.exp(self.low), "high": np.exp(self.high)})

    def _frame(self, columns: dict[str, Array]) -> "pd.DataFrame":
        pd = load_optional("pandas", "data frames need pandas", extra="study")
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

    def _header(self) -> tuple[str, ...]:
        """Return names of the table's columns; the last one is the optimisation error over the standard error."""
        letter = "z" if self.df_resid is None else "t"
        tail = 0.5 * (1.0 - self.level)
        ends = (f"[{tail:.4g}", f"{1.0 - tail:.4g}]")
        return ("", "coef", "std err", letter, f"P>|{letter}|", *ends, "opt/se")

    def _body(self) -> list[tuple[str, ...]]:
        """Return the cells of the table, one row per coefficient, the name first."""
        columns = [getattr(self, name).tolist() for name in COLUMNS]
        return [
            (
                name, number(coef), number(se), f"{z:.2f}" if math.isfinite(z) else "–", probability(p),
                number(low), number(high), f"{error / se:.1%}" if se > 0 else "–",
            )
            for name, coef, se, z, p, low, high, error in zip(self.names, *columns, strict=True)
        ]  # fmt: skip

    def _facts(self) -> dict[str, str]:
        """Return the header lines shown above the coefficient table, by name."""
        s = self.statistics
        named = {
            "log-likelihood": s.log_likelihood,
            "null log-likelihood": s.null_log_likelihood,
            "AIC": s.aic,
            "BIC": s.bic,
            "deviance": s.deviance,
            "R²" if self.df_resid is not None or self.ratio is None else "pseudo-R²": s.pseudo_r2,
        }
        found = {name: f"{value:,.6g}" for name, value in named.items() if math.isfinite(value)}
        return self.facts | found | ({} if s.dispersion == 1.0 else {"dispersion": f"{s.dispersion:.5g}"})

    def text(self) -> str:
        """Return the summary as text: facts in two columns, the table, and the notes.

        Names are never shortened, so that rows can be distinguished; long ones make the table wider than 79
        columns.
        """
        given = [f"{name}: {value}" for name, value in self._facts().items()]
        half = (len(given) + 1) // 2
        left, right = given[:half], [*given[half:], ""]
        lines = ["=" * WIDTH]
        lines += [f"{one:<40}{other}".rstrip() for one, other in zip(left, right, strict=False)]
        table = [self._header(), *self._body()]
        widths = [max(len(row[j]) for row in table) for j in range(len(table[0]))]
        cells = [[cell.rjust(width) for cell, width in zip(row, widths, strict=True)] for row in table]
        shown = ["  ".join([row[0].ljust(widths[0]), *own[1:]]) for row, own in zip(table, cells, strict=True)]
        rule = "-" * max(WIDTH, len(shown[0]))
        lines += [rule.replace("-", "="), shown[0], rule, *shown[1:], rule.replace("-", "=")]
        for note in self.notes:
            lines += textwrap.wrap(note, WIDTH, initial_indent="- ", subsequent_indent="  ")
        return "\n".join(lines)

    def __repr__(self) -> str:
        return self.text()

    def _repr_html_(self) -> str:
        head = "".join(f'<th scope="col">{escape(name)}</th>' for name in self._header())
        rows = "".join(
            f'<tr><th scope="row">{escape(name)}</th>' + "".join(f"<td>{escape(c)}</td>" for c in cells) + "</tr>"
            for name, *cells in self._body()
        )
        notes = "".join(f"<li>{escape(note)}</li>" for note in self.notes)
        table = f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"
        return f"{html_summary('Summary', self._facts())}{table}<ul>{notes}</ul>"


def number(value: float, digits: int = 4) -> str:
    """Format a number with some significant digits, without an exponent if that is short."""
    if not math.isfinite(value):
        return "–"
    if value == 0.0 or 1e-3 <= abs(value) < 1e6:
        places = digits if value == 0.0 else max(0, digits - 1 - math.floor(math.log10(abs(value))))
        return f"{value:.{min(places, 6)}f}"
    return f"{value:.{digits - 1}e}"


def probability(p: float) -> str:
    """Format a p-value with three places, or "<0.001"."""
    if math.isnan(p):
        return "–"
    return "<0.001" if p < 5e-4 else f"{p:.3f}"


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
            name: np.array([found["coefficients"][own][name] for own in names], dtype=np.float64)  # NaN for None
            for name in ("coef", "se", "optimisation_error")
        }
        k, matrix = len(names), found["covariance"]
        return Summary(
            names=names,
            cov=np.full((k, k), np.nan) if matrix is None else np.array(matrix, dtype=np.float64).reshape(k, k),
            intercepts=np.array([name in found["intercepts"] for name in names]),
            level=float(found["level"]),
            df_resid=None if found["df_resid"] is None else int(found["df_resid"]),
            statistics=FitStatistics(
                **{
                    name: math.nan if value is None else float(value)
                    for name, value in found["statistics"].items()
                }
            ),
            ratio=found["ratio"],
            facts=dict(found["facts"]),
            notes=tuple(found["notes"]),
            **column,
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InvalidInput(f"these are not standard errors that fedscaffold wrote: {error}") from None


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
