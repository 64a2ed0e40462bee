"""The report of `conformance.check`: one entry per check, as text and as plain data."""

import math
import textwrap
from dataclasses import asdict, dataclass
from typing import Any, Literal

Verdict = Literal["passed", "failed", "not supported"]
WIDTH, INDENT = 80, 15  # of the printed report, which suits a terminal


@dataclass(frozen=True, kw_only=True)
class Entry:
    """The result of one check.

    Attributes
    ----------
    name
        The statement that is checked.
    verdict
        "passed", "failed" or "not supported".
    measured
        The worst value over all tasks; None if the check did not get that far.
    expected
        The meaning of the number, and its limit.
    hint
        The likely cause of a failure, or the reason why it is not supported; empty if passed.
    error
        The traceback of an exception that the implementation raised; None if it raised none.

    Examples
    --------
    >>> from fedscaffold.conformance import Entry
    >>> entry = Entry(name="reaches the optimum", verdict="passed", measured=2e-9,
    ...               expected="distance to the optimum ≤ 1e-08", hint="")
    >>> print(entry)
    passed         reaches the optimum
                   distance to the optimum ≤ 1e-08, measured 2e-09
    """

    name: str
    verdict: Verdict
    measured: float | None
    expected: str
    hint: str
    error: str | None = None

    def __str__(self) -> str:
        found = "" if self.measured is None else f", measured {_number(self.measured)}"
        lines = [f"{self.expected}{found}"] if self.verdict != "not supported" else []
        if self.error is not None:
            lines.append(self.error.strip().splitlines()[-1])
        lines += [self.hint] if self.hint else []
        mark = "FAILED" if self.verdict == "failed" else self.verdict
        indent = " " * INDENT
        wrapped = [
            textwrap.fill(line, WIDTH, initial_indent=indent, subsequent_indent=indent, break_long_words=True)
            for line in lines
        ]
        return "\n".join([f"{mark:{INDENT}s}{self.name}", *wrapped])


def _number(value: float) -> str:
    """Format with three digits; rounding errors, which differ between machines, are only called small."""
    return "< 1e-12" if 0.0 < value < 1e-12 else f"{value:.3g}"


@dataclass(frozen=True, kw_only=True, repr=False)
class Report:
    """One entry per check, in the order in which failures are best fixed.

    Examples
    --------
    >>> from fedscaffold.conformance import Entry, Report
    >>> entry = Entry(name="reaches the optimum", verdict="failed", measured=0.1,
    ...               expected="distance to the optimum ≤ 1e-08", hint="is the correction applied at all?")
    >>> report = Report(entries=(entry,))
    >>> report
    Report(0 passed, 1 failed, 0 not supported)
    >>> report.passed, report.failures
    (False, ('reaches the optimum',))
    """

    entries: tuple[Entry, ...]

    @property
    def passed(self) -> bool:
        """Whether at least one check passed and none failed; checks that are not supported do not count."""
        return self.count("failed") == 0 and self.count("passed") > 0

    @property
    def failures(self) -> tuple[str, ...]:
        """Names of the checks that failed."""
        return tuple(entry.name for entry in self.entries if entry.verdict == "failed")

    def count(self, verdict: Verdict) -> int:
        """Return the number of checks with this verdict."""
        return sum(entry.verdict == verdict for entry in self.entries)

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for `json.dumps`; a measured number that is not finite becomes None."""
        rows = [asdict(entry) for entry in self.entries]
        for row in rows:
            if row["measured"] is not None and not math.isfinite(row["measured"]):
                row["measured"] = None
        return {"passed": self.passed, "checks": rows}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> "Report":
        """Return the report that `to_dict` wrote; a measured number that was not finite stays None."""
        return cls(entries=tuple(Entry(**row) for row in data["checks"]))

    def __repr__(self) -> str:
        return f"Report({self._counts()})"

    def __str__(self) -> str:
        return "\n".join([f"Scaffold conformance: {self._counts()}", "", *map(str, self.entries)])

    def _counts(self) -> str:
        return ", ".join(f"{self.count(verdict)} {verdict}" for verdict in ("passed", "failed", "not supported"))
