"""The first pass over a table: counts per client, classes, categories, means, and everything to reject.

Memory grows with the numbers of clients, columns and categories, not with the rows.
"""

import math
import re
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fedscaffold.core.errors import Collector, DataWarning, InvalidInput
from fedscaffold.core.types import Array
from fedscaffold.data import tables
from fedscaffold.data.encoding import STATUS, Category, Column, Number
from fedscaffold.data.settings import DATE_PARTS, TableSettings
from fedscaffold.data.tables import Label, Reader, some

MOST_CLASSES = 1000  # counted; a classifier of more would have more coefficients than tables have rows
MIN_ROWS = 20  # to call a column an identifier: fewer rows may well have different values by chance
LOOKS_LIKE_A_NUMBER = re.compile(r"\s*[+-]?(\d+([.,]\d*)?|[.,]\d+)([eE][+-]?\d+)?\s*")
ID_NAME = re.compile(
    r"(^|[^a-z])(id|uid|uuid|guid|key|nr|no|ssn|mrn)([^a-z]|$)|(?-i:[a-z])(?-i:ID|Id)$", re.IGNORECASE
)


@dataclass(frozen=True)
class ColumnMoments:
    """Count, mean, Σ(v − mean)² and range of a column's finite values; how many were missing or infinite.

    `fractional` counts values that are not whole numbers; None if they are not counted.
    """

    count: int = 0
    mean: float = 0.0
    squares: float = 0.0
    missing: int = 0
    infinite: int = 0
    smallest: float = math.inf
    largest: float = -math.inf
    fractional: int | None = None

    def after(self, values: Array) -> "ColumnMoments":
        """Return the moments with some more values, by Chan, Golub and LeVeque's rule."""
        missing, infinite = int(np.isnan(values).sum()), int(np.isinf(values).sum())
        finite = values[np.isfinite(values)] if missing or infinite else values
        count, mean, squares = self.count + finite.size, self.mean, self.squares
        smallest, largest = self.smallest, self.largest
        if finite.size:
            smallest, largest = min(smallest, float(finite.min())), max(largest, float(finite.max()))
            here = float(finite.mean())
            step = here - mean
            mean += step * finite.size / count
            squares += float(((finite - here) ** 2).sum()) + step**2 * self.count * finite.size / count
        fractional = None if self.fractional is None else self.fractional + int((finite != np.floor(finite)).sum())
        missing, infinite = self.missing + missing, self.infinite + infinite
        return ColumnMoments(count, mean, squares, missing, infinite, smallest, largest, fractional)

    @property
    def deviation(self) -> float:
        """Standard deviation of the finite values, with 1/n."""
        return float(np.sqrt(self.squares / self.count))

    @property
    def is_constant(self) -> bool:
        """Whether all finite values are the same number."""
        return self.smallest == self.largest


@dataclass
class LabelCounts:
    """Counts of each label, up to `most` different ones.

    For `suspicious` text it also counts the rows that look like numbers.
    """

    most: int | None
    suspicious: bool = False
    counts: dict[Label, int] = field(default_factory=dict)
    missing: int = 0
    too_many: bool = False
    numeric_rows: int = 0
    rows: int = 0
    first_number: tuple[int, str] | None = None
    first_text: tuple[int, str] | None = None

    def add(self, column: Any, first_row: int) -> None:
        """Count some more rows, given as an Arrow array of labels."""
        self.missing += column.null_count
        found = column.drop_null().value_counts()
        for value, count in zip(found.field("values").to_pylist(), found.field("counts").to_pylist(), strict=True):
            self.rows += count
            if self.suspicious:
                self._look_at(column, value, count, first_row)
            if value in self.counts or self.most is None or len(self.counts) < self.most:
                self.counts[value] = self.counts.get(value, 0) + count
            else:
                self.too_many = True

    def _look_at(self, column: Any, value: str, count: int, first_row: int) -> None:
        numeric = LOOKS_LIKE_A_NUMBER.fullmatch(value) is not None
        self.numeric_rows += count * numeric
        if (self.first_number if numeric else self.first_text) is not None:
            return
        seen = (first_row + column.index(tables.load_pyarrow().scalar(value, column.type)).as_py(), value)
        if numeric:
            self.first_number = seen
        else:
            self.first_text = seen

    @property
    def values(self) -> tuple[Label, ...]:
        """The labels in ascending order."""
        return tuple(sorted(self.counts))


@dataclass(frozen=True)
class TableStatistics:
    """Counts of the clients' names, and statistics of the target and of each feature."""

    clients: LabelCounts
    target: ColumnMoments | LabelCounts
    features: dict[str, ColumnMoments | LabelCounts]


def table_statistics(
    read: Reader, features: tuple[str, ...], settings: TableSettings, problems: Collector
) -> TableStatistics:
    """Read every column once and check it; raise with the problems if there are any."""
    found: dict[str, ColumnMoments | LabelCounts] = {}
    identifiers: list[str] = []
    roles = [settings.client, settings.target, *settings.record_columns.values()]
    for group in tables.groups([*roles, *features]):
        rows = 0
        for block in tables.blocks(read(group)):
            for name, array in tables.by_name(block).items():
                if rows == 0:
                    with problems.catching():
                        found[name] = _start(name, array.type, settings)
                        plain = name not in roles and name not in settings.categorical
                        if plain and looks_like_identifiers(name, array):
                            identifiers.append(name)
                if name in found and not _count(found, name, array, rows, problems):
                    del found[name]
            rows += block.num_rows
        if rows == 0:
            raise InvalidInput("the table has no rows")
    used = {name: found[name] for name in features if name in found}
    _check_roles(found, settings, problems)
    _check_features(used, settings, problems)
    problems.raise_any()
    if identifiers:
        many = len(identifiers) > 1
        what = "columns look like identifiers and are" if many else "column looks like an identifier and is"
        listed, use = ", ".join(map(repr, identifiers)), "features" if many else "a feature"
        text = f"{listed}: the {what} used as {use}; drop identifiers with drop={identifiers!r}"
        warnings.warn(DataWarning(text), stacklevel=2)
    clients = found[settings.client]
    assert isinstance(clients, LabelCounts)
    return TableStatistics(clients, found[settings.target], used)


def _count(
    counts: dict[str, ColumnMoments | LabelCounts], name: str, array: Any, first_row: int, problems: Collector
) -> bool:
    """Add some rows of a column to its statistics; return False if they cannot be used."""
    so_far = counts[name]
    with problems.catching():
        if isinstance(so_far, ColumnMoments):
            _check_digits(name, array)
            counts[name] = so_far.after(tables.numbers(array))
        else:
            so_far.add(tables.labels(name, array), first_row)
        return True
    return False


def looks_like_identifiers(name: str, array: Any) -> bool:
    """Return whether a column's first rows look like identifiers.

    Whole numbers that are all different and in order, or of nine digits and more, text that is different in
    every row, or many whole numbers under a name such as "id" or "patient_id".
    """
    types, kind = tables.load_pyarrow().types, array.type
    if len(array) - array.null_count < MIN_ROWS:
        return False
    if tables.is_text(kind):
        return len(array.unique()) == len(array)
    if not types.is_integer(kind):
        return False
    values = array.drop_null().to_numpy(zero_copy_only=False)
    different = np.unique(values).size
    if ID_NAME.search(name) and different >= MIN_ROWS:
        return True
    steps = values[1:] > values[:-1]
    in_order = bool(steps.all() or not steps.any())
    return different == values.size and (in_order or int(values.max()) >= 10**8)


# Types of columns


def _check_digits(name: str, array: Any) -> None:
    """Raise if a column holds whole numbers that float64 cannot distinguish from their neighbours."""
    pa = tables.load_pyarrow()
    if not pa.types.is_integer(array.type) or array.type.bit_width < 64:
        return
    ends = pa.compute.min_max(array).as_py()
    if ends["max"] is not None and max(ends["max"], -ends["min"]) > 2**53:
        raise InvalidInput(
            f"column {name!r} holds whole numbers of more than 15 digits, such as {ends['max']}, which look like "
            f"identifiers and are too long for arithmetic; {_leave_out(name)}, or take it as categories with "
            f"categorical=[{name!r}]"
        )


def _start(name: str, kind: Any, settings: TableSettings) -> ColumnMoments | LabelCounts:
    """Return empty statistics for a column of this type; raise if its role cannot have the type."""
    family = settings.family
    for role, column in settings.record_columns.items():
        if name == column:
            if not tables.is_number(kind):
                what = f"must hold numbers, but is of type {kind}; convert it"
                raise InvalidInput(f"the {role} column {name!r} {what}")
            return ColumnMoments(fractional=0 if role == "status" else None)
    if name == settings.client:
        values = kind.value_type if tables.is_dictionary(kind) else kind
        if not (tables.is_label(kind) or tables.load_pyarrow().types.is_null(values)):
            raise InvalidInput(
                f"the client column {name!r} is of type {kind}; clients are named by text or whole numbers: "
                "convert it"
            )
        return LabelCounts(None)
    if name == settings.target:
        if not family.classes and not tables.is_number(kind):
            raise InvalidInput(
                f"the target {name!r} must hold numbers for kind={settings.kind!r}, but is of type {kind}; "
                "convert it, or pass kind='logistic' for classes"
            )
        if family.classes:
            return LabelCounts(MOST_CLASSES)
        return ColumnMoments(fractional=0 if family.whole else None)
    return _start_feature(name, kind, settings)


def _start_feature(name: str, kind: Any, settings: TableSettings) -> ColumnMoments | LabelCounts:
    if tables.load_pyarrow().types.is_null(kind):
        raise InvalidInput(f"column {name!r} has no values at all; {_leave_out(name)}")
    if name in settings.categorical or tables.is_dictionary(kind) or tables.is_text(kind):
        if not tables.is_label(kind):
            raise InvalidInput(
                f"column {name!r} is of type {kind}; categories must be text, whole numbers or booleans"
            )
        suspicious = tables.is_text(kind) and name not in settings.categorical
        return LabelCounts(settings.max_categories, suspicious=suspicious)
    if tables.is_number(kind):
        return ColumnMoments()
    if tables.is_date(kind):
        raise InvalidInput(
            f"column {name!r} holds dates; {_leave_out(name)}, or take parts of all dates with "
            f"dates={list(DATE_PARTS)!r}"
        )
    raise InvalidInput(
        f"column {name!r} is of type {kind}; features are numbers, booleans, text or categories; convert it, or "
        f"{_leave_out(name)}"
    )


# Checks of what was counted


def _check_roles(
    found: dict[str, ColumnMoments | LabelCounts], settings: TableSettings, problems: Collector
) -> None:
    """Add problems of the client, target, exposure, offset and weight columns."""
    clients, target = found.get(settings.client), found.get(settings.target)
    if isinstance(clients, LabelCounts):
        _check_clients(clients, settings, problems)
    if target is not None:
        _check_target(target, settings, problems)
    for role, name in settings.record_columns.items():
        column = found.get(name)
        if isinstance(column, ColumnMoments):
            _check_record_column(role, column, name, problems)


def encoded_column(name: str, column: ColumnMoments | LabelCounts, settings: TableSettings) -> Column:
    """Return the encoding of a feature of a table that was not rejected."""
    if isinstance(column, LabelCounts):
        values: tuple[Label | None, ...] = column.values
        reference = _reference_level(name, column, settings)
        return Category(name=name, values=(*values, None) if column.missing else values, reference=reference)
    fill = column.mean if settings.missing == "mean" else None
    if not settings.standardize:
        return Number(name=name, fill=fill)
    return Number(name=name, fill=fill, shift=column.mean, scale=column.deviation)


def _reference_level(name: str, column: LabelCounts, settings: TableSettings) -> Label | None:
    """Return the value of a category without a coordinate: the given or, with an intercept, most frequent one.

    Of values that are equally frequent it is the first in ascending order; None if all have a coordinate.
    """
    if name in settings.reference:
        wanted = settings.reference[name]
        return next((value for value in column.values if value == wanted or str(value) == str(wanted)), None)
    constant = settings.intercept or settings.family.baseline  # which all values together would add up to
    return max(column.values, key=lambda value: column.counts[value]) if constant else None


def _check_clients(clients: LabelCounts, settings: TableSettings, problems: Collector) -> None:
    if clients.missing:
        problems.add(
            f"the client column {settings.client!r} has {clients.missing} missing values; fill them first"
        )
    small = [name for name in clients.values if clients.counts[name] < settings.min_rows]
    if small:
        others = f" ({len(small)} clients are that small)" if len(small) > 1 else ""
        rows = clients.counts[small[0]]
        problems.add(
            f"client {small[0]!r} has only {rows} row{'s' * (rows > 1)}{others}; drop the rows of such clients, "
            f"or accept them with min_rows={min(clients.counts.values())}"
        )


def _check_target(target: ColumnMoments | LabelCounts, settings: TableSettings, problems: Collector) -> None:
    name = settings.target
    if target.missing:
        problems.add(f"the target {name!r} has {target.missing} missing values; drop those rows first")
    if isinstance(target, ColumnMoments):
        if target.infinite:
            problems.add(f"the target {name!r} has {target.infinite} infinite values; drop those rows first")
        if target.count:
            _check_range(name, target, settings, problems)
    elif target.too_many:
        problems.add(
            f"the target {name!r} has more than {MOST_CLASSES} different values; if it is a number, pass "
            "kind='ridge'"
        )
    elif len(target.values) == 1:
        problems.add(f"the target {name!r} has one class only, {some(target.values)}; two or more are needed")


def _check_range(name: str, target: ColumnMoments, settings: TableSettings, problems: Collector) -> None:
    """Add values of a numeric target that the family's distribution cannot have."""
    family, kind = settings.family, f"kind={settings.kind!r}"
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
    elif family.least is not None and target.largest == 0.0 and not family.baseline:
        problems.add(f"the target {name!r} is 0 in all rows, so there is nothing to learn from it")


def _check_record_column(role: str, column: ColumnMoments, name: str, problems: Collector) -> None:
    if column.missing or column.infinite:
        what = "missing" if column.missing else "infinite"
        problems.add(f"the {role} column {name!r} has {what} values; drop those rows first")
    elif role == "status":
        if not (column.smallest >= 0.0 and column.largest <= 1.0) or column.fractional:
            problems.add(STATUS.format(name))
        elif column.largest == 0.0:
            problems.add(f"the status column {name!r} has no event, so there is nothing to learn from these times")
    elif role != "offset" and column.smallest <= 0.0:
        problems.add(
            f"{role} must be positive, but column {name!r} goes down to {column.smallest:g}; drop those rows"
        )


def _check_features(
    found: dict[str, ColumnMoments | LabelCounts], settings: TableSettings, problems: Collector
) -> None:
    empty = [
        name
        for name, each in found.items()
        if not (each.count if isinstance(each, ColumnMoments) else each.counts)
    ]
    _reject_columns(empty, "no values at all", problems)
    filled = {name: each for name, each in found.items() if name not in empty}
    numbers = {name: each for name, each in filled.items() if isinstance(each, ColumnMoments)}
    labels = {name: each for name, each in filled.items() if isinstance(each, LabelCounts)}
    for name in settings.reference:
        if name in numbers:
            problems.add(
                f"reference names column {name!r}, which holds numbers, not categories; take it as categories "
                f"with categorical=[{name!r}]"
            )
    for name, counts in labels.items():
        _check_category(name, counts, settings, problems)
    if settings.missing == "error":
        missing = {name: each.missing for name, each in filled.items()}
        _reject_counted(missing, "missing values", "fill them, drop those rows, or pass missing='mean'", problems)
    infinite = {name: column.infinite for name, column in numbers.items()}
    _reject_counted(infinite, "infinite values", "replace them, or drop those rows", problems)
    if settings.standardize:
        constant = [name for name, column in numbers.items() if column.is_constant or column.deviation == 0.0]
        _reject_columns(constant, "the same number in all rows", problems)


def _check_category(name: str, counts: LabelCounts, settings: TableSettings, problems: Collector) -> None:
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
            f"column {name!r} has more than {settings.max_categories} different values, each of which would be a "
            f"feature; {_leave_out(name)}, or pass a larger max_categories=..."
        )
    elif name in settings.reference and _reference_level(name, counts, settings) is None:
        problems.add(
            f"reference of column {name!r} must be one of its values, {some(counts.values)}; got "
            f"{settings.reference[name]!r}"
        )
    elif len(counts.values) == 1 and not counts.missing and _reference_level(name, counts, settings) is not None:
        problems.add(f"column {name!r} has one value only, {some(counts.values)}; {_leave_out(name)}")


def _numbers_as_text(counts: LabelCounts) -> str | None:
    """Return what is wrong with text that is a number in at least half of the rows."""
    if counts.first_number is None or 2 * counts.numeric_rows < counts.rows:
        return None
    if counts.first_text is None:
        row, value = counts.first_number
        return f"holds numbers written as text, such as {value!r} in row {row}"
    row, value = counts.first_text
    return f"holds mostly numbers, but row {row} has {value!r}"


def _leave_out(*names: str) -> str:
    return f"leave {'it' if len(names) == 1 else 'them'} out with drop={list(names)!r}"


def _reject_columns(names: Sequence[str], what: str, problems: Collector) -> None:
    if names:
        columns = f"column {names[0]!r} has" if len(names) == 1 else f"columns {some(names)} have"
        problems.add(f"{columns} {what}; {_leave_out(*names)}")


def _reject_counted(counts: dict[str, int], what: str, advice: str, problems: Collector) -> None:
    bad = [f"{name!r} has {count}" for name, count in counts.items() if count]
    if bad:
        more = f" and {len(bad) - 5} more columns have some" if len(bad) > 5 else ""
        problems.add(f"there are {what}: column {', '.join(bad[:5])}{more}; {advice}")
