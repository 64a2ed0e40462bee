"""What the checks found, as text and as data."""

import math
import textwrap
from dataclasses import asdict, dataclass
from typing import Any, Literal

Verdict = Literal["passed", "failed", "not supported"]
WIDTH = 80
INDENT = 15
ROUNDING = 1e-12


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One check.

    Attributes
    ----------
    name
        What should hold.
    verdict
        "passed", "failed" or "not supported".
    measured
        A number, the worst of all tasks; None if the check did not get that far.
    expected
        What the number means and what it should be.
    hint
        A sentence: the likely cause of a failure, or what is not supported; empty when passed.
    error
        The traceback of an exception that the implementation raised; None if it raised none.
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
    """Three digits; rounding errors, which differ from machine to machine, are not spelled out."""
    return f"< {ROUNDING:g}" if 0.0 < value < ROUNDING else f"{value:.3g}"


@dataclass(frozen=True, kw_only=True)
class Report:
    """One entry per check, in the order in which to mend what failed."""

    entries: tuple[Entry, ...]

    @property
    def passed(self) -> bool:
        """Whether no check failed and at least one passed. Those not supported count neither way: see `count`."""
        return self.count("failed") == 0 and self.count("passed") > 0

    @property
    def failures(self) -> tuple[str, ...]:
        """Names of the checks that failed."""
        return tuple(entry.name for entry in self.entries if entry.verdict == "failed")

    def count(self, verdict: Verdict) -> int:
        """How many checks ended so."""
        return sum(entry.verdict == verdict for entry in self.entries)

    def to_dict(self) -> dict[str, Any]:
        """Plain data for `json.dumps`; a measured number that is not finite becomes None."""
        rows = [asdict(entry) for entry in self.entries]
        for row in rows:
            if row["measured"] is not None and not math.isfinite(row["measured"]):
                row["measured"] = None
        return {"passed": self.passed, "checks": rows}

    def __str__(self) -> str:
        counts = ", ".join(f"{self.count(verdict)} {verdict}" for verdict in ("passed", "failed", "not supported"))
        return "\n".join([f"Scaffold conformance: {counts}", "", *map(str, self.entries)])
