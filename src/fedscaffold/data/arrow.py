"""Tables of any library as blocks of Arrow columns.

Everything goes through pyarrow: it is needed for Parquet in any case, and pandas, polars and others hand their
tables over to it, most columns without a copy. One code path then serves frames, Parquet and CSV.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.optional import load_optional
from fedscaffold.core.types import Array

Label = str | int | float | bool

BLOCK = 8192  # rows; the same blocks whatever the source, so that means come out to the same bits

COLUMNS_AT_ONCE = 8


def load_pyarrow() -> Any:
    """Pyarrow, or a sentence that says how to install it."""
    load_optional("pyarrow.compute", "tables need pyarrow", extra="data")
    return load_optional("pyarrow", "tables need pyarrow", extra="data")


@dataclass(frozen=True)
class Source:
    """A table that can be read more than once.

    `names` are its columns; `open(columns)` makes ready to read those and gives a function that reads some of
    them from the top and returns Arrow record batches of any size.
    """

    names: tuple[str, ...]
    open: Callable[[Sequence[str]], "Reader"]


Reader = Callable[[Sequence[str]], Iterable[Any]]


def frame_source(frame: Any) -> Source:
    """A pandas, polars or pyarrow table, or anything else that speaks Arrow's C stream interface."""
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

    def open_(columns: Sequence[str]) -> Reader:
        table = arrow_table(frame, list(columns))
        return lambda some: table.select(list(some)).to_batches()

    return Source(tuple(names), open_)


def arrow_table(frame: Any, columns: list[str]) -> Any:
    """Some columns of a frame as a pyarrow Table."""
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
            _refuse_mixed(column, chosen[column])
        raise InvalidInput(f"the table cannot be read: {error}") from None


def arrow_schema(frame: Any, columns: list[str]) -> Any:
    """The Arrow types of some columns of a frame; numbers are not read for it."""
    pa = load_pyarrow()
    library = type(frame).__module__.partition(".")[0]
    if library == "polars":
        return arrow_table(frame.head(0), columns).schema
    if library != "pandas":
        return arrow_table(frame, columns).schema
    try:
        return pa.Schema.from_pandas(frame[columns], preserve_index=False)
    except (pa.ArrowInvalid, pa.ArrowTypeError):
        return arrow_table(frame, columns).schema  # which says what is wrong


def _refuse_mixed(column: str, series: Any) -> None:
    """A pandas column of Python objects of more than one kind."""
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


def groups(columns: Sequence[str]) -> Iterator[Sequence[str]]:
    """Some columns at a time: reading a column of a file takes some megabytes, however few its rows."""
    for begin in range(0, len(columns), COLUMNS_AT_ONCE):
        yield columns[begin : begin + COLUMNS_AT_ONCE]


def blocks(batches: Iterable[Any]) -> Iterator[Any]:
    """The same rows in record batches of BLOCK rows, the last one shorter."""
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


def is_number(kind: Any) -> bool:
    """Whether an Arrow type holds numbers or booleans."""
    types = load_pyarrow().types
    return any(test(kind) for test in (types.is_integer, types.is_floating, types.is_decimal, types.is_boolean))


def is_text(kind: Any) -> bool:
    """Whether an Arrow type holds text."""
    types = load_pyarrow().types
    return types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind)


def is_dictionary(kind: Any) -> bool:
    """Whether an Arrow type is that of a pandas or polars categorical column."""
    return load_pyarrow().types.is_dictionary(kind)


def numbers(array: Any) -> Array:
    """Numbers and booleans as float64, NaN where one is missing."""
    pa = load_pyarrow()
    plain = _decoded(array)
    return plain.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)


def labels(column: str, array: Any) -> Any:
    """An Arrow array of text, int64, booleans or float64, null where a value is missing."""
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
    """A categorical column as its values."""
    if not is_dictionary(array.type):
        return array
    values = array.dictionary
    if is_text(values.type):
        values = values.cast(load_pyarrow().string())
    return values.take(array.indices)


def by_name(block: Any) -> dict[str, Any]:
    """A record batch's columns by name."""
    return dict(zip(block.schema.names, block.columns, strict=True))


def value_set(values: Sequence[Label]) -> Any:
    """Labels of one kind as an Arrow array, for `positions`."""
    return load_pyarrow().array(values)


def positions(array: Any, known: Any) -> NDArray[np.int64]:
    """Where each label stands in a `value_set`, −1 where it is missing or not among them."""
    found = load_pyarrow().compute.index_in(array, value_set=known)
    return found.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)
