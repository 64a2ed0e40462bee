"""From a table to a problem in two passes: survey, then fill one array client by client."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from fedscaffold.core.checks import not_negative, whole_number
from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.types import Array
from fedscaffold.data.arrow import Label, Source
from fedscaffold.data.columns import check_names, pick, pick_features, some
from fedscaffold.data.encoding import Category, Column, Encoding, Number
from fedscaffold.data.filling import Layout, features, targets
from fedscaffold.data.framed import (
    FramedLogistic,
    FramedMultinomial,
    FramedRidge,
    Weights,
    check_weights,
    offsets_of,
    weights_of,
)
from fedscaffold.data.survey import MOST_CLASSES, Moments, Survey, Tally, survey
from fedscaffold.problems.client_arrays import aligned_empty

Kind = Literal["ridge", "logistic"]
Missing = Literal["error", "mean"]

Problem = FramedRidge | FramedLogistic | FramedMultinomial


@dataclass(frozen=True, kw_only=True)
class Choices:
    """What a user asks of a table; see `from_frame`."""

    target: str
    client: str
    features: Sequence[str] | None = None
    categorical: Sequence[str] = ()
    kind: Kind = "ridge"
    l2: float = 0.0
    weights: Weights = "rows"
    missing: Missing = "error"
    standardize: bool = False
    intercept: bool = False
    min_rows: int = 2
    max_categories: int = 100

    def __post_init__(self) -> None:
        if self.kind not in get_args(Kind):
            raise InvalidInput(f"kind must be one of {get_args(Kind)}, got {self.kind!r}")
        if self.missing not in get_args(Missing):
            raise InvalidInput(f"missing must be one of {get_args(Missing)}, got {self.missing!r}")
        if isinstance(self.categorical, str):
            raise InvalidInput(f"categorical must be a list of column names, got the text {self.categorical!r}")
        if self.target == self.client:
            raise InvalidInput(f"column {self.target!r} cannot be both target and client")
        not_negative("l2", self.l2)
        check_weights(self.weights)
        whole_number("min_rows", self.min_rows, least=1)
        whole_number("max_categories", self.max_categories, least=1)


def build(source: Source, choices: Choices) -> Problem:
    """The problem that a table holds, rows in table order within each client, clients sorted by name."""
    return in_memory(lay_out(source, choices), choices)


def in_memory(layout: Layout, choices: Choices) -> Problem:
    """The second pass: the rows into one array."""
    x, y = _room(layout.rows, layout.encoding.dim)
    rows, first = np.empty(layout.rows, dtype=np.int64), 0
    for to, goal in targets(layout):
        y[to] = goal
        rows[first : first + to.size] = to
        first += to.size
    for first, place, part in features(layout):
        x[rows[first : first + len(part)], place] = part
    if layout.encoding.intercept:
        x[:, -1] = 1.0
    return problem_of(x, y, layout.encoding, layout.names, layout.sizes, choices)


def lay_out(source: Source, choices: Choices) -> Layout:
    """The first pass: everything about the table but its rows."""
    check_names(source.names)
    target, client = pick(source.names, choices.target), pick(source.names, choices.client)
    features = pick_features(source.names, choices.features, target=target, client=client)
    for name in choices.categorical:
        if pick(source.names, name) not in features:
            raise InvalidInput(f"categorical names column {name!r}, which is not a feature")
    read = source.open([*features, target, client])
    found = survey(
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
    return Layout(read=read, encoding=encoding, names=names, sizes=sizes)


def problem_of(
    x: Array,
    y: Array,
    encoding: Encoding,
    names: tuple[Label, ...],
    sizes: NDArray[np.int64],
    choices: Choices,
) -> Problem:
    """The problem on rows that are encoded and in order."""
    return _kind(encoding)(
        x,
        y,
        offsets_of(sizes),
        l2=choices.l2,
        weights=weights_of(choices.weights, names, sizes),
        client_names=names,
        encoding=encoding,
    )


def _kind(encoding: Encoding) -> type[Problem]:
    if encoding.classes is None:
        return FramedRidge
    return FramedLogistic if len(encoding.classes) == 2 else FramedMultinomial


def _clients(found: Survey, choices: Choices) -> tuple[Label, ...]:
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


def _classes(found: Survey, choices: Choices) -> tuple[Label, ...] | None:
    goal, name = found.target, choices.target
    if goal.missing:
        raise InvalidInput(f"the target {name!r} has {goal.missing} missing values; drop those rows first")
    if isinstance(goal, Moments):
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


def _columns(found: Survey, choices: Choices) -> tuple[Column, ...]:
    tallies = {name: column for name, column in found.features.items() if isinstance(column, Tally)}
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
    moments = {name: column for name, column in found.features.items() if isinstance(column, Moments)}
    _refuse_counted({name: column.infinite for name, column in moments.items()}, "infinite values",
                    "replace them or drop those rows")  # fmt: skip
    return tuple(_column(name, column, choices) for name, column in found.features.items())


def _column(name: str, column: Moments | Tally, choices: Choices) -> Column:
    if isinstance(column, Tally):
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


def _refuse_numbers_as_text(name: str, tally: Tally) -> None:
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


def _room(rows: int, dim: int) -> tuple[Array, Array]:
    try:
        return aligned_empty((rows, dim)), np.empty(rows)
    except MemoryError:
        raise InvalidInput(
            f"{rows:,} rows of {dim:,} features need {8 * rows * dim / 2**30:,.1f} GiB of memory; "
            "take fewer rows or features, or keep them in a file: from_parquet(..., records=FOLDER)"
        ) from None
