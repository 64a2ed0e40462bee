"""Preparation by secure sums: counts and exact sums of all columns in one vector of words.

Which values a category has must be known before its counts can be added: sites name those that occur at least
`min_cell` times in their tables, without counts, and count all others as `OTHER`. Sites merge and withhold what is
small as in other studies, so that the encoding is the same.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.files import Fields
from fedscaffold.data import tables
from fedscaffold.data.statistics import ColumnMoments
from fedscaffold.data.tables import some
from fedscaffold.federation.refusals import Refusal, RefusalCode
from fedscaffold.federation.secure_sum.fixed_point import Words
from fedscaffold.federation.study.greet import ColumnKind
from fedscaffold.federation.study.prepare import (
    LONGEST_LABEL,
    MOST_CATEGORIES,
    OTHER,
    CategoryCounts,
    ColumnSums,
    TableSums,
    all_sums,
    missing_columns,
    sum_table,
)
from fedscaffold.federation.study.secure.exact import (
    SCALAR,
    SQUARE,
    exact_sum,
    exact_sum_of_squares,
)
from fedscaffold.federation.study.settings import StudySettings

LARGEST = 1e20  # of a column's numbers
Labels = Mapping[str, Sequence[str]]


@dataclass(frozen=True, kw_only=True)
class TableWords:
    """How the sums of a table follow each other as words.

    Parameters
    ----------
    kinds
        The features and their kinds.
    settings
        What the people of the study decided.
    labels
        The values of each category, and of the target if it has classes.
    """

    kinds: Mapping[str, ColumnKind]
    settings: StudySettings
    labels: Labels

    @property
    def length(self) -> int:
        """Number of words: one for the rows, six for the exposures, and those of the columns."""
        return 1 + SCALAR.limbs + sum(self._size(name) for name in self._columns)

    @property
    def _columns(self) -> list[str]:
        return [self.settings.target, *self.kinds]

    def _size(self, name: str) -> int:
        if name in self.labels:
            return 2 + len(self.labels[name])
        return 2 + SCALAR.limbs + SQUARE.limbs

    def encode(self, table: Any, *, min_cell: int) -> Words:
        """The words of a site's table; refused if its values are not those that the study can have.

        What a site tells openly in other studies it adds here: small counts are merged or withheld alike.
        """
        found = sum_table(table, self.kinds, self.settings, min_cell=min_cell)
        missing = missing_columns(found, self.kinds, self.settings)
        missing += [self.settings.target] if found.target.missing else []
        if missing:
            raise Refusal(RefusalCode.MISSING_VALUES, f"column {some(missing)} has missing values; fill them")
        read = tables.frame_source(table).read
        parts = [_counts([found.rows]), SCALAR.encode([Fraction(found.exposure) * _values(found.target)])]
        for name in self._columns:
            column = found.target if name == self.settings.target else found.features[name]
            if isinstance(column, CategoryCounts):
                told = [abs(column.counts.get(label, 0)) for label in (OTHER, *self.labels[name])]
                parts.append(_counts([abs(column.missing), *told]))
            else:
                count = found.rows - max(column.missing, 0) if column.count else 0
                total, squares = _exact_moments(read, name, count)
                parts += [
                    _counts([abs(column.missing), count]), SCALAR.encode([total]), SQUARE.encode([squares])
                ]  # fmt: skip
        return np.concatenate(parts)

    def decode(self, words: Words) -> TableSums:
        """The sums of all sites together."""
        rows, begin = int(words[0]), 1 + SCALAR.limbs
        columns: dict[str, ColumnSums] = {}
        for name in self._columns:
            part = words[begin : begin + self._size(name)]
            begin += part.size
            columns[name] = self._category(name, part) if name in self.labels else _number(part)
        target = columns[self.settings.target]
        exposure = SCALAR.decode(words[1 : 1 + SCALAR.limbs])[0]
        count = _values(target)
        return TableSums(
            rows=rows,
            target=target,
            features={name: columns[name] for name in self.kinds},
            exposure=float(exposure / count) if count else 1.0,
        )

    def _category(self, name: str, words: Words) -> CategoryCounts:
        missing, other, *known = (int(word) for word in words)
        counts = dict(zip(self.labels[name], known, strict=True)) | ({OTHER: other} if other else {})
        return CategoryCounts(counts=dict(sorted(counts.items())), missing=missing)


def frequent_labels(
    table: Any, kinds: Mapping[str, ColumnKind], settings: StudySettings, *, min_cell: int
) -> dict[str, list[str]]:
    """The values of each category, and of the target if it has classes, that occur so many times in a table."""
    found = all_sums(table, kinds, settings)
    columns = {settings.target: found.target, **found.features}
    return {
        name: sorted(label for label, count in column.counts.items() if count >= min_cell)
        for name, column in columns.items()
        if isinstance(column, CategoryCounts)
    }


def read_labels(values: Any, source: str, kinds: Mapping[str, ColumnKind], settings: StudySettings) -> Labels:
    """Labels that came over a wire, validated field by field."""
    fields = Fields(values, source)
    names = [settings.target] if settings.family.classes else []
    names += [name for name, kind in kinds.items() if kind == "category"]
    fields.only(*names)
    found = {}
    for name in names:
        labels = fields.items(name)
        if len(labels) > MOST_CATEGORIES or not all(isinstance(one, str) for one in labels):
            raise InvalidInput(f"{source}: {name!r:.100} has too many values, or others than text")
        if any(len(one) > LONGEST_LABEL for one in labels) or len(set(labels)) < len(labels):
            raise InvalidInput(f"{source}: {name!r:.100} has very long values, or one of them twice")
        found[name] = [str(one) for one in labels]
    return found


def _counts(counts: Sequence[int]) -> Words:
    return np.array(counts, np.uint64)


def _values(column: ColumnSums) -> int:
    return column.count if isinstance(column, ColumnMoments) else sum(column.counts.values())


def _number(words: Words) -> ColumnMoments:
    missing, count = int(words[0]), int(words[1])
    total = SCALAR.decode(words[2 : 2 + SCALAR.limbs])[0]
    squares = SQUARE.decode(words[2 + SCALAR.limbs :])[0]
    if not count:
        return ColumnMoments(missing=missing)
    mean = total / count
    spread = max(squares - total * mean, Fraction(0))
    return ColumnMoments(count=count, mean=float(mean), squares=float(spread), missing=missing)


def _exact_moments(read: Callable[[Sequence[str]], Any], name: str, count: int) -> tuple[Fraction, Fraction]:
    """Σ v and Σ v² of a column's numbers, as if there were so many of the same mean and sum of squares about it.

    A small number of missing values is withheld: then `count` is a little more than there are.
    """
    total = squares = Fraction(0)
    there = 0
    for block in tables.blocks(read([name])):
        values = np.asarray(tables.numbers(tables.by_name(block)[name]), dtype=np.float64)
        values = values[np.isfinite(values)]
        if values.size and np.abs(values).max() > LARGEST:
            raise InvalidInput(f"column {name!r} has numbers beyond {LARGEST:g}; nothing was sent")
        total, squares = total + exact_sum(values), squares + exact_sum_of_squares(values)
        there += values.size
    if count == there or not there:
        return total, squares
    mean = total / there
    return count * mean, (squares - there * mean**2 if count else Fraction(0)) + count * mean**2
