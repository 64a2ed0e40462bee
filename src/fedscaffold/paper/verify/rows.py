"""A row of `fedscaffold verify`: what a statement claims, what was measured, and the verdict."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from fedscaffold.core.types import Array
from fedscaffold.theory.bounds import Bound, Condition

Relation = Literal["≤", "≥", "≈", "is"]
Verdict = Literal["holds", "fails", "too noisy", "not claimed", "not tested"]
FAILURES: tuple[Verdict, ...] = ("fails", "too noisy")
JUDGED: tuple[Verdict, ...] = ("holds", *FAILURES)
ERRORS = 3.0  # standard errors that a measurement may be on the wrong side
ROUNDING = 1e-12  # relative, for numbers that are computed and not sampled


class Measured(NamedTuple):
    """A mean and its standard error, of the same shape."""

    value: Array
    error: Array

    def at(self, index: Any) -> "Measured":
        """The values and errors at some indices."""
        return Measured(self.value[index], self.error[index])


@dataclass(frozen=True)
class Printed:
    """Another formula against the same measurement: what the paper prints where it is wrong, for example.

    Attributes
    ----------
    formula
        In plain text.
    predicted
        Its value, or the norm of it.
    difference
        Norm of measured minus predicted, where they are not numbers.
    label
        What it is, in a word or two.
    """

    formula: str
    predicted: float
    difference: float | None = None
    label: str = "printed"


@dataclass(frozen=True, kw_only=True)
class StatementRow:
    """One statement in one setting.

    Attributes
    ----------
    statement
        As the paper numbers it.
    claim
        One line.
    setting
        Problem, γ, H, B, N.
    relation
        How measured must stand to predicted: "≤", "≥", "≈", or "is" for yes or no.
    predicted, measured, standard_error
        Numbers; norms where the statement is about vectors or matrices.
    tolerance
        Of "≈", relative.
    difference
        Norm of measured − predicted, where they are not numbers.
    holds
        The answer of "is"; None if it was not tested.
    finding
        What was measured, in words.
    conditions
        What the statement needs of γ and H.
    printed
        Another formula than the one that is judged: the printed one where it is wrong, or a simpler one.
    """

    statement: str
    claim: str
    setting: str
    relation: Relation
    predicted: float = 0.0
    measured: float = 0.0
    standard_error: float = 0.0
    tolerance: float = 0.0
    difference: float | None = None
    holds: bool | None = None
    finding: str = ""
    conditions: tuple[Condition, ...] = ()
    printed: Printed | None = None

    @property
    def missed(self) -> tuple[Condition, ...]:
        """Conditions that do not hold here; then the statement claims nothing."""
        return tuple(condition for condition in self.conditions if not condition.satisfied)

    @property
    def verdict(self) -> Verdict:
        """Holds, fails, too noisy to tell (which is a failure), not claimed here, or not tested."""
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
        slack = ERRORS * self.standard_error + ROUNDING * abs(predicted)
        if not np.isfinite([predicted, self.measured, slack]).all():
            return False
        if self.relation == "≤":
            return self.measured - slack <= predicted
        if self.relation == "≥":
            return self.measured + slack >= predicted
        off = abs(self.measured - predicted) if difference is None else difference
        return off <= self.tolerance * abs(predicted) + slack


def failures(rows: Iterable[StatementRow]) -> list[str]:
    """Sentences about rows that fail, and about statements that no row judges; none if all is well."""
    rows = list(rows)
    found = [
        f"{row.statement}, {row.claim} ({row.setting}): {row.verdict}" for row in rows if row.verdict in FAILURES
    ]
    judged = {row.statement for row in rows if row.verdict in JUDGED}
    unjudged = dict.fromkeys(row.statement for row in rows if row.statement not in judged)
    return found + [f"{statement}: no setting inside its conditions" for statement in unjudged]


def over_groups(values: ArrayLike) -> Measured:
    """Mean over the first axis, of independent repetitions or groups of them, and its standard error."""
    array = np.asarray(values, dtype=np.float64)
    return Measured(array.mean(axis=0), array.std(axis=0, ddof=1) / np.sqrt(len(array)))


def jackknife(estimate: Callable[..., float], *groups: Array) -> Measured:
    """`estimate` of the means over groups, along first axes, and its standard error by leaving one group out."""
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
    """Where an upper bound is nearest to failing: index, bound, value, standard error."""
    value, error = np.ravel(measured.value), np.ravel(measured.error)
    limits = np.broadcast_to(np.asarray(bounds, dtype=np.float64), value.shape)
    at = int(np.argmax((value - ERRORS * error) / limits))
    return at, float(limits[at]), float(value[at]), float(error[at])


def bounded(
    statement: str,
    claim: str,
    setting: str,
    measured: Measured,
    limits: Sequence[Bound],
) -> StatementRow:
    """A row about an upper bound, where it is nearest to failing: one limit for all, or one for each round."""
    at, bound, value, error = worst(measured, [limit.value for limit in limits])
    return StatementRow(
        statement=statement,
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
    """A row about a number, or about an array in Frobenius norm: measured as predicted within a tolerance."""
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
    """‖P‖, ‖M‖, ‖standard errors‖ and ‖M − P‖, as a row has them."""
    return {
        "predicted": norm(predicted),
        "measured": norm(measured.value),
        "standard_error": norm(measured.error),
        "difference": norm(measured.value - predicted),
    }


def norm(values: Array) -> float:
    """Frobenius norm, over all axes."""
    return float(np.linalg.norm(values.ravel()))
