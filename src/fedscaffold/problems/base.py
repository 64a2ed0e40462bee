"""The base of all problems: clients' arrays checked and read-only, θ* and the fingerprint computed once."""

import hashlib
import html
import math
import mmap
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedscaffold.core.checks import numbers, vector
from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.machine import check_memory, spans
from fedscaffold.core.types import Array, IntArray, offsets_of

ALIGNMENT = 64  # bytes; rows that start on a cache line are read a tenth faster
NUMBERS_AT_ONCE = 1 << 22  # 32 MB, for passes over flat arrays
ROWS_AT_ONCE = 65536  # 10 MB with twenty features


class ProblemBase(ABC):
    """f = Σ_c w_c f_c, immutable once it is made; see `core.protocols.Problem` for what runs ask of it."""

    kind: ClassVar[str]
    repr_fields: ClassVar[tuple[str, ...]] = ("n_clients", "dim")

    n_clients: int
    dim: int
    weights: Array
    sizes: IntArray
    _optimum: Array | None = None
    _fingerprint: str | None = None

    @abstractmethod
    def _solve_optimum(self) -> Array:
        """Compute θ*, shape (dim,)."""

    @abstractmethod
    def _compute_fingerprint(self) -> str:
        """Compute the digest that `fingerprint` returns."""

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """Return the problem's kind, sizes and settings as plain values, for provenance."""

    def fingerprint(self) -> str:
        """Return a SHA-256 digest of all that defines the problem, records included; computed once and kept."""
        if self._fingerprint is None:
            self._fingerprint = self._compute_fingerprint()
        return self._fingerprint

    def optimum(self) -> Array:
        """Return θ*, the zero of f's gradient, shape (dim,): computed by the first call, kept, and read-only."""
        if self._optimum is None:
            self._optimum = self._solve_optimum()
            freeze(self._optimum)
        return self._optimum

    @property
    def weighting(self) -> str:
        """The word "uniform" where all clients have the same weight, else "given"."""
        return "uniform" if bool(np.all(self.weights == self.weights[0])) else "given"

    def __getstate__(self) -> dict[str, Any]:
        """Leave out θ* and the fingerprint, which differ in a copy with other records (`subset` makes one)."""
        return {name: value for name, value in vars(self).items() if name not in ("_optimum", "_fingerprint")}

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={getattr(self, name)}" for name in self.repr_fields)
        return f"{type(self).__name__}({fields})"

    def _repr_html_(self) -> str:
        """Return a table of the problem's settings, for notebooks."""
        rows = "".join(
            f"<tr><th>{html.escape(name)}</th><td>{html.escape(str(value))}</td></tr>"
            for name, value in self.describe().items()
        )
        return f"<table><caption>{html.escape(type(self).__name__)}</caption>{rows}</table>"


class RecordsProblem(ProblemBase):
    """A problem whose clients hold records, one client after another: client c's begin at offsets[c]."""

    repr_fields: ClassVar[tuple[str, ...]] = ("n_clients", "dim", "n_records")

    offsets: IntArray

    @property
    def n_records(self) -> int:
        """Number of records of all clients together."""
        return int(self.offsets[-1])

    def describe(self) -> dict[str, Any]:
        """Return the kind, numbers of clients, coordinates and records, and whether weights are uniform."""
        return {
            "kind": self.kind,
            "n_clients": int(self.n_clients),
            "dim": int(self.dim),
            "n_records": self.n_records,
            "smallest_client": int(self.sizes.min()),
            "largest_client": int(self.sizes.max()),
            "weights": self.weighting,
        }

    def _rows_of(self, clients: IntArray) -> IntArray:
        """Return the positions of some clients' records, one client after another."""
        return np.concatenate([np.arange(self.offsets[c], self.offsets[c + 1]) for c in clients])


def freeze(*arrays: NDArray[Any]) -> None:
    """Make a problem's own arrays read-only, with those they are views of, so that it cannot change any more."""
    for array in arrays:
        base: Any = array
        while isinstance(base, np.ndarray):
            base.flags.writeable = False
            base = base.base


def row_bounds(rows: int) -> IntArray:
    """Return bounds 0, ..., rows of pieces of some thousand rows, for passes that copy one piece at a time."""
    return np.append(np.arange(0, rows, ROWS_AT_ONCE, dtype=np.int64), rows)


def digest(words: str, *arrays: NDArray[Any]) -> str:
    """Return the SHA-256 digest of words and of the bytes of arrays, which may lie in files."""
    found = hashlib.sha256(words.encode())
    for array in arrays:
        for begin, end in spans(row_bounds(len(array)), array):
            found.update(np.ascontiguousarray(array[begin:end]).view(np.uint8).reshape(-1).data)
    return found.hexdigest()


def aligned_empty(shape: tuple[int, ...]) -> Array:
    """Return an uninitialised float64 array that starts on a cache line."""
    count = math.prod(shape)
    room = np.empty(count + ALIGNMENT // 8)
    start = -room.ctypes.data % ALIGNMENT // 8
    return room[start : start + count].reshape(shape)


def flatten(X: Any, y: Any) -> tuple[Array, Array, NDArray[np.int64]]:
    """Return features (records, dim), targets (records,) and the clients' offsets, in read-only arrays.

    An array that is given is copied, unless it is read-only together with whatever array it is a view of.
    """

    def check(client: int, dim: int, table: Array, column: Array) -> None:
        if table.shape[1] != dim or dim == 0:
            raise InvalidInput(f"client {client} has {table.shape[1]} features, client 0 has {dim}")

    return _flattened(("X", X, 2), ("y", y, 1), check)


def flatten_systems(A: Any, b: Any) -> tuple[Array, Array, NDArray[np.int64]]:
    """Return (records, dim, dim) matrices, (records, dim) vectors and the clients' offsets, as `flatten` does."""

    def check(client: int, dim: int, table: Array, right: Array) -> None:
        if dim == 0 or table.shape[1:] != (dim, dim) or right.shape[1] != dim:
            raise InvalidInput(
                f"client {client}'s matrices are {table.shape[1]} × {table.shape[2]} and its vectors have "
                f"{right.shape[1]} entries, but client 0's vectors have {dim}; all must agree"
            )

    return _flattened(("A", A, 3), ("b", b, 2), check)


def client_weights(weights: ArrayLike | None, n_clients: int) -> Array:
    """Return positive weights that sum to one; uniform when none are given."""
    if weights is None:
        return np.full(n_clients, 1.0 / n_clients)
    given = vector("weights", weights, f"{n_clients} numbers, one per client", n_clients)
    if not (np.isfinite(given).all() and (given > 0).all()):
        raise InvalidInput("weights must be positive and finite; leave out clients that should not count")
    with np.errstate(over="ignore", under="ignore"):
        total = given.sum()
        shares = given / total if np.isfinite(total) else given / given.max() / (given / given.max()).sum()
    if not (shares > 0).all():
        raise InvalidInput(
            "weights differ so much that the smallest would count for nothing; leave out its client"
        )
    return shares


def _flattened(
    first: tuple[str, Any, int], second: tuple[str, Any, int], check: Callable[[int, int, Array, Array], None]
) -> tuple[Array, Array, NDArray[np.int64]]:
    """Join two tables per client, each (name, data, axes); check(client, dim, table, other) may reject them."""
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
    joined = _joined(one, tables), _joined(other, others)
    for name, array in zip((one, other), joined, strict=True):
        _check_finite(name, array, offsets)
    return *joined, offsets


def _tables(name: str, data: Any, ndim: int) -> Sequence[Array] | Array:
    """Return one array of `ndim` dimensions per client: a list of them, or one array with the clients first."""
    try:
        if isinstance(data, np.ndarray) and data.dtype != object:
            found = numbers(data)
            if found is not data and found.base is None:  # converted, so that it is ours
                found.flags.writeable = False
            tables: Sequence[Array] | Array = np.atleast_1d(found)
        else:
            tables = [numbers(table) for table in data]
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


def _joined(name: str, tables: Sequence[Array] | Array) -> Array:
    """Return the tables one after another; a view where they lie so already and cannot change."""
    shape = (sum(len(table) for table in tables), *tables[0].shape[1:])
    if isinstance(tables, np.ndarray) and tables.flags.c_contiguous and is_constant(tables):
        return tables.reshape(shape)
    check_memory(f"a copy of {name}, which it needs unless {name} is read-only,", 8 * math.prod(shape))
    joined = aligned_empty(shape)
    if isinstance(tables, np.ndarray):
        joined.reshape(tables.shape)[...] = tables
    else:
        np.concatenate(list(tables), out=joined)
    return joined


def is_constant(array: Array) -> bool:
    """Return whether an array and all that it is a view of are read-only, so that nothing writes to its memory."""
    base: Any = array
    while isinstance(base, np.ndarray):
        if base.flags.writeable:
            return False
        base = base.base
    return base is None or isinstance(base, bytes | mmap.mmap)  # the memory of a read-only array or numpy.memmap


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


def record_probabilities(probabilities: Any, sizes: NDArray[np.int64]) -> Array:
    """Return one probability per record, client after client, each client's scaled to sum to one."""
    if not isinstance(probabilities, Sequence | np.ndarray) or len(probabilities) != sizes.size:
        raise InvalidInput(f"probabilities must have one row for each of the {sizes.size} clients")
    rows = []
    for c, (row, size) in enumerate(zip(probabilities, sizes.tolist(), strict=True)):
        own = vector("probabilities", row, f"{size} numbers for client {c}, one per record", size)
        if not (np.isfinite(own).all() and own.min() >= 0.0 and 0.0 < own.sum() < np.inf):
            raise InvalidInput(f"probabilities of client {c} must be finite, not negative, and not all zero")
        rows.append(own / own.sum())
    return np.concatenate(rows)


def expit(z: Array) -> Array:
    """Return σ(z) = 1/(1 + exp(−z))."""
    from scipy.special import expit

    found: Array = expit(z)
    return found


def softmax(z: Array) -> Array:
    """Return exp(z_k) / Σ_j exp(z_j) along the second axis."""
    from scipy.special import softmax

    found: Array = softmax(z, axis=1)
    return found


def log_softmax(z: Array) -> Array:
    """Return z_k − log Σ_j exp(z_j) along the second axis."""
    from scipy.special import log_softmax

    found: Array = log_softmax(z, axis=1)
    return found
