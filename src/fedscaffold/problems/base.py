"""The base of all problems, and of problems on tables: records, penalty, θ* and the fingerprint.

The targets of a problem with offsets or sample weights have three numbers a record: target, offset o and weight s.
Its losses are s ℓ(xᵀθ + o, y).
"""

import copy
import hashlib
import math
import mmap
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedscaffold.core.checks import chosen_clients, not_negative, numbers, vector, whole_number
from fedscaffold.core.display import html_summary
from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.machine import check_memory, one_blas_thread, spans
from fedscaffold.core.random.stream import Batches, Sampling
from fedscaffold.core.types import Array, IntArray, offsets_of

ROWS_AT_ONCE = 65536  # 10 MB with twenty features
TARGET, OFFSET, WEIGHT, COLUMNS = 0, 1, 2, 3  # the columns of targets, and how many there are


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
        return html_summary(type(self).__name__, self.describe())


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
    count, line = math.prod(shape), 64  # bytes; rows that start on a cache line are read a tenth faster
    room = np.empty(count + line // 8)
    start = -room.ctypes.data % line // 8
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
    flat, at_once = array.reshape(-1), 1 << 22  # numbers, 32 MB
    for begin in range(0, flat.size, at_once):
        bad = ~np.isfinite(flat[begin : begin + at_once])
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


def expit(z: Array | float) -> Array:
    """Return σ(z) = 1/(1 + exp(−z))."""
    with np.errstate(over="ignore"):  # to infinity, whose inverse is 0
        return 1.0 / (1.0 + np.exp(np.negative(z)))


def softmax(z: Array) -> Array:
    """Return exp(z_k) / Σ_j exp(z_j) along the second axis."""
    shares: Array = np.exp(z - z.max(axis=1, keepdims=True))
    return shares / shares.sum(axis=1, keepdims=True)


def log_softmax(z: Array) -> Array:
    """Return z_k − log Σ_j exp(z_j) along the second axis."""
    largest = z.max(axis=1, keepdims=True)
    shifted: Array = z - np.where(np.isfinite(largest), largest, 0.0)
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):  # of rows with infinite numbers
        return shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))


# problems on tables


def with_columns(targets: Array, offsets: NDArray[np.int64], *, sample_weight: Any, offset: Any) -> Array:
    """Return targets (records,) with offsets and weights as (records, 3); by default 0 and 1."""
    columns = np.empty((targets.size, COLUMNS))
    columns[:, TARGET] = targets
    columns[:, OFFSET] = 0.0 if offset is None else one_per_record("offset", offset, offsets)
    columns[:, WEIGHT] = 1.0 if sample_weight is None else one_per_record("sample_weight", sample_weight, offsets)
    refuse_records(columns[:, WEIGHT] < 0.0, columns[:, WEIGHT], offsets, "sample weights must not be negative")
    if not columns[:, WEIGHT].any():
        raise InvalidInput("all sample weights are 0; give some records a positive weight")
    return columns


def plain_columns(y: Array) -> Array:
    """Return targets with offsets and weights as (records, 3); 0 and 1 if they have none."""
    if y.ndim > 1:
        return y
    return np.column_stack([y, np.zeros(len(y)), np.ones(len(y))])


def one_per_record(name: str, given: Any, offsets: NDArray[np.int64]) -> Array:
    """Return one finite number per record, from an array (N, n) or a sequence with one array per client."""
    try:
        parts = [numbers(part) for part in given]
    except (TypeError, ValueError) as error:
        raise InvalidInput(f"{name} must hold one number per record, one array per client: {error}") from None
    sizes = np.diff(offsets)
    if len(parts) != sizes.size:
        raise InvalidInput(f"{name} has {len(parts)} clients, but y has {sizes.size}")
    for client, (part, size) in enumerate(zip(parts, sizes, strict=True)):
        if part.shape != (size,):
            raise InvalidInput(f"client {client} has {size} records, but its {name} has shape {part.shape}")
    found = np.concatenate(parts)
    refuse_records(~np.isfinite(found), found, offsets, f"{name} must be finite")
    return found


def refuse_records(bad: NDArray[np.bool_], values: Array, offsets: NDArray[np.int64], rule: str) -> None:
    """Raise InvalidInput that names the first bad record, if there is one, and the rule that it breaks."""
    if bad.any():
        row = int(bad.argmax())
        client = int(np.searchsorted(offsets, row, side="right")) - 1
        raise InvalidInput(f"{rule}; client {client}, record {row - offsets[client]} has {values[row]:g}")


def clipped_slopes(slopes: Array, lengths: Array, clip: float) -> Array:
    """Shorten slopes ℓ' of records x, (records,) or (records, classes), to gradients of norm ‖ℓ'‖ ‖x‖ ≤ `clip`.

    `lengths` are the norms ‖x‖, (records,).

    A record whose slope is not a number, as where its margin is a difference of infinities, counts as one without
    gradient: no record may change the sum of all by more than its own share, whatever the model is.
    """
    with np.errstate(divide="ignore"):
        limits = np.minimum(clip / lengths, np.finfo(np.float64).max)
    if slopes.ndim == 1:
        return np.where(np.isnan(slopes), 0.0, np.clip(slopes, -limits, limits))
    slopes = np.where(np.isfinite(slopes).all(axis=1, keepdims=True), slopes, 0.0)
    sizes = norms_of_rows(slopes)
    return slopes * (limits / np.maximum(sizes, limits))[:, None]


def norms_of_rows(rows: Array) -> Array:
    """Return the norms of rows, also if squares are too large or too small for a float64."""
    with np.errstate(over="ignore", under="ignore"):
        norms = np.asarray(np.linalg.norm(rows, axis=1))
    for k in np.flatnonzero(~((norms > 1e-150) & (norms < 1e150))):
        largest = np.abs(rows[k]).max(initial=0.0)
        if 0.0 < largest < np.inf:
            norms[k] = largest * np.linalg.norm(rows[k] / largest)
    return norms


class TabularProblem(RecordsProblem):
    """f = Σ_c w_c f_c where f_c is the mean loss of client c's records (x, y), plus l2/2 ‖θ‖².

    θ consists of `vectors` vectors with one number per feature. Records are copied, unless they are read-only.
    """

    repr_fields = ("n_clients", "dim", "n_records", "l2")
    curvature: ClassVar[float]  # the largest eigenvalue of the loss's Hessian in the margins
    vectors: int = 1

    def _set_data(
        self,
        x: Array,
        y: Array,
        offsets: NDArray[np.int64],
        *,
        l2: float,
        weights: ArrayLike | None,
        n_unpenalised: int,
    ) -> None:
        """Take the records as they lie in memory, client after client."""
        self.l2 = not_negative("l2", l2)
        self.x, self.y, self.offsets = x, y, offsets
        self.__dict__.pop("lengths", None)  # of other records
        self.sizes: NDArray[np.int64] = np.diff(offsets)
        self.n_clients, self.n_features = self.sizes.size, x.shape[1]
        self.dim = self.vectors * self.n_features
        self.weights = client_weights(weights, self.n_clients)
        self.n_unpenalised = whole_number("n_unpenalised", n_unpenalised, least=0)
        if self.n_unpenalised > self.n_features:
            raise InvalidInput(f"n_unpenalised={n_unpenalised}, but there are {self.n_features} features")
        each = np.full(self.n_features, self.l2)
        each[self.n_features - self.n_unpenalised :] = 0.0
        self.penalty = np.tile(each, self.vectors)  # the diagonal of the penalty's Hessian
        freeze(self.x, self.y, self.offsets, self.sizes, self.weights, self.penalty)

    @cached_property
    def lengths(self) -> Array:
        """‖x‖ of every record, (records,)."""
        return norms_of_rows(self.x)

    def place(self, client: int, rows: NDArray[np.int64]) -> slice | NDArray[np.int64]:
        """Return the positions of some of a client's records; all in order as a slice, which copies nothing."""
        begin, end = int(self.offsets[client]), int(self.offsets[client + 1])
        if rows.size == end - begin and np.array_equal(rows, np.arange(rows.size)):
            return slice(begin, end)
        return begin + rows

    def subset(self, clients: ArrayLike) -> Self:
        """Return the same problem on some of the clients, their weights scaled to sum to one."""
        chosen = chosen_clients(clients, self.n_clients)
        rows: slice | NDArray[np.int64]
        if (np.diff(chosen) == 1).all():
            rows = slice(self.offsets[chosen[0]], self.offsets[chosen[-1] + 1])  # as they lie, without a copy
        else:
            rows = self._rows_of(chosen)
        return self.with_records(
            x=self.x[rows],
            y=self.y[rows],
            offsets=offsets_of(self.sizes[chosen]),
            weights=self.weights[chosen],
        )

    def with_records(self, **changes: Any) -> Self:
        """Return the same problem with other x, y, offsets, l2, weights or n_unpenalised."""
        names = ("x", "y", "offsets", "l2", "weights", "n_unpenalised")
        other = copy.copy(self)
        other._set_data(**{**{name: getattr(self, name) for name in names}, **changes})
        return other

    @abstractmethod
    def _slopes(self, theta: Array, x: Array, y: Array) -> Array:
        """Return the losses' derivatives in the margins, times weights, (records,) or (records, vectors)."""

    @one_blas_thread
    def client_gradients(self, theta: Array) -> Array:
        """Return ∇f_c(θ), shape (N, dim), the same bits whatever the threads of linear algebra."""
        rows = [(self._slopes(theta, x, y).T @ x).ravel() / len(y) for x, y in self._clients()]
        return np.stack(rows) + self.penalty * theta

    def client_noise_along(
        self, theta: Array, directions: Array, *, batch_size: int | None, sampling: Sampling = "with_replacement"
    ) -> Array:
        """Return the variance of a minibatch gradient along each column of (dim, m) directions, shape (N, m)."""
        batches = Batches(batch_size, sampling)
        batches.check_fits(self.sizes)
        blocks = directions.reshape(self.vectors, self.n_features, -1)
        rows = []
        for x, y in self._clients():
            slopes = self._slopes(theta, x, y).reshape(len(y), self.vectors)
            each = (slopes[:, k, None] * (x @ block) for k, block in enumerate(blocks))
            rows.append(batches.noise_factor(len(y)) * sum(each, np.zeros((len(y), 1))).var(axis=0))
        return np.stack(rows)

    def batch_gradient(self, client: int, theta: Array, rows: NDArray[np.int64]) -> Array:
        """Return the mean gradient at θ over some of a client's records, penalty included."""
        at = self.offsets[client] + rows
        x = self.x[at]
        return (self._slopes(theta, x, self.y[at]).T @ x).ravel() / at.size + self.penalty * theta

    def gradients_of_rows(self, theta: Array, rows: NDArray[np.int64]) -> Array:
        """Return the gradients of some records of any client, without penalty, (records, dim)."""
        x = self.x[rows]
        with np.errstate(over="ignore", invalid="ignore"):
            slopes = self._slopes(theta, x, self.y[rows]).reshape(len(x), -1)
            return (slopes[:, :, None] * x[:, None, :]).reshape(len(x), -1)

    def clipped_gradient(
        self, client: int, theta: Array, rows: NDArray[np.int64], clip: float, noise: Array | float = 0.0
    ) -> Array:
        """Return the mean of some records' gradients, each shortened to norm `clip`, plus noise and penalty.

        A record's gradient is the outer product of its slopes and x, whose norm is the product of theirs.
        """
        at = self.place(client, rows)
        x = self.x[at]
        with np.errstate(over="ignore", invalid="ignore"):
            slopes = clipped_slopes(self._slopes(theta, x, self.y[at]), self.lengths[at], clip)
        return ((slopes.T @ x).ravel() / rows.size + noise) + self.penalty * theta

    def record_curvatures(self, x: Array, y: Array) -> Array:
        """Return the bounds κ_i on the Hessians of weighted records' losses in the margins, (records,)."""
        return self.curvature * y[:, WEIGHT]

    def take_rows(self, rows: NDArray[np.int64]) -> Self:
        """Return the same problem on some of the records, given by their positions in ascending order."""
        owners = np.searchsorted(self.offsets, rows, side="right") - 1
        sizes = np.bincount(owners, minlength=self.n_clients)
        if not sizes.all():
            raise InvalidInput(f"client {int(sizes.argmin())} has no records left")
        return self.with_records(x=self.x[rows], y=self.y[rows], offsets=offsets_of(sizes))

    @one_blas_thread
    def smoothness(self, batches: Batches) -> float:
        """Return the expected smoothness of minibatch gradients, the largest over clients.

        With v = the batch's noise factor, v·max κ_i‖x_i‖² + (1 − v)·λ_max(mean κ_i x_i x_iᵀ) + l2, where κ_i
        bounds record i's ℓ''. It lies between the full gradient's smoothness (v = 0) and one record's (v = 1).
        """
        largest = 0.0
        for x, y in self._clients():
            share = batches.noise_factor(len(y))
            kappa = self.curvature if y.ndim == 1 else 1.0
            scaled = x if y.ndim == 1 else np.sqrt(self.record_curvatures(x, y))[:, None] * x
            record = float(np.einsum("ij,ij->i", scaled, scaled).max())
            gram = (
                scaled.T @ scaled if len(y) > x.shape[1] else scaled @ scaled.T
            )  # the same eigenvalues but zeros
            mean = float(np.linalg.eigvalsh(gram / len(y))[-1])
            largest = max(largest, kappa * (share * record + (1.0 - share) * mean))
        return largest + self.l2

    def strong_convexity(self) -> float:
        """Return μ with ∇²f_c ≥ μI for all θ and c; here what the penalty alone gives."""
        return float(self.penalty.min())

    def describe(self) -> dict[str, Any]:
        """Return the kind, sizes, weights and penalty."""
        return {**super().describe(), "l2": self.l2, "n_unpenalised": self.n_unpenalised}

    def _compute_fingerprint(self) -> str:
        """Return the SHA-256 digest of kind, penalty, weights and every record."""
        words = f"{self.kind} {self.l2!r} {self.dim} {self.vectors} {self.n_unpenalised}"
        return digest(words, self.offsets, self.weights, self.y, self.x)

    def _clients(self) -> Iterator[tuple[Array, Array]]:
        """Yield (x, y) of each client, in order."""
        for begin, end in spans(self.offsets, self.x, self.y):
            yield self.x[begin:end], self.y[begin:end]

    def pieces(self) -> Iterator[tuple[Array, Array, Array]]:
        """Yield (x, y, share of each record in f), some rows at a time, so that no copy of the data is made."""
        for rows, shares in self.shares(self.x, self.y):
            yield self.x[rows], self.y[rows], shares

    def shares(self, *arrays: Array) -> Iterator[tuple[slice, Array]]:
        """Yield some rows at a time, and the share of each in f, for a pass over these of the problem's arrays."""
        each = self.weights / self.sizes
        for begin, end in spans(row_bounds(len(self.y)), *arrays):
            first = int(np.searchsorted(self.offsets, begin, side="right")) - 1
            last = int(np.searchsorted(self.offsets, end, side="left"))
            inside = np.clip(self.offsets[first : last + 1], begin, end)
            yield slice(begin, end), np.repeat(each[first:last], inside[1:] - inside[:-1])
