"""What all problems on tables share: records, weights, the penalty, and what they are told apart by."""

import copy
import hashlib
from collections.abc import Iterator
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedscaffold.core.checks import not_negative, whole_number
from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.memmap import spans
from fedscaffold.core.types import Array
from fedscaffold.problems.client_arrays import client_weights

ROWS_AT_ONCE = 65536


class TabularProblem:
    """Clients' tables one after another, none copied. θ is `vectors` vectors of as many numbers as features."""

    kind: ClassVar[str]
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
        for array in (self.x, self.y, self.offsets, self.sizes, self.weights, self.penalty):
            array.flags.writeable = False

    def subset(self, clients: ArrayLike) -> Self:
        """The same problem on some of the clients, their weights scaled to sum to one."""
        chosen = np.asarray(clients, dtype=np.int64)
        rows: slice | NDArray[np.int64]
        if chosen.size and (np.diff(chosen) == 1).all() and chosen[0] >= 0:
            rows = slice(self.offsets[chosen[0]], self.offsets[chosen[-1] + 1])  # as they lie, without a copy
        else:
            rows = np.concatenate([np.arange(self.offsets[c], self.offsets[c + 1]) for c in chosen])
        other = copy.copy(self)
        other._set_data(
            self.x[rows],
            self.y[rows],
            np.concatenate([[0], np.cumsum(self.sizes[chosen])]).astype(np.int64),
            l2=self.l2,
            weights=self.weights[chosen],
            n_unpenalised=self.n_unpenalised,
        )
        return other

    def strong_convexity(self) -> float:
        """μ with ∇²f_c ≥ μI for all θ and c; here what the penalty alone gives."""
        return float(self.penalty.min())

    def describe(self) -> dict[str, Any]:
        """Kind, sizes and penalty."""
        uniform = bool(np.all(self.weights == self.weights[0]))
        return {
            "kind": self.kind,
            "n_clients": int(self.n_clients),
            "dim": int(self.dim),
            "records": int(self.offsets[-1]),
            "smallest_client": int(self.sizes.min()),
            "largest_client": int(self.sizes.max()),
            "l2": self.l2,
            "n_unpenalised": self.n_unpenalised,
            "weights": "uniform" if uniform else "given",
        }

    def fingerprint(self) -> str:
        """SHA-256 of kind, penalty, weights and every record."""
        digest = hashlib.sha256(f"{self.kind} {self.l2!r} {self.dim} {self.vectors} {self.n_unpenalised}".encode())
        for array in (self.offsets, self.weights, self.y, self.x):
            for begin, end in spans(_bounds(len(array)), array):
                digest.update(np.ascontiguousarray(array[begin:end]).view(np.uint8).reshape(-1).data)
        return digest.hexdigest()

    def __repr__(self) -> str:
        name, records = type(self).__name__, int(self.offsets[-1])
        return f"{name}(n_clients={self.n_clients}, dim={self.dim}, records={records}, l2={self.l2})"

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
        for begin, end in spans(_bounds(int(self.offsets[-1])), *arrays):
            first = int(np.searchsorted(self.offsets, begin, side="right")) - 1
            last = int(np.searchsorted(self.offsets, end, side="left"))
            inside = np.clip(self.offsets[first : last + 1], begin, end)
            yield slice(begin, end), np.repeat(each[first:last], inside[1:] - inside[:-1])


def _bounds(rows: int) -> NDArray[np.int64]:
    """Of pieces of some thousand rows."""
    return np.append(np.arange(0, rows, ROWS_AT_ONCE, dtype=np.int64), rows)
