"""The first pass over a table: counts per client, classes, categories, means, and everything to refuse.

Memory grows with the numbers of clients, columns and categories, not with the rows.
"""

import re
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.types import Array
from fedscaffold.data import arrow
from fedscaffold.data.arrow import Label, Reader

MOST_CLASSES = 1000  # counted, for the message that there are too many
LOOKS_LIKE_A_NUMBER = re.compile(r"\s*[+-]?(\d+([.,]\d*)?|[.,]\d+)([eE][+-]?\d+)?\s*")


@dataclass(frozen=True)
class ColumnMoments:
    """Count, mean and Σ(v − mean)² of a column's finite values; how many were missing or infinite."""

    count: int = 0
    mean: float = 0.0
    squares: float = 0.0
    missing: int = 0
    infinite: int = 0

    def after(self, values: Array) -> "ColumnMoments":
        """Moments with some more values: means weighted by counts, squares by Chan, Golub and LeVeque's rule."""
        missing, infinite = int(np.isnan(values).sum()), int(np.isinf(values).sum())
        finite = values[np.isfinite(values)] if missing or infinite else values
        count, mean, squares = self.count + finite.size, self.mean, self.squares
        if finite.size:
            here = float(finite.mean())
            step = here - mean
            mean += step * finite.size / count
            squares += float(((finite - here) ** 2).sum()) + step**2 * self.count * finite.size / count
        return ColumnMoments(count, mean, squares, self.missing + missing, self.infinite + infinite)

    @property
    def deviation(self) -> float:
        """Standard deviation of the finite values, with 1/n."""
        return float(np.sqrt(self.squares / self.count))


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
    """Number of rows, counts of the clients' names, and statistics of the target and of each feature."""

    rows: int
    clients: LabelCounts
    target: ColumnMoments | LabelCounts
    features: dict[str, ColumnMoments | LabelCounts]


def table_statistics(
    read: Reader,
    *,
    target: str,
    client: str,
    features: tuple[str, ...],
    categorical: tuple[str, ...],
    classes: bool,
    max_categories: int,
) -> TableStatistics:
    """Read every column once. Columns of types that cannot be used are refused at the first block."""
    clients = LabelCounts(None)
    goal: ColumnMoments | LabelCounts = LabelCounts(MOST_CLASSES) if classes else ColumnMoments()
    rows = 0
    for block in arrow.blocks(read([client, target])):
        columns = arrow.by_name(block)
        if rows == 0:
            _check_client_type(client, columns[client].type)
            if not classes:
                _check_numeric_target(target, columns[target])
        clients.add(arrow.labels(client, columns[client]), rows)
        goal = _after(goal, target, columns[target], rows)
        rows += block.num_rows
    if rows == 0:
        raise InvalidInput("the table has no rows")
    found: dict[str, ColumnMoments | LabelCounts] = {}
    for group in arrow.groups(features):
        first_row = 0
        for block in arrow.blocks(read(group)):
            for name, array in arrow.by_name(block).items():
                if first_row == 0:
                    found[name] = _start(name, array.type, categorical, max_categories)
                found[name] = _after(found[name], name, array, first_row)
            first_row += block.num_rows
    return TableStatistics(rows, clients, goal, {name: found[name] for name in features})


def _after(
    so_far: ColumnMoments | LabelCounts, name: str, array: Any, first_row: int
) -> ColumnMoments | LabelCounts:
    if isinstance(so_far, ColumnMoments):
        return so_far.after(arrow.numbers(array))
    so_far.add(arrow.labels(name, array), first_row)
    return so_far


def _start(name: str, kind: Any, categorical: tuple[str, ...], max_categories: int) -> ColumnMoments | LabelCounts:
    if arrow.load_pyarrow().types.is_null(kind):
        raise InvalidInput(f"column {name!r} has no values at all; leave it out of features")
    if name in categorical or arrow.is_dictionary(kind) or arrow.is_text(kind):
        if not _is_label(kind):
            raise InvalidInput(
                f"column {name!r} is of type {kind}; categories must be text, whole numbers or booleans"
            )
        return LabelCounts(max_categories, suspicious=arrow.is_text(kind) and name not in categorical)
    if arrow.is_number(kind):
        return ColumnMoments()
    raise InvalidInput(
        f"column {name!r} is of type {kind}; features are numbers, booleans, text or categories: "
        "convert it, or leave it out of features"
    )


def _value_type(kind: Any) -> Any:
    return kind.value_type if arrow.is_dictionary(kind) else kind


def _is_label(kind: Any) -> bool:
    types, values = arrow.load_pyarrow().types, _value_type(kind)
    return arrow.is_text(values) or types.is_integer(values) or types.is_boolean(values)


def _check_client_type(name: str, kind: Any) -> None:
    if not (_is_label(kind) or arrow.load_pyarrow().types.is_null(_value_type(kind))):
        raise InvalidInput(
            f"the client column {name!r} is of type {kind}; clients are named by text or whole numbers: convert it"
        )


def _check_numeric_target(name: str, array: Any) -> None:
    if not arrow.is_number(array.type):
        raise InvalidInput(
            f"the target {name!r} must hold numbers for kind='ridge', but is of type {array.type}; "
            "convert it, or take kind='logistic' for two classes"
        )
