"""Problems made from a table: two passes, statistics of the columns, then the rows into one array."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedscaffold.core.checks import positive
from fedscaffold.core.errors import Collector, InvalidInput
from fedscaffold.core.types import Array, offsets_of
from fedscaffold.data import tables
from fedscaffold.data.encoding import Encoding
from fedscaffold.data.settings import TableSettings, Weights
from fedscaffold.data.statistics import LabelCounts, encoded_column, table_statistics
from fedscaffold.data.tables import Label, Reader, Source
from fedscaffold.problems.base import OFFSET, TARGET, TabularProblem, aligned_empty
from fedscaffold.problems.cox import Cox
from fedscaffold.problems.families import Kind
from fedscaffold.problems.glm import Gamma, Logistic, Poisson, Ridge
from fedscaffold.problems.multinomial import Multinomial

CHANGED = "the table changed while it was being read; start again"


class FromTable(TabularProblem):
    """f = Σ_c w_c f_c over the clients of a table, with their names and the encoding of rows.

    `client_names[c]` is client c's name in the table, `encoding` how rows became numbers. An intercept is not
    penalised.
    """

    def __init__(
        self,
        x: Array,
        y: Array,
        offsets: NDArray[np.int64],
        *,
        l2: float,
        weights: Array,
        client_names: tuple[Label, ...],
        encoding: Encoding,
    ) -> None:
        self.client_names = client_names
        self.encoding = encoding
        self.vectors = encoding.n_vectors
        self._set_data(x, y, offsets, l2=l2, weights=weights, n_unpenalised=int(encoding.intercept))

    @property
    def classes(self) -> tuple[Label, ...] | None:
        """The target's classes: two are kept as −1 and +1 in this order, more as 0, 1, ...; None for numbers."""
        return self.encoding.classes

    @property
    def targets(self) -> Array:
        """The records' targets, without their offsets and weights, (records,)."""
        return self.y if self.y.ndim == 1 else self.y[:, TARGET]

    def record_margins(self, theta: Array) -> Array:
        """Return margins xᵀθ_k of the records, with their offsets, (records, vectors)."""
        z = self.x @ theta.reshape(self.vectors, self.n_features).T
        return z if self.y.ndim == 1 else z + self.y[:, [OFFSET]]

    def subset(self, clients: ArrayLike) -> Self:
        """Return the same problem on some of the clients, their weights scaled to sum to one."""
        other = super().subset(clients)
        other.client_names = tuple(self.client_names[int(c)] for c in np.asarray(clients))
        return other


class EncodedRidge(FromTable, Ridge):
    """f_c(θ) = mean of ½(xᵀθ − y)² over client c's rows of a table, plus l2/2 ‖θ‖²."""


class EncodedLogistic(FromTable, Logistic):
    """f_c(θ) = mean of log(1 + exp(−y xᵀθ)) over client c's rows of a table, plus l2/2 ‖θ‖²."""


class EncodedMultinomial(FromTable, Multinomial):
    """f_c(θ) = mean of log Σ_k exp(xᵀθ_k) − xᵀθ_y over client c's rows of a table, plus l2/2 ‖θ‖²."""


class EncodedPoisson(FromTable, Poisson):
    """f_c(θ) = mean of exp(xᵀθ + o) − y (xᵀθ + o) over client c's rows of a table, plus l2/2 ‖θ‖²."""


class EncodedGamma(FromTable, Gamma):
    """f_c(θ) = mean of y exp(−xᵀθ − o) + xᵀθ + o over client c's rows of a table, plus l2/2 ‖θ‖²."""


class EncodedCox(FromTable, Cox):
    """f_c(θ) = the negative logarithm of Efron's partial likelihood of c's rows over n_c, plus l2/2 ‖θ‖²."""


EncodedProblem = EncodedRidge | EncodedLogistic | EncodedMultinomial | EncodedPoisson | EncodedGamma | EncodedCox
OF_KIND: dict[str, type[EncodedProblem]] = {
    "ridge": EncodedRidge, "logistic": EncodedLogistic, "poisson": EncodedPoisson, "gamma": EncodedGamma,
    "cox": EncodedCox,
}  # fmt: skip


def problem_class(encoding: Encoding) -> type[EncodedProblem]:
    """Return the class of problem for an encoding's kind of model and number of classes."""
    return EncodedMultinomial if encoding.n_vectors > 1 else OF_KIND[encoding.family.kind]


def weights_of(weights: Weights, names: tuple[Label, ...], sizes: NDArray[np.int64]) -> Array:
    """Return one weight per client, in the clients' order, not yet scaled to sum to one."""
    if not isinstance(weights, Mapping):
        return sizes.astype(np.float64) if weights == "rows" else np.ones(len(names))
    for name in names:
        if name not in weights:
            raise InvalidInput(f"weights has none for client {name!r}")
    there = set(names)
    extra = [name for name in weights if name not in there]
    if extra:
        raise InvalidInput(f"weights names clients that the table does not have: {tables.some(extra)}")
    return np.array([positive(f"the weight of client {name!r}", weights[name]) for name in names])


# The first pass


@dataclass(frozen=True, kw_only=True)
class TableLayout:
    """Results of the first pass: the encoding, the clients' names in order, and their numbers of rows."""

    read: Reader
    encoding: Encoding
    names: tuple[Label, ...]
    sizes: NDArray[np.int64]

    @property
    def rows(self) -> int:
        """Number of rows of all clients together."""
        return int(self.sizes.sum())

    @property
    def nbytes(self) -> int:
        """Size of the encoded rows and targets in bytes."""
        return 8 * (self.rows * self.encoding.dim + math.prod(self.encoding.record_shape(self.rows)))


def with_kind(source: Source, settings: TableSettings) -> TableSettings:
    """Return the settings with a kind, chosen by the target if none is given.

    "ridge" for numbers with more than 20 different values, else "logistic".
    """
    if settings.kind is not None:
        return settings
    tables.check_names(source.names)
    target = settings.target
    return replace(settings, kind=_guess_kind(source, target) if target in source.names else "ridge")


def _guess_kind(source: Source, target: str) -> Kind:
    seen: set[Label] = set()
    for batch in source.read([target]):
        array = batch.column(0)
        if not tables.is_number(array.type):
            return "logistic"
        seen.update(tables.labels(target, array).unique().drop_null().to_pylist())
        if len(seen) > 20:
            return "ridge"
    return "logistic"


def table_layout(source: Source, settings: TableSettings) -> TableLayout:
    """Read a table once and return its encoding, client names and sizes; raise with everything that is wrong."""
    tables.check_names(source.names)
    parts = {name: tuple(settings.dates) for name in tables.date_columns(source)} if settings.dates else {}
    source = tables.with_date_parts(source, parts)
    problems = Collector()
    for name in (settings.target, settings.client, *settings.record_columns.values()):
        with problems.catching():
            tables.pick(source.names, name)
    problems.raise_any()
    features = tables.pick_features(source.names, settings, problems)
    found = table_statistics(source.read, features, settings, problems)
    names = found.clients.values
    encoding = Encoding(
        columns=tuple(encoded_column(name, column, settings) for name, column in found.features.items()),
        target=settings.target,
        client=settings.client,
        classes=found.target.values if isinstance(found.target, LabelCounts) else None,
        intercept=bool(settings.intercept) and not settings.family.baseline,
        dates={name: own for name, own in parts.items() if any(f"{name} {part}" in features for part in own)},
        kind=settings.kind,
        **settings.record_columns,
    )
    sizes = np.array([found.clients.counts[name] for name in names], dtype=np.int64)
    weights_of(settings.weights, names, sizes)
    return TableLayout(read=source.read, encoding=encoding, names=names, sizes=sizes)


# The second pass


def build_problem(source: Source, settings: TableSettings) -> EncodedProblem:
    """Return the problem of a table, rows in table order within each client, clients sorted by name."""
    settings = with_kind(source, settings)
    return problem_in_memory(table_layout(source, settings), settings)


def problem_in_memory(layout: TableLayout, settings: TableSettings) -> EncodedProblem:
    """Read a table again and return its problem, with the records in memory."""
    n, dim = layout.rows, layout.encoding.dim
    try:
        x, y = aligned_empty((n, dim)), np.empty(layout.encoding.record_shape(n))
    except MemoryError:
        raise InvalidInput(
            f"{n:,} rows of {dim:,} features need {8 * n * dim / 2**30:,.1f} GiB of memory; take fewer rows or "
            "features, or write the table as Parquet and pass cache_dir=... to keep its numbers in files"
        ) from None
    rows, first = np.empty(n, dtype=np.int64), 0
    for to, goal in encoded_targets(layout):
        y[to] = goal
        rows[first : first + to.size] = to
        first += to.size
    for first, place, part in encoded_features(layout):
        x[rows[first : first + len(part)], place] = part
    if layout.encoding.intercept:
        x[:, -1] = 1.0
    return encoded_problem(x, y, layout.encoding, layout.names, layout.sizes, settings)


def encoded_problem(
    x: Array,
    y: Array,
    encoding: Encoding,
    names: tuple[Label, ...],
    sizes: NDArray[np.int64],
    settings: TableSettings,
) -> EncodedProblem:
    """Return the problem on records that are encoded and in the clients' order."""
    return problem_class(encoding)(
        x,
        y,
        offsets_of(sizes),
        l2=settings.penalty(len(y)),
        weights=weights_of(settings.weights, names, sizes),
        client_names=names,
        encoding=encoding,
    )


def next_places(sections: NDArray[np.int64], free: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the place of each row, in order within its section; advance `free`, the sections' next places."""
    counts = np.bincount(sections, minlength=free.size)
    order = np.argsort(sections, kind="stable")
    here = free - (np.cumsum(counts) - counts)  # where a section's first row goes, less its rank
    places = np.empty(sections.size, dtype=np.int64)
    places[order] = here[sections[order]] + np.arange(sections.size)
    free += counts
    return places


def encoded_targets(layout: TableLayout) -> Iterator[tuple[NDArray[np.int64], Array]]:
    """Return (places, targets) of each block of rows: places among the records of all clients in order."""
    encoding, offsets = layout.encoding, offsets_of(layout.sizes)
    known = tables.value_set(layout.names)
    free, seen = offsets[:-1].copy(), 0
    for block in tables.blocks(layout.read([encoding.client, *encoding.record_columns])):
        columns = tables.by_name(block)
        owners = tables.positions(tables.labels(encoding.client, columns[encoding.client]), known)
        counts = np.bincount(owners[owners >= 0], minlength=layout.sizes.size)
        if (owners < 0).any() or (free + counts > offsets[1:]).any():
            raise InvalidInput(CHANGED)
        yield next_places(owners, free), encoding.targets(columns)
        seen += block.num_rows
    if seen != layout.rows:
        raise InvalidInput(CHANGED)


def encoded_features(layout: TableLayout) -> Iterator[tuple[int, slice, Array]]:
    """Return (first row, coordinates, values) of each block of rows, for some columns at a time."""
    encoding = layout.encoding
    places = dict(zip((column.name for column in encoding.columns), encoding.places, strict=True))
    columns = {column.name: column for column in encoding.columns}
    for group in tables.groups(list(columns)):
        place, first = slice(places[group[0]].start, places[group[-1]].stop), 0
        for block in tables.blocks(layout.read(group)):
            if first + block.num_rows > layout.rows:
                raise InvalidInput(CHANGED)
            part = np.empty((block.num_rows, place.stop - place.start))
            for name, array in tables.by_name(block).items():
                own = slice(places[name].start - place.start, places[name].stop - place.start)
                columns[name].put(array, part[:, own], first)
            yield first, place, part
            first += block.num_rows
        if first != layout.rows:
            raise InvalidInput(CHANGED)
