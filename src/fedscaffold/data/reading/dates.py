"""Columns of dates as columns of their years, months and weekdays."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, get_args

from fedscaffold.core.checks import given
from fedscaffold.core.errors import InvalidInput
from fedscaffold.data.arrow import Reader, Source, load_pyarrow

DatePart = Literal["year", "month", "weekday"]
PARTS: tuple[DatePart, ...] = get_args(DatePart)
MONTHS = (
    "January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November",
    "December",
)  # fmt: skip
WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
DateParts = Mapping[str, Sequence[DatePart]]


def check_parts(parts: Any) -> tuple[DatePart, ...]:
    """The parts of dates to take, refused unless they are some of year, month and weekday, each once."""
    try:
        listed = (parts,) if isinstance(parts, str) else tuple(parts)
    except TypeError:  # nothing that one can go through
        listed = (parts,)
    if not all(isinstance(part, str) and part in PARTS for part in listed) or len(set(listed)) < len(listed):
        raise InvalidInput(f"dates must be some of {', '.join(PARTS)}, got {given(parts)}")
    return listed


def is_date(kind: Any) -> bool:
    """Whether an Arrow type holds dates, with a time of day or without."""
    types = load_pyarrow().types
    return bool(types.is_date(kind) or types.is_timestamp(kind))


def date_columns(source: Source) -> tuple[str, ...]:
    """Names of a table's columns that hold dates, from the types of its first rows."""
    read = source.open(source.names)
    for batch in read(source.names):
        return tuple(field.name for field in batch.schema if is_date(field.type))
    return ()


def with_date_parts(source: Source, dates: DateParts) -> Source:
    """The table with each column of dates replaced by columns of its parts, such as 'admitted weekday'.

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

    def open_(columns: Sequence[str]) -> Reader:
        inner = source.open(_bases(columns, origin))

        def read(some: Sequence[str]) -> Iterable[Any]:
            pa = load_pyarrow()
            for batch in inner(_bases(some, origin)):
                arrays = dict(zip(batch.schema.names, batch.columns, strict=True))
                made = [_part(arrays, *origin[name]) if name in origin else arrays[name] for name in some]
                yield pa.RecordBatch.from_arrays(made, names=list(some))

        return read

    return Source(tuple(names), open_)


def _bases(columns: Sequence[str], origin: Mapping[str, tuple[str, DatePart]]) -> list[str]:
    """The table's own columns behind some columns, each once."""
    return list(dict.fromkeys(origin[name][0] if name in origin else name for name in columns))


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
