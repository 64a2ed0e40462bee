"""Problems on tables: records with targets, offsets and weights, the penalty and the fingerprint.

The targets of a problem with offsets or sample weights have three numbers a record: target, offset o and weight s.
Its losses are s ℓ(xᵀθ + o, y).
"""

import copy
from collections.abc import Iterator
from functools import cached_property
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedscaffold.core.checks import chosen_clients, not_negative, numbers, whole_number
from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.machine import spans
from fedscaffold.core.random.stream import Batches
from fedscaffold.core.types import Array, offsets_of
from fedscaffold.problems.base import RecordsProblem, client_weights, digest, freeze, row_bounds

TARGET, OFFSET, WEIGHT, COLUMNS = 0, 1, 2, 3  # the columns, and how many there are


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
            mean = float(np.linalg.eigvalsh(scaled.T @ scaled / len(y))[-1])
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
