"""The encoding of a table's columns as numbers, kept so that new rows are encoded the same way."""

import json
import math
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, Self, get_args

import numpy as np
from numpy.typing import NDArray

from fedscaffold.core.checks import choice, positive
from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.files import json_value, read_text, write_text
from fedscaffold.core.types import Array
from fedscaffold.data import tables
from fedscaffold.data.settings import DatePart, check_date_parts
from fedscaffold.data.tables import Label, some
from fedscaffold.problems.base import COLUMNS, OFFSET, TARGET, WEIGHT
from fedscaffold.problems.cox import signed_times
from fedscaffold.problems.families import FAMILIES, KINDS, Kind, TargetFamily

Unknown = Literal["error", "ignore"]
FORMAT = "fedscaffold encoding 1"
STATUS = "the status column {!r} must hold 1 (an event) or 0 (none) in all rows, or true and false; recode it"
TYPES = {str: "text", bool: "booleans", int: "whole numbers", float: "numbers"}


@dataclass(frozen=True, kw_only=True)
class Number:
    """(v − shift)/scale for a value v; a missing value counts as `fill`, booleans as 0 and 1.

    With `fill` None a missing value is rejected.
    """

    name: str
    fill: float | None = None
    shift: float = 0.0
    scale: float = 1.0

    def __post_init__(self) -> None:
        positive("scale", self.scale)
        given: tuple[Any, ...] = (self.shift,) if self.fill is None else (self.shift, self.fill)
        for value in given:
            if not isinstance(value, float) or not math.isfinite(value):
                raise InvalidInput(f"shift and fill of column {self.name!r} must be finite numbers, got {value!r}")

    @property
    def names(self) -> tuple[str, ...]:
        """The name of its one coordinate."""
        return (self.name,)

    def put(self, array: Any, out: Array, first_row: int, unknown: Unknown = "error") -> None:
        """Write the coordinate of some rows into `out`, (rows, 1)."""
        if not tables.is_number(array.type) and array.null_count < len(array):
            row, value = _first(array)
            raise InvalidInput(
                f"column {self.name!r} should hold numbers, but row {first_row + row} has {value!r}"
            )
        values = tables.numbers(array)
        absent = np.isnan(values)
        if absent.any():
            if self.fill is None:
                raise InvalidInput(_missing(self.name, absent, first_row))
            values = np.where(absent, self.fill, values)
        infinite = np.isinf(values)
        if infinite.any():
            raise InvalidInput(f"column {self.name!r} is infinite in row {first_row + int(infinite.argmax())}")
        if self.shift != 0.0 or self.scale != 1.0:
            values = (values - self.shift) / self.scale
        out[:, 0] = values


@dataclass(frozen=True, kw_only=True)
class Category:
    """A coordinate per value, 1 for rows with that value and 0 for others; none for the reference level.

    None among the values stands for a missing value; as the reference it means that all values have a coordinate.
    """

    name: str
    values: tuple[Label | None, ...]
    reference: Label | None = None

    def __post_init__(self) -> None:
        kinds = {type(value) for value in self.values if value is not None}
        if len(kinds) > 1 or not kinds <= TYPES.keys() or len(set(self.values)) < len(self.values):
            raise InvalidInput(f"values of column {self.name!r} must be different and of one kind")
        if self.reference is not None and self.reference not in self.values:
            raise InvalidInput(f"the reference {self.reference!r} is not among the values of column {self.name!r}")

    @property
    def levels(self) -> tuple[Label | None, ...]:
        """The values that have a coordinate: all but the reference level."""
        return tuple(v for v in self.values if self.reference is None or v != self.reference)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of its coordinates, such as 'ward=A'."""
        return tuple(f"{self.name} missing" if v is None else f"{self.name}={v}" for v in self.levels)

    def put(self, array: Any, out: Array, first_row: int, unknown: Unknown = "error") -> None:
        """Write the coordinates of some rows into `out`, (rows, len(levels))."""
        known = [value for value in self.values if value is not None]
        column = tables.labels(self.name, array)
        out[:] = 0.0
        absent = column.is_null().to_numpy(zero_copy_only=False)
        if absent.all():
            places = np.full(len(column), -1)
        else:
            _check_same_kind(self.name, known, column)
            places = tables.positions(column, tables.value_set(known))
        if absent.any():
            if None not in self.values:
                raise InvalidInput(_missing(self.name, absent, first_row))
            places[absent] = self.values.index(None)
        if unknown == "error" and (places < 0).any():
            row = int((places < 0).argmax())
            taken = "none of these" if self.reference is None else f"the reference, {self.reference!r}"
            raise InvalidInput(
                f"column {self.name!r} has the unknown value {column[row].as_py()!r} in row {first_row + row}; "
                f"known are {some(known)}; unknown='ignore' takes unknown values as {taken}"
            )
        if self.reference is not None:
            at = self.values.index(self.reference)
            places = np.where(places == at, -1, places - (places > at))
        rows = np.flatnonzero(places >= 0)
        out[rows, places[rows]] = 1.0


Column = Number | Category


@dataclass(frozen=True, kw_only=True)
class Encoding:
    """x = the columns' coordinates one after another, and a last 1 if there is an intercept.

    Parameters
    ----------
    columns
        How each feature is encoded, in order.
    target, client
        The names of these columns.
    classes
        The target's classes: two are kept as −1 and +1, more as 0, 1, ... None for a numeric target.
    intercept
        Whether a constant coordinate 1 comes last.
    dates
        Parts that are taken of columns of dates, by column; the features' names are then such as 'admitted year'.
    kind
        Kind of model; by default "logistic" if there are classes, else "ridge".
    exposure, offset, weight, status
        Names of the columns of exposures, offsets, sample weights and, for Cox regression, events, or None.

    Examples
    --------
    >>> import pandas as pd
    >>> import fedscaffold as fs
    >>> visits = pd.DataFrame({"hospital": list("AABB"), "ward": list("xyyx"), "days": [2, 5, 4, 3]})
    >>> encoding = fs.data.from_frame(visits, target="days", client="hospital", intercept=True).encoding
    >>> encoding.names
    ('ward=y', 'intercept')
    >>> encoding.encode(pd.DataFrame({"ward": ["x", "y"]}))
    array([[0., 1.],
           [1., 1.]])
    """

    columns: tuple[Column, ...]
    target: str
    client: str
    classes: tuple[Label, ...] | None = None
    intercept: bool = False
    dates: Mapping[str, tuple[DatePart, ...]] = field(default_factory=dict)
    kind: Kind | None = None
    exposure: str | None = None
    offset: str | None = None
    weight: str | None = None
    status: str | None = None

    def __post_init__(self) -> None:
        roles = (self.exposure, self.offset, self.weight, self.status)
        more = [name for name in roles if name is not None]
        named = [self.target, self.client, *(column.name for column in self.columns), *more]
        usual: Kind = "ridge" if self.classes is None else "logistic"
        object.__setattr__(self, "kind", choice("kind", usual if self.kind is None else self.kind, KINDS))
        if self.family.classes != (self.classes is not None):
            raise InvalidInput(f"a {self.kind} model has {'' if self.family.classes else 'no '}classes")
        if self.family.baseline != (self.status is not None) or (self.family.baseline and self.intercept):
            raise InvalidInput("a status column is for kind='cox', which has no intercept")
        if self.n_vectors > 1 and self.offset is not None:
            raise InvalidInput("offsets are not supported for more than two classes")
        if not all(isinstance(name, str) for name in named) or not isinstance(self.intercept, bool):
            raise InvalidInput("columns are named by text, and intercept is true or false")
        if self.classes is not None and len(self.classes) < 2:
            raise InvalidInput(f"there must be at least two classes, got {self.classes!r}")
        object.__setattr__(self, "dates", {name: check_date_parts(parts) for name, parts in self.dates.items()})

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the coordinates of an encoded row, and of θ."""
        names = tuple(name for column in self.columns for name in column.names)
        return (*names, "intercept") if self.intercept else names

    @property
    def dim(self) -> int:
        """Number of coordinates of an encoded row."""
        return len(self.names)

    @property
    def n_vectors(self) -> int:
        """Number of vectors of `dim` coordinates in θ: one per class if there are more than two, else one."""
        return 1 if self.classes is None or len(self.classes) == 2 else len(self.classes)

    @property
    def family(self) -> TargetFamily:
        """The requirements of the kind of model on a table."""
        assert self.kind is not None  # set above
        return FAMILIES[self.kind]

    @property
    def record_columns(self) -> tuple[str, ...]:
        """Names of the columns that a record's target, offset and weight come from."""
        found = (self.target, self.exposure, self.offset, self.weight, self.status)
        return tuple(name for name in found if name is not None)

    def record_shape(self, rows: int) -> tuple[int, ...]:
        """Return the shape of the targets of some rows: one number each or, with offsets and weights, three."""
        plain = len(self.record_columns) == 1 and not self.family.log_link
        return (rows,) if plain else (rows, COLUMNS)

    @property
    def places(self) -> tuple[slice, ...]:
        """The coordinates of each column, in the columns' order."""
        ends = np.cumsum([len(column.names) for column in self.columns]).tolist()
        return tuple(slice(begin, end) for begin, end in zip([0, *ends[:-1]], ends, strict=True))

    def encode(self, frame: Any, *, unknown: Unknown = "error") -> Array:
        """Return the features of new rows, (rows, dim); the table may lack the target and client columns.

        Parameters
        ----------
        frame
            A table of any kind that `from_frame` takes.
        unknown
            "error" rejects a category that was not there before; "ignore" takes it as the reference level, or as
            none of the known ones without a reference.

        Returns
        -------
        Array
            Features, (rows, dim).

        Raises
        ------
        InvalidInput
            If a column is missing, or has values that cannot be encoded.
        """
        choice("unknown", unknown, get_args(Unknown))
        source = tables.frame_source(frame)
        tables.check_names(source.names)
        dated = {tables.pick(source.names, name): parts for name, parts in self.dates.items()}
        source = tables.with_date_parts(source, dated)
        wanted = tables.pick_all(source.names, (column.name for column in self.columns))
        parts, first_row = [np.empty((0, self.dim))], 0
        for block in tables.blocks(source.read(wanted)):
            part = np.ones((block.num_rows, self.dim))
            arrays = tables.by_name(block)
            for column, place in zip(self.columns, self.places, strict=True):
                column.put(arrays[column.name], part[:, place], first_row, unknown)
            parts.append(part)
            first_row += block.num_rows
        return np.concatenate(parts)

    def targets(self, columns: Mapping[str, Any]) -> Array:
        """Return targets of some rows, given by column: numbers, −1 and +1 for two classes, or 0, 1, ... for more.

        (rows,), or with offsets and weights (rows, 3).
        """
        column = columns[self.target]
        if self.classes is None:
            values: Array = tables.numbers(column)
            if self.status is not None:
                values = self._signed_times(values, tables.numbers(columns[self.status]))
        else:
            which = tables.positions(tables.labels(self.target, column), tables.value_set(self.classes))
            codes = which.astype(np.float64)
            values = 2.0 * codes - 1.0 if len(self.classes) == 2 else codes
        shape = self.record_shape(len(column))
        if len(shape) == 1:
            return values
        found = np.empty(shape)
        found[:, TARGET] = values
        found[:, OFFSET] = self._block_offsets(columns)
        found[:, WEIGHT] = 1.0 if self.weight is None else tables.numbers(columns[self.weight])
        return found

    def _signed_times(self, times: Array, events: Array) -> Array:
        """Return times as Cox regression takes them; raise if one is negative, or a status neither 0 nor 1."""
        problems = []
        if (times < 0.0).any():
            problems.append(f"the times in column {self.target!r} must not be negative")
        if not np.isin(events, (0.0, 1.0)).all():
            problems.append(STATUS.format(self.status))
        if problems:
            raise InvalidInput("; ".join(problems))
        return signed_times(times, events)

    def offsets(self, frame: Any) -> Array | float:
        """Return offsets of new rows, (rows,), from their column of exposures or offsets; 0 without such."""
        name = self.exposure if self.offset is None else self.offset
        if name is None:
            return 0.0
        source = tables.frame_source(frame)
        columns = source.blocks([tables.pick(source.names, name)])
        found = np.concatenate([np.empty(0), *map(self._block_offsets, columns)])
        if not np.isfinite(found).all():
            what = "no positive number" if self.exposure is not None else "no finite number"
            raise InvalidInput(f"column {name!r} has {what} in row {int((~np.isfinite(found)).argmax())}")
        return found

    def _block_offsets(self, columns: Mapping[str, Any]) -> Array:
        if self.exposure is None:
            return np.zeros(1) if self.offset is None else tables.numbers(columns[self.offset])
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.log(tables.numbers(columns[self.exposure]))

    def to_json(self) -> str:
        """Return text from which `from_json` makes an equal encoding."""
        columns = [{"kind": type(column).__name__.lower(), **asdict(column)} for column in self.columns]
        rest: dict[str, Any] = {
            "target": self.target, "client": self.client, "classes": self.classes, "intercept": self.intercept,
        }  # fmt: skip
        if self.dates:
            rest["dates"] = {name: list(parts) for name, parts in self.dates.items()}
        rest |= self.further_fields()
        return json.dumps({"format": FORMAT, **rest, "columns": columns}, indent=1, allow_nan=False)

    def further_fields(self) -> dict[str, str]:
        """Return the kind of model and the columns of exposures, offsets and weights, as files hold them.

        The kind is left out if the classes imply it, as in files without such fields.
        """
        implied = not self.family.log_link and not self.family.baseline
        found = {"kind": None if implied else self.kind, "exposure": self.exposure}
        found |= {"offset": self.offset, "weight": self.weight, "status": self.status}
        return {name: value for name, value in found.items() if value is not None}

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Return the encoding that `to_json` wrote."""
        try:
            found = json_value(text)
            if found.pop("format") != FORMAT:
                raise KeyError("format")
            classes = found.pop("classes")
            columns = tuple(_column(column) for column in found.pop("columns"))
            return cls(columns=columns, classes=None if classes is None else tuple(classes), **found)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise InvalidInput(f"this is not an encoding that fedscaffold wrote: {error}") from None

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the encoding to a JSON file."""
        write_text(path, self.to_json())

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read an encoding that `save` wrote."""
        return cls.from_json(read_text(path, "the encoding"))


def _column(found: dict[str, Any]) -> Column:
    if found.pop("kind") == "number":
        return Number(**found)
    return Category(name=found["name"], values=tuple(found["values"]), reference=found.get("reference"))


def _missing(name: str, absent: NDArray[np.bool_], first_row: int) -> str:
    row = first_row + int(absent.argmax())
    return f"column {name!r} has no value in row {row}, and the encoding has none to fill in; fill it first"


def _first(array: Any) -> tuple[int, Any]:
    """Return the row of the first value that is not missing, and the value."""
    row = int(array.is_valid().to_numpy(zero_copy_only=False).argmax())
    return row, array[row].as_py()


def _check_same_kind(name: str, known: list[Any], column: Any) -> None:
    _, value = _first(column)
    if known and type(value) is not type(known[0]):
        raise InvalidInput(
            f"column {name!r} holds {TYPES[type(value)]}, such as {value!r}, but held {TYPES[type(known[0])]} "
            "when the encoding was made"
        )


# Rows of a table in an encoding that was made before, with their targets


def encode_table(
    table: Any, encoding: Encoding, *, target_shift: float, target_scale: float, limit: float | None = None,
    limits: tuple[float, float] | None = None,
) -> tuple[Array, Array]:  # fmt: skip
    """Return features and targets of all rows of a table.

    Features are (rows, dim); targets are (rows,) or, with offsets and weights, (rows, 3).

    Parameters
    ----------
    table
        A frame of any library that `data.from_frame` takes.
    encoding
        How rows become numbers.
    target_shift, target_scale
        A numeric target y becomes (y − target_shift)/target_scale; if the mean is the exponential of the margin,
        target_shift is added to the margin.
    limit
        Encoded numbers beyond this, up or down, count as the limit, and unknown values of a category as none of
        the known ones; None rejects the latter and takes all numbers as they are.
    limits
        Numeric targets below the first or above the second count as that; None takes all as they are.
    """
    x = encoding.encode(table, unknown="error" if limit is None else "ignore")
    source = tables.frame_source(table)
    tables.check_names(source.names)
    blocks = source.blocks(tables.pick_all(source.names, encoding.record_columns))
    parts = [_targets_within(columns, encoding, limits) for columns in blocks]
    y = np.concatenate(parts) if parts else np.empty(encoding.record_shape(0))
    y = encoding.family.standardized(y, target_shift, target_scale)
    return (x if limit is None else np.clip(x, -limit, limit)), y


def _targets_within(columns: Mapping[str, Any], encoding: Encoding, limits: tuple[float, float] | None) -> Array:
    """Return targets of some rows, with offsets and weights; raise if the kind of model cannot have them.

    Targets beyond their limits count as the nearer one, even if the kind of model cannot have them.
    """
    name, classes = encoding.target, encoding.classes
    if classes is not None:
        unknown = set(tables.labels(name, columns[name]).unique().to_pylist()) - set(classes)
        if unknown:
            raise InvalidInput(
                f"the target {name!r} has the values {some(unknown)}, but its classes are {some(classes)}"
            )
    y = encoding.targets(columns)
    if limits is not None:
        numbers = y if y.ndim == 1 else y[:, TARGET]
        within = np.where(np.isfinite(numbers), np.clip(numbers, *limits), numbers)
        y = within if y.ndim == 1 else np.column_stack([within, y[:, TARGET + 1 :]])
    check_records(y, encoding)
    return y


def check_records(y: Array, encoding: Encoding) -> None:
    """Raise if the kind of model cannot have these targets, offsets or weights; no value of the table is shown."""
    family, name = encoding.family, encoding.target
    targets = y if y.ndim == 1 else y[:, TARGET]
    problems = []
    if not np.isfinite(targets).all():
        problems.append(f"the target {name!r} has missing or infinite values; drop those rows first")
    elif not family.baseline and family.out_of_range(float(targets.min())) is not None:
        problems.append(f"the target {name!r} must {family.out_of_range(float(targets.min()))} for {family.kind}")
    elif family.whole and (targets != np.floor(targets)).any():
        problems.append(f"the target {name!r} must hold whole numbers for {family.kind}")
    if y.ndim > 1 and not np.isfinite(y[:, OFFSET]).all():
        what = "positive numbers" if encoding.exposure is not None else "finite numbers"
        problems.append(f"column {encoding.exposure or encoding.offset!r} must hold {what}")
    if y.ndim > 1 and not (np.isfinite(y[:, WEIGHT]) & (y[:, WEIGHT] > 0.0)).all():
        problems.append(f"column {encoding.weight!r} must hold positive weights")
    if problems:
        raise InvalidInput("; ".join(problems))
