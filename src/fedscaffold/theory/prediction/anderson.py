"""Acceleration of fixed-point iterations."""

import numpy as np

from fedscaffold.core.types import Array


class Anderson:
    """Anderson's acceleration of a fixed-point iteration x ← f(x) (J. ACM 12, 1965), with a memory of a few steps.

    Examples
    --------
    >>> import numpy as np
    >>> matrix = np.array([[0.9, 0.3], [0.0, -0.95]])
    >>> x, steps = np.zeros(2), Anderson(memory=5)
    >>> for _ in range(4):
    ...     x = steps.next(x, matrix @ x + 1.0)
    >>> bool(np.allclose(x, np.linalg.solve(np.eye(2) - matrix, np.ones(2))))
    True
    """

    def __init__(self, memory: int) -> None:
        self.memory = memory
        self.points: list[Array] = []
        self.gaps: list[Array] = []

    def next(self, x: Array, fx: Array) -> Array:
        """The next point to try, after f(x) was found."""
        self.points, self.gaps = [*self.points, fx][-self.memory :], [*self.gaps, fx - x][-self.memory :]
        if len(self.gaps) == 1:
            return fx
        differences = np.stack([gap - self.gaps[-1] for gap in self.gaps[:-1]], axis=1)
        weights, *_ = np.linalg.lstsq(differences, -self.gaps[-1], rcond=1e-12)
        moves = np.stack([point - fx for point in self.points[:-1]], axis=1)
        return np.asarray(fx + moves @ weights)
