"""A site's rows: its table, read when it is first needed, and the problem that an agreement makes of it."""

import os
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.protocols import Engine
from fedscaffold.data import tables
from fedscaffold.data.encoded import EncodedProblem
from fedscaffold.data.encoding import Category
from fedscaffold.data.files import read_table
from fedscaffold.data.settings import DETECTED, CsvFormat
from fedscaffold.federation.agreement import Agreement
from fedscaffold.federation.client.task import ProblemTask
from fedscaffold.federation.study.evaluate import rows_left_out
from fedscaffold.federation.study.prepare import OTHER, text_labels


@dataclass(eq=False)
class TableFile:
    """A table in a file, which stays in memory as long as the file is the same.

    Parameters
    ----------
    path
        A .csv or .parquet file.
    text
        How a .csv file is written.
    """

    path: str | os.PathLike[str]
    text: CsvFormat = DETECTED
    _stamp: Any = field(default=None, repr=False)
    _table: Any = field(default=None, repr=False)

    @property
    def stamp(self) -> Any:
        """What changes when the file does: its identity, size and time of change; None without a file."""
        try:
            found = Path(self.path).stat()
        except OSError:
            return None
        return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns

    def load(self) -> Any:
        """The table as it is in the file now."""
        stamp = self.stamp
        if stamp is None or stamp != self._stamp:
            self._table = read_table(self.path, self.text)
            self._stamp = stamp
        return self._table


@dataclass(eq=False)
class AgreedRows:
    """A site's rows in the encoding of one agreement; each part is computed when it is first needed.

    Parameters
    ----------
    table
        The site's rows, a frame of any library that `data.from_frame` takes.
    agreement
        The encoding.
    secret
        The site's secret, which says which rows the evaluation uses.
    engine
        Computes local steps; see `fedscaffold.run`.
    """

    table: Any
    agreement: Agreement
    secret: bytes
    engine: str | Engine

    @cached_property
    def problem(self) -> EncodedProblem:
        """The problem of all rows."""
        found = self.agreement.problem(recode(self.table, self.agreement))
        if found.dim == 0:
            raise InvalidInput("the agreement has no coefficients")
        return found

    @cached_property
    def left_out(self) -> "np.ndarray[tuple[int], np.dtype[np.bool_]]":
        """Which rows are left out of the training that is judged on them."""
        return rows_left_out(int(self.problem.sizes[0]), self.agreement.evaluate, self.secret)

    @cached_property
    def judged_problem(self) -> EncodedProblem:
        """The problem without these rows."""
        return self.problem.take_rows(np.flatnonzero(~self.left_out))

    def problem_of(self, part: bool) -> EncodedProblem:
        """The problem of all rows, or of the part that is not left out."""
        return self.judged_problem if part else self.problem

    @cached_property
    def _tasks(self) -> dict[bool, ProblemTask]:
        return {}

    def task(self, part: bool) -> ProblemTask:
        """What a training on all rows, or on the part that is not left out, works on."""
        if part not in self._tasks:
            self._tasks[part] = ProblemTask(self.problem_of(part), self.engine)
        return self._tasks[part]


def recode(table: Any, agreement: Agreement) -> Any:
    """A site's table with categories and classes as text, and values that the agreement lacks as `OTHER`."""
    pa = tables.load_pyarrow()
    import pyarrow.compute as compute

    encoding = agreement.encoding
    wanted = [column.name for column in encoding.columns]
    source = tables.frame_source(table)
    wanted += encoding.record_columns
    table = pa.Table.from_batches(list(source.read(wanted)))
    for column in encoding.columns:
        if isinstance(column, Category):
            values = pa.chunked_array(
                [text_labels(column.name, chunk) for chunk in table.column(column.name).chunks]
            )
            if OTHER in column.values:
                known = compute.is_in(values, value_set=pa.array([v for v in column.values if v is not None]))
                keep = compute.or_(known, compute.is_null(values))
                values = compute.if_else(keep, values, pa.scalar(OTHER))
            table = table.set_column(table.schema.get_field_index(column.name), column.name, values)
    if encoding.classes is not None:
        chunks = [text_labels(encoding.target, chunk) for chunk in table.column(encoding.target).chunks]
        table = table.set_column(
            table.schema.get_field_index(encoding.target), encoding.target, pa.chunked_array(chunks)
        )
    return table
