"""The second pass over a table: its rows as numbers, and where each one goes among its client's records."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedscaffold.core.arrays import offsets_of
from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.types import Array
from fedscaffold.data.arrow import Label, Reader, blocks, by_name, groups, labels, positions, value_set
from fedscaffold.data.encoding import Encoding

CHANGED = "the table changed while it was being read; start again"


@dataclass(frozen=True, kw_only=True)
class TableLayout:
    """What the first pass found: the encoding, the clients' names in order, and their numbers of rows."""

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


def next_places(sections: NDArray[np.int64], free: NDArray[np.int64]) -> NDArray[np.int64]:
    """Where each row goes, in order within its section; `free`, the sections' first free places, moves on."""
    counts = np.bincount(sections, minlength=free.size)
    order = np.argsort(sections, kind="stable")
    here = free - (np.cumsum(counts) - counts)  # where a section's first row goes, less its rank
    places = np.empty(sections.size, dtype=np.int64)
    places[order] = here[sections[order]] + np.arange(sections.size)
    free += counts
    return places


def encoded_targets(layout: TableLayout) -> Iterator[tuple[NDArray[np.int64], Array]]:
    """(places, targets) of each block of rows: places among the records of all clients, client after client."""
    encoding, offsets = layout.encoding, offsets_of(layout.sizes)
    known = value_set(layout.names)
    free, seen = offsets[:-1].copy(), 0
    for block in blocks(layout.read([encoding.client, *encoding.record_columns])):
        columns = by_name(block)
        owners = positions(labels(encoding.client, columns[encoding.client]), known)
        counts = np.bincount(owners[owners >= 0], minlength=layout.sizes.size)
        if (owners < 0).any() or (free + counts > offsets[1:]).any():
            raise InvalidInput(CHANGED)
        yield next_places(owners, free), encoding.targets(columns)
        seen += block.num_rows
    if seen != layout.rows:
        raise InvalidInput(CHANGED)


def encoded_features(layout: TableLayout) -> Iterator[tuple[int, slice, Array]]:
    """(first row, coordinates, values) of each block of rows, for some columns at a time."""
    encoding = layout.encoding
    places = dict(zip((column.name for column in encoding.columns), encoding.places, strict=True))
    columns = {column.name: column for column in encoding.columns}
    for group in groups(list(columns)):
        place, first = slice(places[group[0]].start, places[group[-1]].stop), 0
        for block in blocks(layout.read(group)):
            if first + block.num_rows > layout.rows:
                raise InvalidInput(CHANGED)
            part = np.empty((block.num_rows, place.stop - place.start))
            for name, array in by_name(block).items():
                own = slice(places[name].start - place.start, places[name].stop - place.start)
                columns[name].put(array, part[:, own], first)
            yield first, place, part
            first += block.num_rows
        if first != layout.rows:
            raise InvalidInput(CHANGED)
