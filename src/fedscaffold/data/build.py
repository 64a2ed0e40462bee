"""From a table to a problem in two passes: statistics of the columns, then the rows into one array."""

import numpy as np
from numpy.typing import NDArray

from fedscaffold.core.arrays import offsets_of
from fedscaffold.core.collector import Collector
from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.types import Array
from fedscaffold.data.arrow import Label, Source
from fedscaffold.data.checks.table import check_table, encoded_column
from fedscaffold.data.columns import check_names, pick, pick_features
from fedscaffold.data.encode_rows import TableLayout, encoded_features, encoded_targets
from fedscaffold.data.encoded import EncodedProblem, problem_class, weights_of
from fedscaffold.data.encoding import Encoding
from fedscaffold.data.options import TableOptions
from fedscaffold.data.reading.dates import date_columns, with_date_parts
from fedscaffold.data.statistics import LabelCounts, table_statistics
from fedscaffold.problems.client_arrays import aligned_empty


def build_problem(source: Source, choices: TableOptions) -> EncodedProblem:
    """The problem that a table holds, rows in table order within each client, clients sorted by name."""
    return problem_in_memory(table_layout(source, choices), choices)


def problem_in_memory(layout: TableLayout, choices: TableOptions) -> EncodedProblem:
    """The problem whose records are held in memory: the second pass over the table fills them in."""
    x, y = _allocate(layout.rows, layout.encoding)
    rows, first = np.empty(layout.rows, dtype=np.int64), 0
    for to, goal in encoded_targets(layout):
        y[to] = goal
        rows[first : first + to.size] = to
        first += to.size
    for first, place, part in encoded_features(layout):
        x[rows[first : first + len(part)], place] = part
    if layout.encoding.intercept:
        x[:, -1] = 1.0
    return encoded_problem(x, y, layout.encoding, layout.names, layout.sizes, choices)


def table_layout(source: Source, choices: TableOptions) -> TableLayout:
    """Encoding, client names and sizes of a table: what the first pass over it finds."""
    check_names(source.names)
    parts = {name: tuple(choices.dates) for name in date_columns(source)} if choices.dates else {}
    source = with_date_parts(source, parts)
    problems = Collector()
    for name in (choices.target, choices.client, *choices.record_columns.values()):
        with problems.catching():
            pick(source.names, name)
    problems.raise_any()
    features = pick_features(source.names, choices, problems)
    more = choices.record_columns
    read = source.open([*features, choices.target, choices.client, *more.values()])
    found = table_statistics(read, features, choices, problems)
    check_table(found, choices, problems)
    problems.raise_any()
    names, classes = found.clients.values, found.target.values if isinstance(found.target, LabelCounts) else None
    encoding = Encoding(
        columns=tuple(encoded_column(name, column, choices) for name, column in found.features.items()),
        target=choices.target,
        client=choices.client,
        classes=classes,
        intercept=bool(choices.intercept),
        dates={name: own for name, own in parts.items() if any(f"{name} {part}" in features for part in own)},
        kind=choices.kind,
        **more,
    )
    sizes = np.array([found.clients.counts[name] for name in names], dtype=np.int64)
    weights_of(choices.weights, names, sizes)
    return TableLayout(read=read, encoding=encoding, names=names, sizes=sizes)


def encoded_problem(
    x: Array,
    y: Array,
    encoding: Encoding,
    names: tuple[Label, ...],
    sizes: NDArray[np.int64],
    choices: TableOptions,
) -> EncodedProblem:
    """The problem on records that are encoded and in the clients' order."""
    return problem_class(encoding)(
        x,
        y,
        offsets_of(sizes),
        l2=choices.penalty(len(y)),
        weights=weights_of(choices.weights, names, sizes),
        client_names=names,
        encoding=encoding,
    )


def _allocate(rows: int, encoding: Encoding) -> tuple[Array, Array]:
    dim = encoding.dim
    try:
        return aligned_empty((rows, dim)), np.empty(encoding.record_shape(rows))
    except MemoryError:
        raise InvalidInput(
            f"{rows:,} rows of {dim:,} features need {8 * rows * dim / 2**30:,.1f} GiB of memory; take fewer "
            "rows or features, or write the table as Parquet and pass cache_dir=... to keep its numbers in files"
        ) from None
