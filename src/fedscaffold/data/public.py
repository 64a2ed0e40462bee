"""Public knowledge of a table's columns, in place of statistics of its rows.

A number has a range, whose middle counts as 0 and a sixth of it as 1, so that encoded numbers lie between −3 and
3; numbers outside the range count as its end. A category has its values, the target of a classifier its classes;
counts and positive amounts have a range.
"""

import math
import os
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np

from fedscaffold.core.checks import choice, given
from fedscaffold.core.errors import Collector, InvalidInput
from fedscaffold.data.encoded import EncodedProblem, encoded_problem
from fedscaffold.data.encoding import Category, Encoding, Number, encode_table
from fedscaffold.data.settings import TableSettings
from fedscaffold.data.tables import arrow_table, labels, some
from fedscaffold.problems.families import FAMILIES, KINDS, Kind

LIMIT = 3.0  # of encoded numbers: half of a range over a sixth of it, so that a sixth counts as one deviation


@dataclass(frozen=True, kw_only=True)
class PublicTarget:
    """The kind of model of a target, and its range or number of classes, which must fit.

    Parameters
    ----------
    kind
        "ridge", "logistic", "poisson" or "gamma".
    n_classes
        Number of classes; 0 for numbers.
    ends
        Lowest and highest number; not used for classes.

    Examples
    --------
    >>> import math
    >>> from fedscaffold.data.public import PublicTarget
    >>> PublicTarget(kind="ridge", ends=(0.0, 12.0)).scale
    2.0
    >>> visits = PublicTarget(kind="poisson", ends=(0.0, 16.0))
    >>> round(math.exp(visits.shift), 6)  # the mean at θ = 0
    4.0
    """

    kind: Kind
    n_classes: int = 0
    ends: tuple[float, float] = (0.0, 1.0)

    def __post_init__(self) -> None:
        if self.kind == "logistic" and self.n_classes < 2:
            raise InvalidInput(f"the target must have two classes or more, got {self.n_classes}")
        family, (low, high) = FAMILIES[self.kind], self.ends
        what = f"the range of {family.target}"
        if family.least is not None and family.out_of_range(low) is not None:
            raise InvalidInput(f"{what} must {family.out_of_range(low)}, got ({low:g}, {high:g})")
        if family.whole and not (low.is_integer() and high.is_integer()):
            raise InvalidInput(f"{what} must be whole numbers, got ({low:g}, {high:g})")

    @property
    def vectors(self) -> int:
        """Number of vectors in θ: one per class if there are more than two, else one."""
        return self.n_classes if self.n_classes > 2 else 1

    @property
    def shift(self) -> float:
        """The middle of a range, for counts and amounts the logarithm of √(low · high); 0 for classes.

        Counts have their middle between 1 and the highest, since a mean of 0 has no logarithm.
        """
        family, (low, high) = FAMILIES[self.kind], self.ends
        if family.classes:
            return 0.0
        if family.log_link:
            return 0.5 * (math.log(max(low, 1.0) if family.whole else low) + math.log(high))
        return low + 0.5 * (high - low)

    @property
    def scale(self) -> float:
        """A sixth of the range that a ridge model is fitted to; 1 for other kinds."""
        return (self.ends[1] - self.ends[0]) / (2.0 * LIMIT) if self.kind == "ridge" else 1.0

    @property
    def limits(self) -> tuple[float, float] | None:
        """Numbers beyond which targets count as the nearer one; None for classes."""
        return None if FAMILIES[self.kind].classes else self.ends


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """Ranges of numbers and values of categories, for the target and all features of a table.

    Parameters
    ----------
    columns
        For each column its range (low, high), or the values that it may have; the target among them, the other
        columns are the features.
    target
        Name of the column to predict.
    kind
        "ridge", "logistic", "poisson" or "gamma".
    categorical
        Features that are categories although their values are numbers.

    Examples
    --------
    >>> from fedscaffold.data.public import Bounds
    >>> columns = {"age": (0, 120), "sex": ("f", "m"), "ill": ("no", "yes")}
    >>> bounds = Bounds.parse(columns, target="ill")
    >>> bounds.kind, bounds.encoding("hospital").names
    ('logistic', ('age', 'sex=m', 'intercept'))
    """

    columns: Mapping[str, tuple[Any, ...]]
    target: str
    kind: Kind
    categorical: tuple[str, ...] = ()

    @classmethod
    def parse(
        cls,
        columns: Any,
        *,
        target: str,
        kind: str | None = None,
        categorical: Sequence[str] = (),
    ) -> Self:
        """Return checked bounds; raise with all their problems.

        Without a kind, a target with a range of numbers makes it "ridge", one with values "logistic".
        """
        found = Collector("bounds")
        if columns is None:
            raise InvalidInput(
                "epsilon requires bounds=...: the public range or values of the target and every feature, since "
                "statistics of the rows would not be covered by the budget"
            )
        if not isinstance(columns, Mapping) or not all(isinstance(name, str) for name in columns):
            raise InvalidInput(f"bounds must be a dictionary from column to range or values, got {given(columns)}")
        if target not in columns:
            raise InvalidInput(f"bounds must have the target {target!r} too: its range, or its classes")
        if len(columns) < 2:
            raise InvalidInput(f"bounds has no features besides the target {target!r}")
        if kind is None:
            kind = "ridge" if _is_range(columns[target]) else "logistic"
        with found.catching():
            choice("kind", kind, KINDS)
        if kind == "logistic":
            categorical = (*categorical, target)
        unknown = [name for name in categorical if name not in columns]
        if unknown:
            found.add(f"categorical names {some(unknown)}, for which there are no bounds")
        checked = {}
        for name, value in columns.items():
            with found.catching():
                wanted = "range" if kind != "logistic" and name == target else None
                checked[name] = _column(name, value, category=name in categorical, wanted=wanted)
        known: Any = kind
        bounds = cls(columns=checked, target=target, kind=known, categorical=tuple(categorical))
        if kind in KINDS and target in checked:
            with found.catching():
                bounds.public_target  # noqa: B018 - raises if the range does not fit the kind
        found.raise_any()
        return bounds

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> dict[str, Any]:
        """Read the columns of a TOML file with lines such as ``age = [0, 120]`` and ``sex = ["f", "m"]``."""
        try:
            return tomllib.loads(Path(path).read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            raise InvalidInput(f"cannot read the bounds {os.fspath(path)}: {error}") from None

    @property
    def public_target(self) -> PublicTarget:
        """The target's range or classes, which must fit the kind of model."""
        values = self.columns[self.target]
        if FAMILIES[self.kind].classes:
            return PublicTarget(kind=self.kind, n_classes=len(values))
        return PublicTarget(kind=self.kind, ends=(float(values[0]), float(values[1])))

    @property
    def levels(self) -> tuple[int, ...]:
        """For each feature the number of its values; 0 for numbers."""
        return tuple(len(self.columns[name]) if self.is_category(name) else 0 for name in self._features)

    def encoding(self, client: str) -> Encoding:
        """Return how rows become numbers, with an intercept; `client` is the name of the column of clients."""
        columns = tuple(
            Category(name=name, values=self.columns[name], reference=self.columns[name][0])
            if self.is_category(name)
            else Number(name=name, shift=_middle(*self.columns[name]), scale=_sixth(*self.columns[name]))
            for name in self._features
        )
        classes = self.columns[self.target] if self.kind == "logistic" else None
        return Encoding(
            columns=columns, target=self.target, client=client, classes=classes, intercept=True, kind=self.kind
        )

    def problem(self, table: Any, client: str, l2: Any) -> EncodedProblem:
        """Return the problem of a table with a column of clients, in memory; clients count by their rows.

        Nothing about the rows but their number enters its encoding.
        """
        settings = TableSettings(target=self.target, client=client, kind=self.kind, l2=l2)
        encoding, known = self.encoding(client), self.public_target
        x, y = encode_table(
            table, encoding, target_shift=known.shift, target_scale=known.scale, limit=LIMIT, limits=known.limits
        )
        ids = labels(client, arrow_table(table, [client]).column(client).combine_chunks())
        if ids.null_count:
            raise InvalidInput(f"the client column {client!r} has no value in {ids.null_count:,} rows")
        names, owners, sizes = np.unique(
            ids.to_numpy(zero_copy_only=False), return_inverse=True, return_counts=True
        )
        order = np.argsort(owners, kind="stable")
        records = np.ascontiguousarray(x[order]), y[order]
        return encoded_problem(*records, encoding, tuple(names.tolist()), sizes, settings)

    @property
    def _features(self) -> list[str]:
        return [name for name in self.columns if name != self.target]

    def is_category(self, name: str) -> bool:
        """Return whether a column has values instead of a range."""
        return name in self.categorical or not _is_range(self.columns[name])


def _is_range(value: Any) -> bool:
    """Return whether a value is a pair of numbers."""
    return (
        isinstance(value, Sequence)
        and len(value) == 2
        and all(isinstance(end, int | float) and not isinstance(end, bool) for end in value)
    )


def _column(name: str, value: Any, *, category: bool, wanted: str | None) -> tuple[Any, ...]:
    """Return the bounds of one column as a tuple: a range of finite numbers, or different values of one kind."""
    if isinstance(value, np.ndarray):
        value = value.tolist()
    if not category and _is_range(value):
        low, high = float(value[0]), float(value[1])
        if not (math.isfinite(low) and math.isfinite(high) and low < high and math.isfinite(high - low)):
            raise InvalidInput(
                f"the range of column {name!r} must be two finite numbers, low < high, got {value!r}"
            )
        return low, high
    several = isinstance(value, list | tuple) and len(value) >= 2
    if wanted == "range" or not several or len(set(map(type, value))) > 1 or not isinstance(value[0], str | int):
        what = "a range (low, high)" if wanted == "range" else "a range (low, high), or two values or more"
        raise InvalidInput(f"the bounds of column {name!r} must be {what}, got {given(value)}")
    if len(set(value)) < len(value):
        raise InvalidInput(f"the values of column {name!r} must be different")
    return tuple(sorted(value))


def _middle(low: float, high: float) -> float:
    return low + 0.5 * (high - low)


def _sixth(low: float, high: float) -> float:
    return (high - low) / (2.0 * LIMIT)
