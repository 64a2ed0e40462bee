"""From a table to a problem in two passes: statistics of the columns, then the rows into one array."""

import numpy as np
from numpy.typing import NDArray

from fedscaffold.core.arrays import offsets_of
from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.types import Array
from fedscaffold.data.arrow import Label, Source
from fedscaffold.data.columns import check_names, pick, pick_features, some
from fedscaffold.data.encode_rows import TableLayout, encoded_features, encoded_targets
from fedscaffold.data.encoded import EncodedProblem, problem_class, weights_of
from fedscaffold.data.encoding import Category, Column, Encoding, Number
from fedscaffold.data.options import TableOptions
from fedscaffold.data.statistics import MOST_CLASSES, ColumnMoments, LabelCounts, TableStatistics, table_statistics
from fedscaffold.problems.client_arrays import aligned_empty


def build_problem(source: Source, choices: TableOptions) -> EncodedProblem:
    """The problem that a table holds, rows in table order within each client, clients sorted by name."""
    return problem_in_memory(table_layout(source, choices), choices)


def problem_in_memory(layout: TableLayout, choices: TableOptions) -> EncodedProblem:
    """The problem whose records are held in memory: the second pass over the table fills them in."""
    x, y = _allocate(layout.rows, layout.encoding.dim)
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
    target, client = pick(source.names, choices.target), pick(source.names, choices.client)
    features = pick_features(source.names, choices.features, target=target, client=client)
    for name in choices.categorical:
        if pick(source.names, name) not in features:
            raise InvalidInput(f"categorical names column {name!r}, which is not a feature")
    read = source.open([*features, target, client])
    found = table_statistics(
        read,
        target=target,
        client=client,
        features=features,
        categorical=tuple(choices.categorical),
        classes=choices.kind == "logistic",
        max_categories=choices.max_categories,
    )
    names = _clients(found, choices)
    encoding = Encoding(
        columns=_columns(found, choices),
        target=target,
        client=client,
        classes=_classes(found, choices),
        intercept=bool(choices.intercept),
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
        l2=choices.l2,
        weights=weights_of(choices.weights, names, sizes),
        client_names=names,
        encoding=encoding,
    )


def _clients(found: TableStatistics, choices: TableOptions) -> tuple[Label, ...]:
    tally = found.clients
    if tally.missing:
        raise InvalidInput(
            f"the client column {choices.client!r} has {tally.missing} missing values; fill them first"
        )
    small = [name for name in tally.values if tally.counts[name] < choices.min_rows]
    if small:
        others = f" ({len(small)} clients are that small)" if len(small) > 1 else ""
        rows = tally.counts[small[0]]
        raise InvalidInput(
            f"client {small[0]!r} has only {rows} row{'s' * (rows > 1)}{others}; drop such clients, "
            f"or accept them with min_rows={min(tally.counts.values())}"
        )
    return tally.values


def _classes(found: TableStatistics, choices: TableOptions) -> tuple[Label, ...] | None:
    goal, name = found.target, choices.target
    if goal.missing:
        raise InvalidInput(f"the target {name!r} has {goal.missing} missing values; drop those rows first")
    if isinstance(goal, ColumnMoments):
        if goal.infinite:
            raise InvalidInput(f"the target {name!r} has {goal.infinite} infinite values; drop those rows first")
        return None
    if goal.too_many:
        raise InvalidInput(
            f"the target {name!r} has more than {MOST_CLASSES} different values; is it a number? Then kind='ridge'"
        )
    if len(goal.values) < 2:
        raise InvalidInput(f"the target {name!r} has one class only, {some(goal.values)}; two or more are needed")
    return goal.values


def _columns(found: TableStatistics, choices: TableOptions) -> tuple[Column, ...]:
    tallies = {name: column for name, column in found.features.items() if isinstance(column, LabelCounts)}
    for name, tally in tallies.items():
        _refuse_numbers_as_text(name, tally)
        if tally.too_many:
            raise InvalidInput(
                f"column {name!r} has more than {choices.max_categories} different values, each of which would be "
                "a feature; leave it out of features, or raise max_categories"
            )
    if choices.missing == "error":
        _refuse_counted({name: column.missing for name, column in found.features.items()}, "missing values",
                        "fill them, drop those rows, or take missing='mean'")  # fmt: skip
    moments = {name: column for name, column in found.features.items() if isinstance(column, ColumnMoments)}
    _refuse_counted({name: column.infinite for name, column in moments.items()}, "infinite values",
                    "replace them or drop those rows")  # fmt: skip
    return tuple(_column(name, column, choices) for name, column in found.features.items())


def _column(name: str, column: ColumnMoments | LabelCounts, choices: TableOptions) -> Column:
    if isinstance(column, LabelCounts):
        values: tuple[Label | None, ...] = column.values
        return Category(name=name, values=(*values, None) if column.missing else values)
    if column.count == 0:
        raise InvalidInput(f"column {name!r} has no values at all; leave it out of features")
    fill = column.mean if choices.missing == "mean" else None
    if not choices.standardize:
        return Number(name=name, fill=fill)
    if column.deviation <= 1e-12 * abs(column.mean):
        raise InvalidInput(f"column {name!r} is constant and cannot be standardised; leave it out of features")
    return Number(name=name, fill=fill, shift=column.mean, scale=column.deviation)


def _refuse_numbers_as_text(name: str, tally: LabelCounts) -> None:
    """Text that is a number in at least half of the rows: a numeric column gone wrong."""
    if tally.first_number is None or 2 * tally.numeric_rows < tally.rows:
        return
    if tally.first_text is None:
        row, value = tally.first_number
        raise InvalidInput(
            f"column {name!r} holds numbers written as text, such as {value!r} in row {row}; convert it to "
            "numbers, or name it in categorical"
        )
    row, value = tally.first_text
    raise InvalidInput(
        f"column {name!r} holds mostly numbers, but row {row} has {value!r}; mend it and convert the column to "
        "numbers, or name it in categorical"
    )


def _refuse_counted(counts: dict[str, int], what: str, remedy: str) -> None:
    bad = {name: count for name, count in counts.items() if count}
    if bad:
        listed = ", ".join(f"{name!r} has {count}" for name, count in list(bad.items())[:5])
        more = f" and {len(bad) - 5} more columns have some" if len(bad) > 5 else ""
        raise InvalidInput(f"there are {what}: column {listed}{more}; {remedy}")


def _allocate(rows: int, dim: int) -> tuple[Array, Array]:
    try:
        return aligned_empty((rows, dim)), np.empty(rows)
    except MemoryError:
        raise InvalidInput(
            f"{rows:,} rows of {dim:,} features need {8 * rows * dim / 2**30:,.1f} GiB of memory; "
            "take fewer rows or features, or keep them in files: from_parquet(..., cache_dir=FOLDER)"
        ) from None
