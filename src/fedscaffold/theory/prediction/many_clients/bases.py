"""From one vector into the eigenbases of all clients, and from there back to the mean over clients."""

from dataclasses import dataclass

import numpy as np

from fedscaffold.core.types import Array


@dataclass(frozen=True, eq=False)
class Bases:
    """Clients' eigenbases one below another, so that entering or leaving all of them is one matrix product.

    Examples
    --------
    >>> import numpy as np
    >>> bases = Bases.of(np.array([0.5, 0.5]), np.stack([np.eye(2), -np.eye(2)]))
    >>> bases.leave(bases.enter(np.array([1.0, 2.0]))).tolist()
    [1.0, 2.0]
    """

    into: Array  # (n d, d)
    mean: Array  # (d, n d)

    @classmethod
    def of(cls, w: Array, U: Array) -> "Bases":
        """The bases U, (n, d, d), of clients with weights w."""
        n, d, _ = U.shape
        mean = (w[:, None, None] * U).transpose(1, 0, 2).reshape(d, n * d)
        return cls(U.transpose(0, 2, 1).reshape(n * d, d), mean)

    def enter(self, vector: Array) -> Array:
        """U_cᵀ v for every client, (n, d)."""
        return (self.into @ vector).reshape(-1, vector.size)

    def leave(self, vectors: Array) -> Array:
        """Σ_c w_c U_c v_c, (d,), of vectors (n, d)."""
        return np.asarray(self.mean @ vectors.ravel())
