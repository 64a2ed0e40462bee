"""Linear stochastic approximation on clients that hold linear systems."""

from __future__ import annotations  # so that help() shows ArrayLike, not what it stands for

from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedscaffold.core.random.batches import Batches
from fedscaffold.core.random.draws import Draws, interval_ends
from fedscaffold.core.types import Array
from fedscaffold.problems.base import digest, freeze
from fedscaffold.problems.client_arrays import client_weights, flatten_systems, record_probabilities
from fedscaffold.problems.linear.mean_system import LinearSystem


class LinearSA(LinearSystem):
    """g_c(θ; i) = A_{c,i} θ − b_{c,i}, i one of client c's records; θ* = (Σ w_c Ā_c)⁻¹ Σ w_c b̄_c.

    Matrices need not be symmetric. All eigenvalues of Ā = Σ w_c Ā_c must have positive real parts (−Ā is Hurwitz);
    anything else is refused. A single client's Ā_c may have others.

    Parameters
    ----------
    A
        Matrices: an array of shape (N, n, d, d), or a sequence of N arrays of shape (n_c, d, d), one per client.
    b
        Right-hand sides: an array of shape (N, n, d), or a sequence of N arrays of shape (n_c, d).
    weights
        One positive weight per client, scaled to sum to one; uniform by default.
    probabilities
        With which probability a step draws each record: an array of shape (N, n), or a sequence of N arrays of
        shape (n_c,), not negative, scaled to sum to one for each client; uniform by default. A batch then has
        independent draws.

    Examples
    --------
    >>> import numpy as np
    >>> import fedscaffold as fs
    >>> A = np.array([[[[2.0, 1.0], [-1.0, 2.0]]], [[[1.0, 0.0], [0.0, 1.0]]]])  # 2 clients, one record each
    >>> problem = fs.problems.LinearSA(A, np.array([[[3.0, 0.0]], [[0.0, 0.0]]]))
    >>> problem.optimum()
    array([0.9, 0.3])
    """

    kind = "linear_sa"

    def __init__(
        self,
        A: ArrayLike | Sequence[ArrayLike],
        b: ArrayLike | Sequence[ArrayLike],
        *,
        weights: ArrayLike | None = None,
        probabilities: ArrayLike | Sequence[ArrayLike] | None = None,
    ) -> None:
        self.A, self.b, self.offsets = flatten_systems(A, b)
        self.sizes: NDArray[np.int64] = np.diff(self.offsets)
        self.n_clients, self.dim = self.sizes.size, self.b.shape[1]
        self.weights = client_weights(weights, self.n_clients)
        self.probabilities = None
        if probabilities is not None:
            self.probabilities = record_probabilities(probabilities, self.sizes)
            each = (interval_ends(own) for own in self._each(self.probabilities))
            self.draws = Draws(np.concatenate(list(each)))
            freeze(self.probabilities, self.draws.ends)
        self.client_matrices = self._means(self.A)
        self.client_vectors = self._means(self.b)
        self._check_stable()
        freeze(
            self.A, self.b, self.offsets, self.sizes, self.weights, self.client_matrices, self.client_vectors
        )  # fmt: skip

    def batch_gradient(self, client: int, theta: Array, rows: NDArray[np.int64]) -> Array:
        """Mean of A_i θ − b_i over some of a client's records."""
        at = self.offsets[client] + rows
        return (self.A[at] @ theta - self.b[at]).mean(axis=0)

    def mean_field(self) -> LinearSA:
        """The problem with one record per client, its mean: its gradients are this one's full gradients."""
        if int(self.sizes.max()) == 1:
            return self
        return LinearSA(self.client_matrices[:, None], self.client_vectors[:, None], weights=self.weights)

    def client_second_moments(self) -> Array:
        """Mean of A_iᵀA_i over each client's records, (N, d, d)."""
        if self.probabilities is not None:
            return self._means(np.swapaxes(self.A, 1, 2) @ self.A)
        squares = [np.tensordot(A, A, axes=((0, 1), (0, 1))) / len(A) for A in self._each(self.A)]
        return np.stack(squares)

    def noise_factor(self, batches: Batches, n: int) -> float:
        """1/B, times (n − B)/(n − 1) without replacement."""
        if self.probabilities is not None:
            return 0.0 if batches.size is None else 1.0 / batches.size
        return batches.noise_factor(n)

    def _compute_fingerprint(self) -> str:
        """SHA-256 of weights and every record."""
        drawn = () if self.probabilities is None else (self.probabilities,)
        return digest(f"{self.kind} {self.dim}", self.offsets, self.weights, self.b, self.A, *drawn)

    def _means(self, records: Array) -> Array:
        """The mean over each client's records, as they are drawn, (N, ...)."""
        if self.probabilities is None:
            return np.stack([each.mean(axis=0) for each in self._each(records)])
        pairs = zip(self._each(self.probabilities), self._each(records), strict=True)
        return np.stack([np.tensordot(own, each, axes=1) for own, each in pairs])

    def _each(self, records: Array) -> Iterator[Array]:
        """The records of one client after another."""
        for begin, end in pairwise(self.offsets):
            yield records[begin:end]
