"""What all problems on tables share: records, weights, the penalty and the fingerprint."""

import copy
from collections.abc import Iterator
from functools import cached_property
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedscaffold.core.arrays import chosen_clients, offsets_of
from fedscaffold.core.checks import not_negative, whole_number
from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.random.batches import Batches
from fedscaffold.core.storage.memmap import spans
from fedscaffold.core.types import Array
from fedscaffold.problems.base import RecordsProblem, digest, freeze, row_bounds
from fedscaffold.problems.client_arrays import client_weights
from fedscaffold.problems.record_weights import WEIGHT, norms_of_rows


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
        """Where some of a client's records are; all of them in order as a slice, which copies nothing."""
        begin, end = int(self.offsets[client]), int(self.offsets[client + 1])
        if rows.size == end - begin and np.array_equal(rows, np.arange(rows.size)):
            return slice(begin, end)
        return begin + rows

    def subset(self, clients: ArrayLike) -> Self:
        """The same problem on some of the clients, their weights scaled to sum to one."""
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
        """The same problem with other x, y, offsets, l2, weights or n_unpenalised."""
        names = ("x", "y", "offsets", "l2", "weights", "n_unpenalised")
        other = copy.copy(self)
        other._set_data(**{**{name: getattr(self, name) for name in names}, **changes})
        return other

    def record_curvatures(self, x: Array, y: Array) -> Array:
        """Bounds κ_i on the Hessians of weighted records' losses in the margins, (records,)."""
        return self.curvature * y[:, WEIGHT]

    def take_rows(self, rows: NDArray[np.int64]) -> Self:
        """The same problem on some of the records, given by their positions in ascending order."""
        owners = np.searchsorted(self.offsets, rows, side="right") - 1
        sizes = np.bincount(owners, minlength=self.n_clients)
        if not sizes.all():
            raise InvalidInput(f"client {int(sizes.argmin())} has no records left")
        return self.with_records(x=self.x[rows], y=self.y[rows], offsets=offsets_of(sizes))

    def smoothness(self, batches: Batches) -> float:
        """Expected smoothness of minibatch gradients, the largest over clients.

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
        """μ with ∇²f_c ≥ μI for all θ and c; here what the penalty alone gives."""
        return float(self.penalty.min())

    def describe(self) -> dict[str, Any]:
        """The kind, sizes, weights and penalty."""
        return {**super().describe(), "l2": self.l2, "n_unpenalised": self.n_unpenalised}

    def _compute_fingerprint(self) -> str:
        """SHA-256 digest of kind, penalty, weights and every record."""
        words = f"{self.kind} {self.l2!r} {self.dim} {self.vectors} {self.n_unpenalised}"
        return digest(words, self.offsets, self.weights, self.y, self.x)

    def _clients(self) -> Iterator[tuple[Array, Array]]:
        """(x, y) of each client, in order."""
        for begin, end in spans(self.offsets, self.x, self.y):
            yield self.x[begin:end], self.y[begin:end]

    def pieces(self) -> Iterator[tuple[Array, Array, Array]]:
        """(x, y, share of each record in f), some rows at a time, so that no copy of the data is made."""
        for rows, shares in self.shares(self.x, self.y):
            yield self.x[rows], self.y[rows], shares

    def shares(self, *arrays: Array) -> Iterator[tuple[slice, Array]]:
        """Some rows at a time, and the share of each in f, for a pass over these of the problem's arrays."""
        each = self.weights / self.sizes
        for begin, end in spans(row_bounds(self.n_records), *arrays):
            first = int(np.searchsorted(self.offsets, begin, side="right")) - 1
            last = int(np.searchsorted(self.offsets, end, side="left"))
            inside = np.clip(self.offsets[first : last + 1], begin, end)
            yield slice(begin, end), np.repeat(each[first:last], inside[1:] - inside[:-1])
