"""The first pass over a table: counts per client, classes, categories, means, and everything to refuse.

Memory grows with the numbers of clients, columns and categories, not with the rows.
"""

import math
import re
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fedscaffold.core.collector import Collector
from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.types import Array
from fedscaffold.data import arrow
from fedscaffold.data.arrow import Label, Reader
from fedscaffold.data.checks.identifiers import looks_like_identifiers
from fedscaffold.data.options import TableOptions
from fedscaffold.data.reading.dates import PARTS, is_date

EXACT = 2**53  # up to here float64 tells whole numbers apart
MOST_CLASSES = 1000  # counted, for the message that there are too many
LOOKS_LIKE_A_NUMBER = re.compile(r"\s*[+-]?(\d+([.,]\d*)?|[.,]\d+)([eE][+-]?\d+)?\s*")


@dataclass(frozen=True)
class ColumnMoments:
    """Count, mean, Σ(v − mean)² and range of a column's finite values; how many were missing or infinite.

    `fractional` is the number of those that are no whole numbers; None where they are not counted.
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
        """Moments with some more values: means weighted by counts, squares by Chan, Golub and LeVeque's rule."""
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

    def __add__(self, other: "ColumnMoments") -> "ColumnMoments":
        """Moments of both columns' values together, by Chan, Golub and LeVeque's rule."""
        count, step = self.count + other.count, other.mean - self.mean
        share = other.count / count if count else 0.0
        return ColumnMoments(
            count=count,
            mean=self.mean + step * share,
            squares=self.squares + other.squares + step**2 * self.count * share,
            missing=self.missing + other.missing,
            infinite=self.infinite + other.infinite,
            smallest=min(self.smallest, other.smallest),
            largest=max(self.largest, other.largest),
        )

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
    """How often each label occurs, up to `most` different ones.

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
        seen = (first_row + column.index(arrow.load_pyarrow().scalar(value, column.type)).as_py(), value)
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
    """Number of rows, counts of the clients' names, and statistics of the target and of each feature.

    Columns whose types cannot be used are left out. `identifiers` are the features that look like identifiers;
    `records` has the columns of exposures, offsets and weights, by parameter.
    """

    rows: int
    clients: LabelCounts
    target: ColumnMoments | LabelCounts
    features: dict[str, ColumnMoments | LabelCounts]
    identifiers: list[str]
    records: dict[str, ColumnMoments]


def table_statistics(
    read: Reader, features: tuple[str, ...], choices: TableOptions, problems: Collector
) -> TableStatistics:
    """Read every column once; columns of types that cannot be used are added to the problems."""
    target, client, family, records = choices.target, choices.client, choices.family, choices.record_columns
    counts: dict[str, ColumnMoments | LabelCounts] = {name: ColumnMoments() for name in records.values()}
    counts[client] = LabelCounts(None)
    numbers = ColumnMoments(fractional=0 if family.whole else None)
    counts[target] = LabelCounts(MOST_CLASSES) if family.classes else numbers
    rows, usable = 0, list(counts)
    for block in arrow.blocks(read(usable)):
        columns = arrow.by_name(block)
        if rows == 0:
            usable = _usable(columns, choices, problems)
        for name in list(usable):
            if not _count(counts, name, columns[name], rows, problems):
                usable.remove(name)
        rows += block.num_rows
    if rows == 0:
        raise InvalidInput("the table has no rows")
    found, identifiers = _feature_statistics(read, features, choices, problems)
    clients = counts[client]
    assert isinstance(clients, LabelCounts)
    moments = {role: counts[name] for role, name in records.items() if name in usable}
    own = {role: each for role, each in moments.items() if isinstance(each, ColumnMoments)}
    return TableStatistics(rows, clients, counts[target], found, identifiers, own)


def _feature_statistics(
    read: Reader, features: tuple[str, ...], choices: TableOptions, problems: Collector
) -> tuple[dict[str, ColumnMoments | LabelCounts], list[str]]:
    found: dict[str, ColumnMoments | LabelCounts] = {}
    identifiers: list[str] = []
    for group in arrow.groups(features):
        first_row = 0
        for block in arrow.blocks(read(group)):
            for name, array in arrow.by_name(block).items():
                if first_row == 0:
                    with problems.catching():
                        found[name] = _start(name, array.type, choices)
                        if name not in choices.categorical and looks_like_identifiers(name, array):
                            identifiers.append(name)
                if name in found and not _count(found, name, array, first_row, problems):
                    del found[name]
            first_row += block.num_rows
    return {name: found[name] for name in features if name in found}, identifiers


def _count(
    counts: dict[str, ColumnMoments | LabelCounts], name: str, array: Any, first_row: int, problems: Collector
) -> bool:
    """Add some rows of a column to its statistics; False where they cannot be used."""
    so_far = counts[name]
    with problems.catching():
        if isinstance(so_far, ColumnMoments):
            _check_digits(name, array)
            counts[name] = so_far.after(arrow.numbers(array))
        else:
            so_far.add(arrow.labels(name, array), first_row)
        return True
    return False


def _check_digits(name: str, array: Any) -> None:
    """Refuse whole numbers that float64 cannot tell apart from their neighbours."""
    pa = arrow.load_pyarrow()
    if not pa.types.is_integer(array.type) or array.type.bit_width < 64:
        return
    ends = pa.compute.min_max(array).as_py()
    if ends["max"] is not None and max(ends["max"], -ends["min"]) > EXACT:
        raise InvalidInput(
            f"column {name!r} holds whole numbers of more than 15 digits, such as {ends['max']}, which look like "
            f"identifiers and are too long for arithmetic; leave it out with drop=[{name!r}], or take it as "
            f"categories with categorical=[{name!r}]"
        )


def _start(name: str, kind: Any, choices: TableOptions) -> ColumnMoments | LabelCounts:
    leave_out = f"leave it out with drop=[{name!r}]"
    if arrow.load_pyarrow().types.is_null(kind):
        raise InvalidInput(f"column {name!r} has no values at all; {leave_out}")
    if name in choices.categorical or arrow.is_dictionary(kind) or arrow.is_text(kind):
        if not _is_label(kind):
            raise InvalidInput(
                f"column {name!r} is of type {kind}; categories must be text, whole numbers or booleans"
            )
        return LabelCounts(
            choices.max_categories, suspicious=arrow.is_text(kind) and name not in choices.categorical
        )
    if arrow.is_number(kind):
        return ColumnMoments()
    if is_date(kind):
        raise InvalidInput(
            f"column {name!r} holds dates; {leave_out}, or take parts of all dates with dates={list(PARTS)!r}"
        )
    raise InvalidInput(
        f"column {name!r} is of type {kind}; features are numbers, booleans, text or categories; convert it, or "
        f"{leave_out}"
    )


def _value_type(kind: Any) -> Any:
    return kind.value_type if arrow.is_dictionary(kind) else kind


def _is_label(kind: Any) -> bool:
    types, values = arrow.load_pyarrow().types, _value_type(kind)
    return arrow.is_text(values) or types.is_integer(values) or types.is_boolean(values)


def _usable(columns: dict[str, Any], choices: TableOptions, problems: Collector) -> list[str]:
    """Those of the client, target, exposure, offset and weight columns whose types can be used."""
    client, target = columns[choices.client].type, columns[choices.target].type
    usable = [choices.client, choices.target, *choices.record_columns.values()]
    for role, name in choices.record_columns.items():
        if not arrow.is_number(columns[name].type):
            usable.remove(name)
            problems.add(
                f"the {role} column {name!r} must hold numbers, but is of type {columns[name].type}; convert it"
            )
    if not (_is_label(client) or arrow.load_pyarrow().types.is_null(_value_type(client))):
        usable.remove(choices.client)
        problems.add(
            f"the client column {choices.client!r} is of type {client}; clients are named by text or whole "
            "numbers: convert it"
        )
    if not choices.family.classes and not arrow.is_number(target):
        usable.remove(choices.target)
        problems.add(
            f"the target {choices.target!r} must hold numbers for kind={choices.kind!r}, but is of type "
            f"{target}; convert it, or pass kind='logistic' for classes"
        )
    return usable
