"""A dry run: the messages that a site would send in a study, from its table and the plan; nothing is sent."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedscaffold.core.errors import InvalidInput
from fedscaffold.federation.study.numbers import size_of
from fedscaffold.federation.study.plan import OTHER, Column, StudyPlan
from fedscaffold.federation.study.questions import CELLS, JUDGED, PHASES, allowed, blocks_of
from fedscaffold.federation.study.rows import SiteRows
from fedscaffold.reports.page import fmt, format_bytes

SHOWN = 12  # levels of a column in the text


@dataclass(frozen=True, kw_only=True)
class PhaseSize:
    """A message of a phase: its contents, the numbers in it, and its bytes, which follow from the plan alone."""

    phase: str
    what: str
    numbers: int
    bytes: int


@dataclass(frozen=True, kw_only=True)
class OwnColumn:
    """A column at this site, for its people alone: of a number mean, deviation and range, of a category levels."""

    name: str
    unit: str = ""
    present: int = 0  # rows that have a value
    mean: float | None = None
    sd: float | None = None
    low: float | None = None
    high: float | None = None
    levels: Mapping[str, int]  # with their rows
    merged: tuple[str, ...] = ()  # levels with fewer rows than `min_cell`
    merged_into: str = ""  # the level that they become before anything is added up


@dataclass(frozen=True, kw_only=True)
class DryRun:
    """The messages that a site would send, and the site's own numbers.

    Parameters
    ----------
    plan
        The plan.
    problems
        Everything that keeps the table from taking part, in sentences.
    phases
        The messages that the plan allows; of phases after a survey, as if all sites had this site's levels.
    n_rows
        Number of rows.
    columns
        The columns at this site, for its people alone.
    """

    plan: StudyPlan
    problems: tuple[str, ...] = ()
    phases: tuple[PhaseSize, ...] = ()
    n_rows: int = 0
    columns: tuple[OwnColumn, ...] = ()

    def text(self) -> str:
        """Return the dry run as text for people."""
        plan, n_sites = self.plan, len(self.plan.sites)
        lines = [f"Study {plan.name}, plan {plan.fingerprint}. Nothing has been sent.", ""]
        if self.problems:
            lines += ["This table cannot take part yet:", *(f"- {each}" for each in self.problems), ""]
        if self.phases:
            masked = f"masked: the coordinator gets sums over all {n_sites} sites and nothing else"
            open_ = "open: the coordinator reads this site's numbers"
            lines += [
                f"This site would send, {masked if plan.sums == 'secure' else open_}",
                f"(at most {plan.max_exchanges:,} messages; sizes do not depend on the rows):",
                "",
                *(f"  {one.phase:<17} {one.numbers:>9,} numbers {format_bytes(one.bytes):>9}  {one.what}"
                  for one in self.phases),
                "",
            ]  # fmt: skip
        where = f"over all {n_sites} sites together" if plan.sums == "secure" else "at this site"
        if any(one.phase.endswith(("sums", "scores")) for one in self.phases):
            found = [
                "A Hessian contains all two-way counts: for each pair of levels of two categories, how many rows",
                f"have both, {where}, also if these are few; of two numbers, the sum of their products.",
            ]
            if plan.family.baseline:
                found = [
                    f"The sums contain the number of events, {where}, and of the columns, for each event, how the",
                    "row with it differs from those at risk. No time and no sum of times is among them.",
                ]
            lines += [*found, ""]
        if self.columns:
            lines += [f"For the people of this site alone, never sent as such: {self.n_rows:,} rows.", ""]
            lines += [f"  {one.name}: {self._described(one)}" for one in self.columns]
        return "\n".join(lines).rstrip() + "\n"

    def _described(self, column: OwnColumn) -> str:
        missing = self.n_rows - column.present
        found = [f"{missing:,} missing"] if missing else []
        if column.mean is not None:
            unit = f" {column.unit}" if column.unit else ""
            numbers = [fmt(value) for value in (column.mean, column.sd, column.low, column.high)]
            found.insert(0, "mean {}, sd {}, from {} to {}".format(*numbers) + unit)
        elif column.levels:
            usual = sorted(column.levels.items(), key=lambda pair: -pair[1])
            counts = ", ".join(f"{level} {count:,}" for level, count in usual[:SHOWN])
            found.insert(0, counts + (f" and {len(usual) - SHOWN:,} more" if len(usual) > SHOWN else ""))
        if column.merged:
            names = ", ".join(column.merged[:SHOWN]) + (", ..." if len(column.merged) > SHOWN else "")
            found.append(f"fewer than {self.plan.min_cell} rows, merged into {column.merged_into}: {names}")
        return "; ".join(found) or "no values"


def dry_run(table: Any, plan: StudyPlan) -> DryRun:
    """Return what a site would send in each phase that a plan allows; nothing leaves this process.

    Parameters
    ----------
    table
        The site's rows, a frame of any library that `data.from_frame` takes.
    plan
        The plan.

    Examples
    --------
    >>> import pandas as pd
    >>> from fedscaffold.federation import Study, dry_run
    >>> table = pd.DataFrame({"x": [1.0, 2.0, 4.0] * 5, "y": [1.0, 0.0, 2.0] * 5})
    >>> plan = Study(target="y").plan_for(dict.fromkeys(["bonn", "lyon", "oslo"], table))
    >>> found = dry_run(table, plan)
    >>> [one.phase for one in found.phases]
    ['moments', 'spreads', 'measure', 'sums', 'scores', 'gradient', 'train']
    >>> found.columns[0].high
    4.0
    """
    rows = SiteRows(table, plan, secret=b"")
    problems = tuple(rows.problems())
    columns = tuple(_own_column(rows, name) for name in plan.columns if _is_readable(rows, name))
    if len(columns) < len(plan.columns):
        return DryRun(plan=plan, problems=problems, columns=columns, n_rows=rows.n_rows if columns else 0)
    return DryRun(
        plan=plan, problems=problems, phases=_phases(plan, _completed(rows)), n_rows=rows.n_rows, columns=columns
    )


def _phases(plan: StudyPlan, completed: StudyPlan) -> tuple[PhaseSize, ...]:
    found = []
    for prefix in ("", JUDGED):
        for name, what in PHASES.items():
            phase = f"{prefix}{name}:{CELLS[0]}" if name == "levels" else prefix + name
            now = plan if allowed(plan, phase) else completed
            if not allowed(now, phase) or (prefix and name == "evaluate"):
                continue
            blocks = blocks_of(now, phase)
            numbers = sum(block.length for block in blocks)
            if numbers:
                about = "the same without the rows that are left out to judge the model" if prefix else what
                size = 8 * size_of(blocks)
                found.append(PhaseSize(phase=prefix + name, what=about, numbers=numbers, bytes=size))
    return tuple(found)


def _completed(rows: SiteRows) -> StudyPlan:
    """Return the plan as a survey would complete it if all sites had this site's levels, and rare ones."""
    plan, columns = rows.plan, dict(rows.plan.columns)
    if not plan.incomplete:
        return plan
    for name, column in plan.columns.items():
        if column.type == "category" and not column.complete:
            levels = [*rows.frequent(name)] + [OTHER] * (name != plan.target)
            some = (*levels, "(first)", "(second)")[: max(len(levels), 2)]  # two classes if this site has none
            columns[name] = Column(type="category", levels=some)
        elif not column.complete:
            columns[name] = column.model_copy(update={"mean": 1.0, "sd": 1.0})
    return StudyPlan(**{**plan.model_dump(), "event": None, "columns": columns, "rows": max(rows.n_rows, 1)})


def _is_readable(rows: SiteRows, name: str) -> bool:
    try:
        rows.labels(name) if rows.plan.columns[name].type == "category" else rows.numbers(name)
    except InvalidInput:
        return False
    return True


def _own_column(rows: SiteRows, name: str) -> OwnColumn:
    plan, column = rows.plan, rows.plan.columns[name]
    if column.type == "number":
        values = rows.numbers(name)
        values = values[np.isfinite(values)]
        mean, sd, low, high = (
            float(getattr(values, each)()) if values.size else None for each in ("mean", "std", "min", "max")
        )
        return OwnColumn(
            name=name, unit=column.unit, present=values.size, mean=mean, sd=sd, low=low, high=high, levels={}
        )
    counts, merged, into = rows.counts(name), list[str](), ""
    if name != plan.target:
        rare, level = rows.merging(name)
        merged = [one for one in rare if one is not None]
        into = "" if not merged else OTHER if level == OTHER else "the reference level"
    return OwnColumn(
        name=name, present=sum(counts.values()), levels=counts, merged=tuple(merged), merged_into=into
    )
