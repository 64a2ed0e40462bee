"""A site's rows: its table as the plan's codebook reads it, with rare levels merged before anything is added."""

import hashlib
import os
from collections.abc import Collection
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.types import Array
from fedscaffold.data import tables
from fedscaffold.data.encoded import EncodedProblem
from fedscaffold.data.encoding import STATUS
from fedscaffold.data.files import read_table
from fedscaffold.data.settings import DETECTED, CsvFormat
from fedscaffold.data.statistics import looks_like_identifiers
from fedscaffold.data.tables import some
from fedscaffold.federation.study.plan import OTHER, StudyPlan
from fedscaffold.problems.base import TARGET

LARGEST = 1e6  # standardised number, and coefficient: no sum of a site's leaves its range below it
LEAST_ROWS_TO_SPLIT = 10  # a site with fewer rows leaves none out
FACTOR = 5.0  # a mean that is this many times as far from 0 as a range allows suggests another unit


@dataclass(eq=False)
class TableFile:
    """A table in a file, which stays in memory as long as the file is the same.

    Parameters
    ----------
    path
        A .csv or .parquet file.
    text
        The format of a .csv file.
    """

    path: str | os.PathLike[str]
    text: CsvFormat = DETECTED
    _stamp: Any = field(default=None, repr=False)
    _table: Any = field(default=None, repr=False)

    @property
    def stamp(self) -> Any:
        """Identity, size and time of change of the file; None without a file."""
        try:
            found = Path(self.path).stat()
        except OSError:
            return None
        return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns

    def load(self) -> Any:
        """Return the table as it is in the file now."""
        stamp = self.stamp
        if stamp is None or stamp != self._stamp:
            self._table = read_table(self.path, self.text)
            self._stamp = stamp
        return self._table


class SiteRows:
    """A site's rows as a plan reads them; each part is computed when it is first needed.

    Parameters
    ----------
    table
        A frame of any library that `data.from_frame` takes.
    plan
        The plan.
    secret
        The site's secret, which decides which rows are left out to judge the model.
    """

    def __init__(self, table: Any, plan: StudyPlan, secret: bytes) -> None:
        self.table, self.plan, self.secret = table, plan, secret

    @cached_property
    def arrow(self) -> Any:
        """The columns that the plan uses, as an Arrow table."""
        names = tables.frame_source(self.table).names
        missing = [name for name in self.plan.used_columns if name not in names]
        if missing:
            raise InvalidInput(
                f"the table has no column {some(missing)}, which the plan uses; it has {some(names)}"
            )
        return tables.arrow_table(self.table, list(self.plan.used_columns)).combine_chunks()

    @property
    def n_rows(self) -> int:
        """Number of rows of the site's table."""
        return int(self.arrow.num_rows)

    def numbers(self, name: str) -> Array:
        """Return a column's numbers, NaN for missing ones."""
        column = self._column(name)
        if not tables.is_number(column.type):
            raise InvalidInput(f"column {name!r} must hold numbers, but is of type {column.type}")
        return np.asarray(tables.numbers(column))

    def labels(self, name: str) -> Any:
        """Return a column's levels as text, null for missing ones, whatever their type is at this site."""
        return tables.labels(name, self._column(name)).cast(tables.load_pyarrow().string())

    def _column(self, name: str) -> Any:
        column = self.arrow.column(name)
        return column.chunk(0) if column.num_chunks else tables.load_pyarrow().array([], column.type)

    def counts(self, name: str) -> dict[str, int]:
        """Return how often each level of a column occurs."""
        tally = self.labels(name).drop_null().value_counts()
        pairs = zip(tally.field("values").to_pylist(), tally.field("counts").to_pylist(), strict=True)
        return dict(sorted(pairs))

    def frequent(self, name: str) -> dict[str, int]:
        """Return the levels that have at least `min_cell` rows at this site, with their counts."""
        return {level: count for level, count in self.counts(name).items() if count >= self.plan.min_cell}

    def problems(self, surveyed: Collection[str] = ()) -> list[str]:
        """Return everything that keeps this table from taking part, in sentences for the people of the site.

        Parameters
        ----------
        surveyed
            Categories whose levels the sites' survey gave; levels that are rare here may be missing among them.
        """
        found: list[str] = []
        try:
            if not self.n_rows:
                return ["the table has no rows"]
        except InvalidInput as error:
            return [str(error)]
        for name in self.plan.columns:
            try:
                found += self._problems_of(name, surveyed=name in surveyed)
            except InvalidInput as error:
                found.append(str(error))
        for role, name in self.plan.record_columns.items():
            try:
                values = self.numbers(name)
            except InvalidInput as error:
                found.append(str(error))
                continue
            if role == "status":
                found += [] if np.isin(values, (0.0, 1.0)).all() else [STATUS.format(name)]
            elif not np.isfinite(values).all() or (role != "offset" and values.min() <= 0.0):
                must = "finite numbers" if role == "offset" else "positive numbers"
                found.append(f"the {role} column {name!r} must hold {must} in all rows")
        if self.plan.sums == "open" and self.plan.epsilon is None and not found and not self.plan.incomplete:
            found += self._disclosures()
        return found

    def _problems_of(self, name: str, *, surveyed: bool) -> list[str]:
        """Return everything that keeps a column from being encoded."""
        plan, column, target, found = self.plan, self.plan.columns[name], name == self.plan.target, list[str]()
        number = column.type == "number"
        if surveyed and not (number or target):
            return found
        values = self.numbers(name) if number else np.zeros(0)
        counts = {} if number else self.counts(name)
        missing = int(np.isnan(values).sum()) if number else self.n_rows - sum(counts.values())
        if missing and (target or (plan.missing == "error" and plan.epsilon is None)):
            advice = "drop those rows" if target else "fill them, or plan with missing='mean'"
            found.append(f"column {name!r} has {missing} missing values; {advice}")
        if np.isinf(values).any():
            return [*found, f"column {name!r} has infinite values; replace them"]
        some_values = not target and column.levels is None and missing < self.n_rows
        if some_values and looks_like_identifiers(name, self._column(name)):
            found.append(f"column {name!r} looks like an identifier; plan without it")
        strange = [level for level in counts if level not in (column.levels or counts)]
        if strange:
            known = some(column.levels or ())
            found.append(
                f"column {name!r} has the levels {some(strange)}, which the codebook does not list: {known}"
            )
        values = values[~np.isnan(values)]
        return found + (self._problems_of_numbers(name, values) if values.size else [])

    def _problems_of_numbers(self, name: str, values: Array) -> list[str]:
        column, family, found = self.plan.columns[name], self.plan.family, list[str]()
        if name == self.plan.target:
            must = family.out_of_range(float(values.min()))
            if must is None and family.whole and (values % 1 != 0).any():
                must = "hold whole numbers"
            found += [f"the target {name!r} must {must} for kind={self.plan.kind!r}"] if must else []
        if column.range is not None and not column.range[0] <= values.mean() <= column.range[1]:
            unit = f" {column.unit}" if column.unit else ""
            off = abs(float(values.mean())) > FACTOR * max(map(abs, column.range))
            found.append(
                f"column {name!r} has a mean outside the codebook's range of {column.range[0]:g} to "
                f"{column.range[1]:g}{unit}; {'check its unit' if off else 'check its values'}"
            )
        return found

    @cached_property
    def _parts(self) -> dict[str, NDArray[np.bool_]]:
        """Groups of rows whose sums the coordinator has, with words for them.

        In an open study, rows that are left out to judge the model are one: their sums are a difference of others.
        """
        left = self.left_out
        parts = {"": np.ones(self.n_rows, bool)}
        if self.plan.sums == "open" and left.any():
            parts |= {" that are left out": left, " that are not left out": ~left}
        return parts

    def _disclosures(self) -> list[str]:
        """Return what an open study would disclose of this table; people decide before anything has left."""
        table, found, least, dim = self.recoded(), list[str](), self.plan.min_cell, self.plan.coding().dim
        for which, part in self._parts.items():
            n = int(part.sum())
            if self.plan.hessians and n < 3 * dim:
                found.append(
                    f"{n} rows{which} are too few for an open matrix of {dim} coefficients, from which rows could "
                    "be computed; three rows per coefficient are needed, or sums='secure'"
                )
            for name, column in self.plan.columns.items():
                tally = table.column(name).filter(part).value_counts()
                values, counts = tally.field("values").to_pylist(), tally.field("counts").to_numpy()
                few = [str(value) for value, count in zip(values, counts, strict=True) if count < least]
                other = int(n - counts.max())
                if column.type == "number" and 0 < other < least:
                    found.append(f"column {name!r} differs from its usual value in {other} rows{which}")
                elif column.type == "category" and few:
                    what = "class" if name == self.plan.target else f"column {name!r}: level"
                    rows = f"{least} rows{which or ' here'}"
                    found.append(f"{what} {some(few)} has fewer than {rows}; an open sum would show them")
        if self.plan.status is not None:
            events = int(self.numbers(self.plan.status).sum())
            if 0 < events < least or 0 < self.n_rows - events < least:
                found.append(
                    f"{events} rows have an event and {self.n_rows - events} have none; an open sum would show "
                    f"groups of fewer than {least}"
                )
        return found

    def recoded(self) -> Any:
        """Return the table with categories as text, and rare levels merged as the plan says.

        Under a privacy budget nothing is merged: one row more or less would change others with it.
        """
        table, pa = self.arrow, tables.load_pyarrow()
        for name, column in self.plan.columns.items():
            if column.type == "category":
                values = self.labels(name)
                if self.plan.epsilon is not None:
                    values = values if name == self.plan.target else values.fill_null(self._reference(name))
                elif name != self.plan.target:
                    rare, merged = self.merging(name)
                    known = pa.array([level for level in rare if level is not None], pa.string())
                    is_rare = pa.compute.is_in(values, value_set=known)
                    if None in rare:
                        is_rare = pa.compute.or_(is_rare, pa.compute.is_null(values))
                    values = pa.compute.if_else(is_rare, pa.scalar(merged), values)
                table = table.set_column(table.schema.get_field_index(name), name, pa.chunked_array([values]))
        return table

    def merging(self, name: str) -> tuple[list[str | None], str]:
        """Return the rare levels of a feature, None among them for a few missing values, and what they become.

        They become OTHER or, if even all of them together have fewer than `min_cell` rows, the reference: no
        column of the encoded table belongs to a few rows.
        """
        column, least, coded = self.plan.columns[name], self.plan.min_cell, self.labels(name).dictionary_encode()
        levels = coded.dictionary.to_pylist()
        codes = coded.indices.fill_null(len(levels)).to_numpy()
        tally = np.array([np.bincount(codes[part], minlength=len(levels) + 1) for part in self._parts.values()])
        known = [column.levels is None or (level in column.levels and level != OTHER) for level in levels]
        rare = (tally.min(axis=0) < least) & (tally[0] > 0) | ~np.array([*known, True])
        found = [level for level, few in zip([*levels, None], rare, strict=True) if few]
        if tally[:, rare].sum(axis=1).min() >= least and (column.levels is None or OTHER in column.levels):
            return found, OTHER
        return found, self._reference(name)

    def _reference(self, name: str) -> str:
        """Return the level without a coefficient; the most frequent one here if the plan does not say it yet."""
        column, counts = self.plan.columns[name], self.counts(name)
        if column.reference is None and column.levels is None:
            return max(counts, key=lambda level: counts[level], default="")
        return (column.levels or ("",))[0] if column.reference is None else column.reference

    # what training uses, once the codebook is complete

    @cached_property
    def problem(self) -> EncodedProblem:
        """The problem of all rows, with numbers up to `LARGEST` whatever means and deviations the plan has."""
        found = self.plan.coding().problem(self.recoded())
        y = found.y.copy()
        if not (self.plan.family.log_link or self.plan.family.baseline):  # whose targets are as in the table
            targets = y if y.ndim == 1 else y[:, TARGET]
            targets.clip(-LARGEST, LARGEST, out=targets)
        return found.with_records(x=found.x.clip(-LARGEST, LARGEST), y=y)

    @cached_property
    def left_out(self) -> NDArray[np.bool_]:
        """Whether each row is left out of the training that is judged on it."""
        n = self.n_rows
        digest = hashlib.sha256(b"rows left out to evaluate" + self.secret).digest()
        uniform = np.random.Generator(np.random.Philox(key=np.frombuffer(digest[:16], np.uint64))).random(n)
        chosen = uniform < self.plan.evaluate
        return np.zeros(n, bool) if n < LEAST_ROWS_TO_SPLIT or chosen.all() else chosen

    @cached_property
    def judged(self) -> EncodedProblem:
        """The problem without the rows that are left out."""
        return self.problem.take_rows(np.flatnonzero(~self.left_out))

    @cached_property
    def test(self) -> EncodedProblem | None:
        """The problem of the rows that are left out; None if there are none."""
        rows = np.flatnonzero(self.left_out)
        return self.problem.take_rows(rows) if rows.size else None
