"""Tables of any library as blocks of Arrow columns, the choice of their columns, and parts of dates.

Everything goes through pyarrow: it is needed for Parquet in any case, and pandas, polars and others hand their
tables over to it, most columns without a copy. One code path then serves frames, Parquet and CSV.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedscaffold.core.checks import did_you_mean, given
from fedscaffold.core.errors import Collector, InvalidInput
from fedscaffold.core.imports import load_optional
from fedscaffold.core.types import Array
from fedscaffold.data.settings import DatePart, TableSettings

Label = str | int | float | bool
Reader = Callable[[Sequence[str]], Iterable[Any]]

BLOCK = 8192  # rows at once: little memory, and the same for every source, so that means have the same bits
COLUMNS_AT_ONCE = (
    8  # reading a column of a file takes some megabytes, however few its rows; eight stay below 100 MB
)
MONTHS = (
    "January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November",
    "December",
)  # fmt: skip
WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")


def load_pyarrow() -> Any:
    """Return pyarrow, or raise with a sentence that says how to install it."""
    load_optional("pyarrow.compute", "tables need pyarrow", extra="data")
    return load_optional("pyarrow", "tables need pyarrow", extra="data")


@dataclass(frozen=True)
class Source:
    """A table that can be read more than once: its columns, and a function that reads some of them from the top.

    The function returns Arrow record batches of any size.
    """

    names: tuple[str, ...]
    read: Reader

    def blocks(self, columns: Sequence[str]) -> Iterator[dict[str, Any]]:
        """Return blocks of rows of some columns, each a dictionary from column to Arrow array."""
        return map(by_name, blocks(self.read(columns)))


def frame_source(frame: Any) -> Source:
    """Return a pandas, polars or pyarrow table, or any other with Arrow's C stream interface, as a source."""
    pa = load_pyarrow()
    if isinstance(frame, pa.Table | pa.RecordBatch):
        names = list(frame.schema.names)
    elif hasattr(frame, "__arrow_c_stream__") and hasattr(frame, "columns"):
        names = list(frame.columns)
    else:
        raise InvalidInput(
            f"the table must be a pandas or polars DataFrame or a pyarrow Table, got {type(frame).__name__}; "
            "collect a lazy frame first"
        )
    for name in names:
        if not isinstance(name, str):
            raise InvalidInput(f"column names must be text, got {name!r}; rename the columns first")
    return Source(tuple(names), lambda columns: arrow_table(frame, list(columns)).to_batches())


def arrow_table(frame: Any, columns: list[str]) -> Any:
    """Return some columns of a frame as a pyarrow Table."""
    pa = load_pyarrow()
    if isinstance(frame, pa.RecordBatch):
        return pa.Table.from_batches([frame.select(columns)])
    library = type(frame).__module__.partition(".")[0]
    if library == "polars":
        return frame.select(columns).to_arrow()  # in types that every pyarrow knows
    if library != "pandas":
        return pa.table(frame).select(columns)
    chosen = frame[columns]
    try:
        return pa.Table.from_pandas(chosen, preserve_index=False)
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        for column in columns:
            _reject_mixed(column, chosen[column])
        raise InvalidInput(f"the table cannot be read: {error}") from None


def arrow_schema(frame: Any, columns: list[str]) -> Any:
    """Return the Arrow types of some columns of a frame, without reading its numbers."""
    pa = load_pyarrow()
    library = type(frame).__module__.partition(".")[0]
    if library == "polars":
        return arrow_table(frame.head(0), columns).schema
    if library != "pandas":
        return arrow_table(frame, columns).schema
    try:
        return pa.Schema.from_pandas(frame[columns], preserve_index=False)
    except (pa.ArrowInvalid, pa.ArrowTypeError):
        return arrow_table(frame, columns).schema  # raises with the row that is wrong


def _reject_mixed(column: str, series: Any) -> None:
    """Raise if a pandas column holds both text and numbers."""
    present = [(row, value) for row, value in enumerate(series) if value is not None and value == value]
    numeric = [not isinstance(value, str) for _, value in present]
    if not any(numeric) or all(numeric):
        return
    most = sum(numeric) * 2 >= len(numeric)
    row, value = next(pair for pair, number in zip(present, numeric, strict=True) if number != most)
    kinds = ("numbers", "text") if most else ("text", "numbers")
    raise InvalidInput(
        f"column {column!r} holds mostly {kinds[0]}, but row {row} has {value!r}; "
        f"make it all {kinds[0]}, or all text"
    )


# Blocks of rows


def groups(columns: Sequence[str]) -> Iterator[Sequence[str]]:
    """Return the columns a few at a time."""
    for begin in range(0, len(columns), COLUMNS_AT_ONCE):
        yield columns[begin : begin + COLUMNS_AT_ONCE]


def blocks(batches: Iterable[Any]) -> Iterator[Any]:
    """Return the same rows in record batches of BLOCK rows, the last one shorter."""
    pending: list[Any] = []
    rows = 0
    for batch in batches:
        left = batch
        while left.num_rows:
            part = left.slice(0, BLOCK - rows)
            left = left.slice(part.num_rows)
            pending.append(part)
            rows += part.num_rows
            if rows == BLOCK:
                yield _joined(pending)
                pending, rows = [], 0
    if pending:
        yield _joined(pending)


def _joined(batches: Sequence[Any]) -> Any:
    if len(batches) == 1:
        return batches[0]
    return load_pyarrow().Table.from_batches(batches).combine_chunks().to_batches()[0]


def by_name(block: Any) -> dict[str, Any]:
    """Return a record batch's columns by name."""
    return dict(zip(block.schema.names, block.columns, strict=True))


# Arrow types and values


def is_number(kind: Any) -> bool:
    """Return whether an Arrow type holds numbers or booleans."""
    types = load_pyarrow().types
    return any(test(kind) for test in (types.is_integer, types.is_floating, types.is_decimal, types.is_boolean))


def is_text(kind: Any) -> bool:
    """Return whether an Arrow type holds text."""
    types = load_pyarrow().types
    return types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind)


def is_dictionary(kind: Any) -> bool:
    """Return whether an Arrow type is that of a pandas or polars categorical column."""
    return load_pyarrow().types.is_dictionary(kind)


def is_date(kind: Any) -> bool:
    """Return whether an Arrow type holds dates, with a time of day or without."""
    types = load_pyarrow().types
    return bool(types.is_date(kind) or types.is_timestamp(kind))


def is_label(kind: Any) -> bool:
    """Return whether an Arrow type holds text, whole numbers or booleans, or categories of these."""
    types, values = load_pyarrow().types, kind.value_type if is_dictionary(kind) else kind
    return is_text(values) or types.is_integer(values) or types.is_boolean(values)


def numbers(array: Any) -> Array:
    """Return numbers and booleans as float64, NaN for missing values."""
    pa = load_pyarrow()
    return _decoded(array).cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)


def labels(column: str, array: Any) -> Any:
    """Return an Arrow array of text, int64, booleans or float64, null for missing values."""
    pa = load_pyarrow()
    plain = _decoded(array)
    kind = plain.type
    if is_text(kind) or pa.types.is_null(kind):
        return plain.cast(pa.string())
    if pa.types.is_boolean(kind):
        return plain
    if pa.types.is_integer(kind):
        try:
            return plain.cast(pa.int64())
        except pa.ArrowInvalid:
            raise InvalidInput(f"column {column!r} has whole numbers beyond 2^63; make them text") from None
    if pa.types.is_floating(kind):
        wide = plain.cast(pa.float64())
        return pa.compute.if_else(pa.compute.is_nan(wide), None, wide)
    raise InvalidInput(f"column {column!r} is of type {kind}; text, whole numbers or booleans are wanted")


def _decoded(array: Any) -> Any:
    """Return a categorical column as its values."""
    if not is_dictionary(array.type):
        return array
    values = array.dictionary
    if is_text(values.type):
        values = values.cast(load_pyarrow().string())
    return values.take(array.indices)


def value_set(values: Sequence[Label]) -> Any:
    """Return labels of one kind as an Arrow array, for `positions`."""
    return load_pyarrow().array(values)


def positions(array: Any, known: Any) -> NDArray[np.int64]:
    """Return the place of each label in a `value_set`, −1 if it is missing or unknown."""
    found = load_pyarrow().compute.index_in(array, value_set=known)
    return found.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)


# The choice of columns


def some(values: Iterable[Any], most: int = 12) -> str:
    """Return the first few values, for a message."""
    texts = [repr(value) for value in values]
    shown = ", ".join(texts[:most])
    return shown if len(texts) <= most else f"{shown} and {len(texts) - most} more"


def check_names(names: Sequence[str]) -> None:
    """Raise if columns share a name."""
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise InvalidInput(f"the table has more than one column named {some(twice)}; rename all but one")


def pick(names: Sequence[str], wanted: Any) -> str:
    """Return a column's name; raise unless the table has it."""
    if isinstance(wanted, str) and wanted in names:
        return wanted
    hint = did_you_mean(wanted if isinstance(wanted, str) else given(wanted), names) or ";"
    raise InvalidInput(f"the table has no column {given(wanted)}{hint} it has {some(names)}")


def pick_all(names: Sequence[str], wanted: Iterable[str]) -> list[str]:
    """Return names of several columns; raise with all that the table lacks."""
    listed = list(wanted)
    missing = [name for name in listed if name not in names]
    if len(missing) > 1:
        raise InvalidInput(f"the table has no columns {some(missing)}; it has {some(names)}")
    return [pick(names, name) for name in listed]


def pick_features(names: Sequence[str], settings: TableSettings, problems: Collector) -> tuple[str, ...]:
    """Return the feature columns: those named, or all without a role, except columns to drop."""
    target, client = settings.target, settings.client
    taken = {name: f"holds the {role}s" for role, name in settings.record_columns.items()}
    taken |= {target: "is the target", client: "names the client"}
    dropped, named = set[str](), []
    for name in settings.drop:
        with problems.catching():
            dropped.add(pick(names, name))
    for name in names if settings.features is None else settings.features:
        with problems.catching():
            named.append(pick(names, name))
    if settings.features is not None:
        for name in dict.fromkeys(named):
            if name in taken:
                problems.add(f"column {name!r} {taken[name]} and cannot be a feature too")
            if named.count(name) > 1:
                problems.add(f"features names column {name!r} more than once")
        if not settings.features:
            problems.add("features is an empty list; name at least one column, or omit features=... to use all")
            return ()
    for name in dropped & {target, client}:
        problems.add(f"drop names column {name!r}, which is the target or the client")
    kept = tuple(dict.fromkeys(name for name in named if name not in dropped and name not in taken))
    if not kept and not problems.problems:
        besides = f"the table has no feature columns besides {target!r} and {client!r}"
        problems.add(besides if settings.features is None else "no features are left")
    for option, columns in (("categorical", settings.categorical), ("reference", tuple(settings.reference))):
        for name in columns:
            with problems.catching():
                if pick(names, name) not in kept:
                    problems.add(f"{option} names column {name!r}, which is not a feature")
    return kept


# Dates


def date_columns(source: Source) -> tuple[str, ...]:
    """Return the names of a table's columns that hold dates, by the types of its first rows."""
    for batch in source.read(source.names):
        return tuple(field.name for field in batch.schema if is_date(field.type))
    return ()


def with_date_parts(source: Source, dates: Mapping[str, Sequence[DatePart]]) -> Source:
    """Return the table with each column of dates replaced by columns of its parts, such as 'admitted weekday'.

    A year is a whole number; months and weekdays are text, so that they become categories.
    """
    if not dates:
        return source
    origin = {f"{name} {part}": (name, part) for name, parts in dates.items() for part in parts}
    names = []
    for name in source.names:
        names += [f"{name} {part}" for part in dates[name]] if name in dates else [name]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise InvalidInput(f"the table has a column {twice!r} already; rename it")

    def read(columns: Sequence[str]) -> Iterable[Any]:
        bases = list(dict.fromkeys(origin[name][0] if name in origin else name for name in columns))
        for batch in source.read(bases):
            arrays = by_name(batch)
            made = [_part(arrays, *origin[name]) if name in origin else arrays[name] for name in columns]
            yield load_pyarrow().RecordBatch.from_arrays(made, names=list(columns))

    return Source(tuple(names), read)


def _part(arrays: Mapping[str, Any], name: str, part: DatePart) -> Any:
    pa = load_pyarrow()
    array = arrays[name]
    if not is_date(array.type) and array.null_count < len(array):
        raise InvalidInput(f"column {name!r} should hold dates, but is of type {array.type}")
    moments = array.cast(pa.timestamp("s"), safe=False) if not pa.types.is_timestamp(array.type) else array
    if part == "year":
        return pa.compute.year(moments)
    if part == "month":
        return pa.array(MONTHS).take(pa.compute.subtract(pa.compute.month(moments), 1))
    return pa.array(WEEKDAYS).take(pa.compute.day_of_week(moments))
