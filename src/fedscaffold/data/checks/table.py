"""What is refused about a table once its columns have been counted, and how its columns are encoded."""

import warnings
from collections.abc import Sequence

from fedscaffold.core.collector import Collector
from fedscaffold.data.arrow import Label
from fedscaffold.data.checks.identifiers import identifiers_warning
from fedscaffold.data.columns import some
from fedscaffold.data.encoding import Category, Column, Number
from fedscaffold.data.options import TableOptions
from fedscaffold.data.statistics import MOST_CLASSES, ColumnMoments, LabelCounts, TableStatistics

MAX_LISTED = 5


def check_table(found: TableStatistics, choices: TableOptions, problems: Collector) -> None:
    """Add what is wrong with clients, target and features to the problems; warn of what may not be meant."""
    _check_clients(found.clients, choices, problems)
    _check_target(found.target, choices, problems)
    _check_record_columns(found.records, choices, problems)
    _check_features(found, choices, problems)
    if found.identifiers and not problems.problems:
        warnings.warn(identifiers_warning(found.identifiers), stacklevel=2)


def encoded_column(name: str, column: ColumnMoments | LabelCounts, choices: TableOptions) -> Column:
    """How a feature of a table that was not refused becomes coordinates."""
    if isinstance(column, LabelCounts):
        values: tuple[Label | None, ...] = column.values
        reference = reference_level(name, column, choices)
        return Category(name=name, values=(*values, None) if column.missing else values, reference=reference)
    fill = column.mean if choices.missing == "mean" else None
    if not choices.standardize:
        return Number(name=name, fill=fill)
    return Number(name=name, fill=fill, shift=column.mean, scale=column.deviation)


def reference_level(name: str, column: LabelCounts, choices: TableOptions) -> Label | None:
    """The value of a category without a coordinate: that given or, with an intercept, the most frequent one.

    Of values that are equally frequent it is the first in ascending order; None where all have a coordinate.
    """
    if name in choices.reference:
        wanted = choices.reference[name]
        return next((value for value in column.values if value == wanted or str(value) == str(wanted)), None)
    return max(column.values, key=lambda value: column.counts[value]) if choices.intercept else None


def _check_clients(clients: LabelCounts, choices: TableOptions, problems: Collector) -> None:
    if clients.missing:
        problems.add(f"the client column {choices.client!r} has {clients.missing} missing values; fill them first")
    small = [name for name in clients.values if clients.counts[name] < choices.min_rows]
    if small:
        others = f" ({len(small)} clients are that small)" if len(small) > 1 else ""
        rows = clients.counts[small[0]]
        problems.add(
            f"client {small[0]!r} has only {rows} row{'s' * (rows > 1)}{others}; drop the rows of such clients, "
            f"or accept them with min_rows={min(clients.counts.values())}"
        )


def _check_target(target: ColumnMoments | LabelCounts, choices: TableOptions, problems: Collector) -> None:
    name = choices.target
    if target.missing:
        problems.add(f"the target {name!r} has {target.missing} missing values; drop those rows first")
    if isinstance(target, ColumnMoments):
        if target.infinite:
            problems.add(f"the target {name!r} has {target.infinite} infinite values; drop those rows first")
        _check_range(name, target, choices, problems)
    elif target.too_many:
        problems.add(
            f"the target {name!r} has more than {MOST_CLASSES} different values; if it is a number, pass "
            "kind='ridge'"
        )
    elif len(target.values) == 1:
        problems.add(f"the target {name!r} has one class only, {some(target.values)}; two or more are needed")


def _check_range(name: str, target: ColumnMoments, choices: TableOptions, problems: Collector) -> None:
    """Refuse values of a numeric target that the family's distribution cannot have."""
    family, kind = choices.family, f"kind={choices.kind!r}"
    if target.count == 0:
        return
    other = "pass kind='ridge' for numbers of any kind"
    must = family.out_of_range(target.smallest)
    if must is not None:
        problems.add(
            f"{kind} is for {family.target}, which must {must}, but the target {name!r} goes down to "
            f"{target.smallest:g}; drop those rows, or {other}"
        )
    elif target.fractional:
        problems.add(
            f"{kind} is for {family.target}, but the target {name!r} has {target.fractional} values that are not "
            f"whole numbers; give counts and their exposure=..., or {other}"
        )
    elif family.least is not None and target.largest == 0.0:
        problems.add(f"the target {name!r} is 0 in all rows, so there is nothing to learn from it")


def _check_record_columns(found: dict[str, ColumnMoments], choices: TableOptions, problems: Collector) -> None:
    for role, column in found.items():
        name = choices.record_columns[role]
        if column.missing or column.infinite:
            what = "missing" if column.missing else "infinite"
            problems.add(f"the {role} column {name!r} has {what} values; drop those rows first")
        elif role != "offset" and column.smallest <= 0.0:
            problems.add(
                f"{role} must be positive, but column {name!r} goes down to {column.smallest:g}; drop those rows"
            )


def _check_features(found: TableStatistics, choices: TableOptions, problems: Collector) -> None:
    empty = [name for name, column in found.features.items() if _is_empty(column)]
    filled = {name: column for name, column in found.features.items() if name not in empty}
    _refuse_columns(empty, "no values at all", problems)
    numbers = {name: column for name, column in filled.items() if isinstance(column, ColumnMoments)}
    labels = {name: column for name, column in filled.items() if isinstance(column, LabelCounts)}
    for name in choices.reference:
        if name in numbers:
            problems.add(
                f"reference names column {name!r}, which holds numbers, not categories; take it as categories "
                f"with categorical=[{name!r}]"
            )
    for name, counts in labels.items():
        _check_category(name, counts, choices, problems)
    if choices.missing == "error":
        missing = {name: column.missing for name, column in filled.items()}
        _refuse_counted(missing, "missing values", "fill them, drop those rows, or pass missing='mean'", problems)
    infinite = {name: column.infinite for name, column in numbers.items()}
    _refuse_counted(infinite, "infinite values", "replace them, or drop those rows", problems)
    if choices.standardize:
        constant = [name for name, column in numbers.items() if column.is_constant or column.deviation == 0.0]
        _refuse_columns(constant, "the same number in all rows", problems)


def _is_empty(column: ColumnMoments | LabelCounts) -> bool:
    return column.count == 0 if isinstance(column, ColumnMoments) else not column.counts


def _check_category(name: str, counts: LabelCounts, choices: TableOptions, problems: Collector) -> None:
    leave_out = f"leave it out with drop=[{name!r}]"
    as_numbers = _numbers_as_text(counts)
    if as_numbers is not None:
        comma = counts.first_number is not None and "," in counts.first_number[1]
        mark = "name the decimal mark with decimal=',', " if comma else ""
        problems.add(
            f"column {name!r} {as_numbers}; {mark}convert it to numbers, or take it as categories with "
            f"categorical=[{name!r}]"
        )
    elif counts.too_many:
        problems.add(
            f"column {name!r} has more than {choices.max_categories} different values, each of which would be a "
            f"feature; {leave_out}, or pass a larger max_categories=..."
        )
    elif name in choices.reference and reference_level(name, counts, choices) is None:
        problems.add(
            f"reference of column {name!r} must be one of its values, {some(counts.values)}; got "
            f"{choices.reference[name]!r}"
        )
    elif len(counts.values) == 1 and not counts.missing and reference_level(name, counts, choices) is not None:
        problems.add(f"column {name!r} has one value only, {some(counts.values)}; {leave_out}")


def _numbers_as_text(counts: LabelCounts) -> str | None:
    """What is wrong with text that is a number in at least half of the rows: a numeric column gone wrong."""
    if counts.first_number is None or 2 * counts.numeric_rows < counts.rows:
        return None
    if counts.first_text is None:
        row, value = counts.first_number
        return f"holds numbers written as text, such as {value!r} in row {row}"
    row, value = counts.first_text
    return f"holds mostly numbers, but row {row} has {value!r}"


def _refuse_columns(names: Sequence[str], what: str, problems: Collector) -> None:
    if names:
        has = "has" if len(names) == 1 else "have"
        columns = f"column {names[0]!r}" if len(names) == 1 else f"columns {some(names)}"
        problems.add(
            f"{columns} {has} {what}; leave {'it' if len(names) == 1 else 'them'} out with drop={list(names)!r}"
        )


def _refuse_counted(counts: dict[str, int], what: str, advice: str, problems: Collector) -> None:
    bad = {name: count for name, count in counts.items() if count}
    if bad:
        listed = ", ".join(f"{name!r} has {count}" for name, count in list(bad.items())[:MAX_LISTED])
        more = f" and {len(bad) - MAX_LISTED} more columns have some" if len(bad) > MAX_LISTED else ""
        problems.add(f"there are {what}: column {listed}{more}; {advice}")
