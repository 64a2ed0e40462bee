"""A row of `fedscaffold verify`: what a statement claims, what was measured, and the verdict; and rows as text."""

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from fedscaffold.core import provenance
from fedscaffold.core.files import check_writable, folder_at, write_text
from fedscaffold.core.types import Array
from fedscaffold.theory.bounds import Bound, Condition

Relation = Literal["≤", "≥", "≈", "is"]
Verdict = Literal["holds", "fails", "too noisy", "not claimed", "not tested"]
FAILURES: tuple[Verdict, ...] = ("fails", "too noisy")
ERRORS = 3.0  # standard errors that a measurement may be on the wrong side: one row in 700 by chance
FILES = ("verify.md", "verify.json")


class Measured(NamedTuple):
    """A mean and its standard error, of the same shape."""

    value: Array
    error: Array

    def at(self, index: Any) -> "Measured":
        """Return the values and errors at some indices."""
        return Measured(self.value[index], self.error[index])


@dataclass(frozen=True)
class Printed:
    """Another formula against the same measurement, for example the paper's if it is wrong."""

    formula: str  # in plain text
    predicted: float  # its value, or the norm of it
    difference: float | None = None  # norm of measured minus predicted, if they are not numbers
    label: str = "printed"


@dataclass(frozen=True, kw_only=True)
class StatementRow:
    """One statement in one setting."""

    statement: str  # as the paper numbers it
    claim: str  # in one line
    setting: str  # problem, γ, H, B, N
    relation: Relation  # how measured must stand to predicted; "is" for yes or no
    predicted: float = 0.0  # a number; a norm if the statement is about vectors or matrices, as the next two
    measured: float = 0.0
    standard_error: float = 0.0
    tolerance: float = 0.0  # of "≈", relative
    difference: float | None = None  # norm of measured − predicted, if they are not numbers
    holds: bool | None = None  # the answer of "is"; None if it was not tested
    finding: str = ""  # the measurement, in words
    conditions: tuple[Condition, ...] = ()  # of the statement, on γ and H
    printed: Printed | None = None  # the printed formula if it is wrong and another is judged, or a simpler one

    @property
    def missed(self) -> tuple[Condition, ...]:
        """Conditions that do not hold here; then the statement claims nothing."""
        return tuple(condition for condition in self.conditions if not condition.satisfied)

    @property
    def verdict(self) -> Verdict:
        """Holds, fails, too noisy to judge (which is a failure), not claimed here, or not tested."""
        if self.missed:
            return "not claimed"
        if self.relation == "is":
            return "not tested" if self.holds is None else "holds" if self.holds else "fails"
        if self.relation == "≈" and not self.standard_error <= self.tolerance * abs(self.predicted) / 3.0:
            return "too noisy"
        return "holds" if self._agrees(self.predicted, self.difference) else "fails"

    @property
    def printed_verdict(self) -> Verdict | None:
        """Whether the printed formula, by the same rule, agrees with the measurement."""
        if self.printed is None:
            return None
        return "holds" if self._agrees(self.printed.predicted, self.printed.difference) else "fails"

    def _agrees(self, predicted: float, difference: float | None) -> bool:
        slack = ERRORS * self.standard_error + 1e-12 * abs(predicted)  # rounding, if numbers are computed
        if not np.isfinite([predicted, self.measured, slack]).all():
            return False
        if self.relation == "≤":
            return self.measured - slack <= predicted
        if self.relation == "≥":
            return self.measured + slack >= predicted
        off = abs(self.measured - predicted) if difference is None else difference
        return off <= self.tolerance * abs(predicted) + slack


def failures(rows: Iterable[StatementRow]) -> list[str]:
    """Return sentences about rows that fail, and about statements that no row judges; none if all is well."""
    rows = list(rows)
    found = [
        f"{row.statement}, {row.claim} ({row.setting}): {row.verdict}" for row in rows if row.verdict in FAILURES
    ]
    judged = {row.statement for row in rows if row.verdict in ("holds", *FAILURES)}
    unjudged = dict.fromkeys(row.statement for row in rows if row.statement not in judged)
    return found + [f"{statement}: no setting inside its conditions" for statement in unjudged]


# Estimates, and rows of them


def over_groups(values: ArrayLike) -> Measured:
    """Return the mean over the first axis, of independent repetitions or groups, and its standard error."""
    array = np.asarray(values, dtype=np.float64)
    return Measured(array.mean(axis=0), array.std(axis=0, ddof=1) / np.sqrt(len(array)))


def jackknife(estimate: Callable[..., float], *groups: Array) -> Measured:
    """Return `estimate` of the means over groups, along first axes, and its error by leaving one group out."""
    count = len(groups[0])
    totals = [group.sum(axis=0) for group in groups]
    whole = estimate(*(total / count for total in totals))
    parts = np.array(
        [
            estimate(*((total - group[k]) / (count - 1) for total, group in zip(totals, groups, strict=True)))
            for k in range(count)
        ]
    )
    return Measured(np.array(whole), np.sqrt((count - 1) * parts.var()))


def worst(measured: Measured, bounds: ArrayLike) -> tuple[int, float, float, float]:
    """Return where an upper bound is nearest to failing: index, bound, value, standard error."""
    value, error = np.ravel(measured.value), np.ravel(measured.error)
    limits = np.broadcast_to(np.asarray(bounds, dtype=np.float64), value.shape)
    at = int(np.argmax((value - ERRORS * error) / limits))
    return at, float(limits[at]), float(value[at]), float(error[at])


def bounded(claim: str, setting: str, measured: Measured, limits: Sequence[Bound]) -> StatementRow:
    """Build a row about an upper bound where it is nearest to failing: one limit, or one for each round."""
    at, bound, value, error = worst(measured, [limit.value for limit in limits])
    return StatementRow(
        statement=limits[0].statement,
        claim=claim if len(limits) == 1 else f"{claim}; nearest at T = {at + 1}",
        setting=setting,
        relation="≤",
        predicted=bound,
        measured=value,
        standard_error=error,
        conditions=limits[0].conditions,
    )


def close(
    statement: str,
    claim: str,
    setting: str,
    predicted: ArrayLike,
    measured: Measured,
    tolerance: float,
    **more: Any,
) -> StatementRow:
    """Build a row about a number, or an array in Frobenius norm: measured as predicted within a tolerance."""
    array = np.asarray(predicted)
    numbers: dict[str, Any] = (
        {"predicted": float(array), "measured": float(measured.value), "standard_error": float(measured.error)}
        if array.ndim == 0
        else norms(array, measured)
    )
    return StatementRow(
        statement=statement, claim=claim, setting=setting, relation="≈", tolerance=tolerance, **numbers, **more
    )


def norms(predicted: Array, measured: Measured) -> dict[str, float]:
    """Return ‖P‖, ‖M‖, ‖standard errors‖ and ‖M − P‖, as a row has them."""
    return {
        "predicted": norm(predicted),
        "measured": norm(measured.value),
        "standard_error": norm(measured.error),
        "difference": norm(measured.value - predicted),
    }


def norm(values: Array) -> float:
    """Return the Frobenius norm, over all axes."""
    return float(np.linalg.norm(values.ravel()))


# Rows as text


def number_text(value: float) -> str:
    """Return a number with three or four significant digits."""
    return f"{value:.4g}" if abs(value) >= 0.01 or value == 0.0 else f"{value:.3g}"


def predicted_text(row: StatementRow) -> str:
    """Return the relation and the prediction."""
    if row.relation == "is":
        return "yes"
    within = f" within {100 * row.tolerance:.3g} %" if row.relation == "≈" else ""
    return f"{row.relation} {number_text(row.predicted)}{within}"


def measured_text(row: StatementRow) -> str:
    """Return value ± standard error, for arrays how far off they are, and further findings; or these alone."""
    if row.relation == "is":
        return row.finding
    text = number_text(row.measured)
    if row.standard_error > 0.0:
        text += f" ± {row.standard_error:.2g}"
    if row.difference is not None and row.predicted != 0.0:
        text += f", {100 * row.difference / abs(row.predicted):.2g} % off"
    if row.relation == "≤" and row.predicted > 0.0:
        text += f", {row.measured / row.predicted:.2g} of the bound"  # how much room there is before the row fails
    return f"{text} ({row.finding})" if row.finding else text


def printed_text(row: StatementRow) -> str:
    """Return the printed formula's value and whether it agrees; empty if there is none."""
    if row.printed is None:
        return ""
    off = ""
    if row.relation == "≈" and row.measured != 0.0:
        difference = row.printed.difference
        away = abs(row.measured - row.printed.predicted) if difference is None else difference
        off = f", {100 * away / abs(row.measured):.2g} % off"
    return f"{row.printed.label}: {row.printed_verdict} ({number_text(row.printed.predicted)}{off})"


def missed_text(row: StatementRow) -> str:
    """Return the conditions that fail, with the factor; empty if all hold."""
    return ", ".join(f"{condition.name} missed {condition.missed_by:.3g} times" for condition in row.missed)


def summary(rows: Sequence[StatementRow]) -> str:
    """Return one sentence, and one for each failure."""
    held = sum(row.verdict == "holds" for row in rows)
    outside = sum(row.verdict == "not claimed" for row in rows)
    untested = sum(row.verdict == "not tested" for row in rows)
    parts = [f"{held} rows hold"]
    parts += [f"{outside} are outside their statement's conditions"] if outside else []
    parts += [f"{untested} not tested, as they say why"] if untested else []
    problems = failures(rows)
    parts.append(f"{len(problems)} fail" + ("s" if len(problems) == 1 else "") if problems else "none fails")
    return ", ".join(parts) + "." + "".join(f"\nFAILS: {problem}" for problem in problems)


def to_markdown(rows: Sequence[StatementRow]) -> str:
    """Return all rows as a Markdown table."""
    lines = ["| statement | claim | setting | predicted | measured | verdict |", "|---" * 6 + "|"]
    for row in rows:
        verdict = "; ".join(part for part in (row.verdict, printed_text(row), missed_text(row)) if part)
        claim = row.claim if row.printed is None else f"{row.claim} ({row.printed.label}: {row.printed.formula})"
        cells = (row.statement, claim, row.setting, predicted_text(row), measured_text(row), verdict)
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines) + "\n\n" + summary(rows).replace("\n", "\n\n") + "\n"


def check_folder(out: Path) -> None:
    """Make the folder if it is missing, and raise if it cannot be written."""
    folder_at(out)
    for name in FILES:
        check_writable(out / name)


def save(rows: Sequence[StatementRow], out: Path, settings: dict[str, Any]) -> None:
    """Write the table to verify.md, and every field of every row to verify.json with settings and provenance."""
    content = [{**asdict(row), "verdict": row.verdict, "printed_verdict": row.printed_verdict} for row in rows]
    origin = {**settings, **provenance.origin()}
    text = json.dumps({"provenance": origin, "rows": content}, indent=2, ensure_ascii=False) + "\n"
    for name, each in zip(FILES, (to_markdown(rows), text), strict=True):
        write_text(out / name, each)
