"""Clients' tables as one contiguous block, refused where a number or a record is missing."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedscaffold.core.arrays import offsets_of
from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.types import Array

ALIGNMENT = 64  # bytes; rows that start on a cache line are read a tenth faster
NUMBERS_AT_ONCE = 1 << 22


def aligned_empty(shape: tuple[int, ...]) -> Array:
    """An uninitialised float64 array that starts on a cache line."""
    count = int(np.prod(shape))
    room = np.empty(count + ALIGNMENT // 8)
    start = -room.ctypes.data % ALIGNMENT // 8
    return room[start : start + count].reshape(shape)


def flatten(X: Any, y: Any) -> tuple[Array, Array, NDArray[np.int64]]:
    """(records, dim) features, (records,) targets and the clients' offsets; no copy where none is needed."""

    def check(client: int, dim: int, table: Array, column: Array) -> None:
        if table.shape[1] != dim or dim == 0:
            raise InvalidInput(f"client {client} has {table.shape[1]} features, client 0 has {dim}")

    return _flattened(("X", X, 2), ("y", y, 1), check)


def flatten_systems(A: Any, b: Any) -> tuple[Array, Array, NDArray[np.int64]]:
    """(records, dim, dim) matrices, (records, dim) vectors and the clients' offsets, as `flatten` does."""

    def check(client: int, dim: int, table: Array, right: Array) -> None:
        if dim == 0 or table.shape[1:] != (dim, dim) or right.shape[1] != dim:
            raise InvalidInput(
                f"client {client}'s matrices are {table.shape[1]} × {table.shape[2]} and its vectors have "
                f"{right.shape[1]} entries, but client 0's vectors have {dim}; all must agree"
            )

    return _flattened(("A", A, 3), ("b", b, 2), check)


def client_weights(weights: ArrayLike | None, n_clients: int) -> Array:
    """Positive weights that sum to one; uniform when none are given."""
    if weights is None:
        return np.full(n_clients, 1.0 / n_clients)
    given = vector("weights", weights, f"{n_clients} numbers, one per client", n_clients)
    if not (np.isfinite(given).all() and (given > 0).all()):
        raise InvalidInput("weights must be positive and finite; leave out clients that should not count")
    return given / given.sum()


def vector(name: str, given: ArrayLike, wanted: str, length: int) -> Array:
    """A new array of `length` numbers; anything else is refused, and told what is wanted."""
    try:
        numbers = np.array(given, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InvalidInput(f"{name} must be {wanted}: {error}") from None
    if numbers.shape != (length,):
        raise InvalidInput(f"{name} must be {wanted}, got shape {numbers.shape}")
    return numbers


def _flattened(
    first: tuple[str, Any, int], second: tuple[str, Any, int], check: Callable[[int, int, Array, Array], None]
) -> tuple[Array, Array, NDArray[np.int64]]:
    """Two tables per client, each (name, data, axes), joined; check(client, dim, table, other) may refuse them."""
    (one, other), (tables, others) = (first[0], second[0]), (_tables(*first), _tables(*second))
    if len(tables) != len(others):
        raise InvalidInput(f"{one} has {len(tables)} clients but {other} has {len(others)}")
    if len(tables) == 0:
        raise InvalidInput(f"there are no clients: {one} is empty")
    dim = (tables if others[0].ndim == 1 else others)[0].shape[1]
    for client, (table, column) in enumerate(zip(tables, others, strict=True)):
        check(client, dim, table, column)
        if len(table) != len(column):
            raise InvalidInput(f"client {client} has {len(table)} rows in {one} but {len(column)} in {other}")
        if len(table) == 0:
            raise InvalidInput(f"client {client} has no records; leave it out")
    offsets = offsets_of([len(table) for table in tables])
    joined = _joined(tables), _joined(others)
    for name, array in zip((one, other), joined, strict=True):
        _check_finite(name, array, offsets)
    return *joined, offsets


def _tables(name: str, data: Any, ndim: int) -> Sequence[Array] | Array:
    """One array of `ndim` dimensions per client: a list of them, or one array with the clients first."""
    try:
        if isinstance(data, np.ndarray) and data.dtype != object:
            tables: Sequence[Array] | Array = np.atleast_1d(_numbers(data))
        else:
            tables = [_numbers(table) for table in data]
    except (TypeError, ValueError) as error:
        raise InvalidInput(f"{name} must hold numbers, one array per client: {error}") from None
    for client, table in enumerate(tables):
        if table.ndim != ndim:
            wanted = {
                3: "(N, n, d, d) or a sequence of (n_c, d, d) arrays",
                2: "(N, n, d) or a sequence of (n_c, d) arrays",
                1: "(N, n) or a sequence of (n_c,) arrays",
            }
            raise InvalidInput(
                f"{name} must be {wanted[ndim]}; client {client}'s part has shape {np.shape(table)}"
            )
    return tables


def _numbers(table: Any) -> Array:
    """As float64; text, dates and complex numbers, which NumPy would convert to nonsense, are refused."""
    array = np.asanyarray(table)
    if array.dtype.kind not in "biufO":
        raise TypeError(f"these are of type {array.dtype}")
    if np.ma.is_masked(array):
        raise ValueError("some are masked; drop or fill them first")
    return np.asarray(array, dtype=np.float64)


def _joined(tables: Sequence[Array] | Array) -> Array:
    """The tables one after another; a view where they lie so already."""
    shape = (sum(len(table) for table in tables), *tables[0].shape[1:])
    if isinstance(tables, np.ndarray):
        return np.ascontiguousarray(tables).reshape(shape)
    joined = aligned_empty(shape)
    np.concatenate(list(tables), out=joined)
    return joined


def _check_finite(name: str, array: Array, offsets: NDArray[np.int64]) -> None:
    flat = array.reshape(-1)
    for begin in range(0, flat.size, NUMBERS_AT_ONCE):
        bad = ~np.isfinite(flat[begin : begin + NUMBERS_AT_ONCE])
        if bad.any():
            row = (begin + int(bad.argmax())) * len(array) // flat.size
            client = int(np.searchsorted(offsets, row, side="right")) - 1
            raise InvalidInput(
                f"{name} holds NaN or infinity: client {client}, record {row - offsets[client]}; "
                "drop or fill such records first"
            )
