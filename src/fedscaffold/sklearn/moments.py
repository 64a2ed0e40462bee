"""Means and variances from what clients would send: counts, sums and sums of squares, never rows."""

from typing import NamedTuple

import numpy as np

from fedscaffold.core.types import Array


class Scale(NamedTuple):
    """Mean and spread of each feature, (dim,); the spread of a feature that does not vary is 1."""

    mean: Array
    spread: Array

    def apply(self, X: Array) -> Array:
        """(X − mean)/spread for rows X."""
        return (X - self.mean) / self.spread


def federated_scale(tables: list[Array]) -> Scale:
    """Merge each client's (n_c, mean_c, Σ(x − mean_c)²) into one scale (Chan, Golub & LeVeque 1979)."""
    sizes = np.array([len(table) for table in tables], dtype=np.float64)
    means = np.stack([table.mean(axis=0) for table in tables])
    squares = np.stack([np.square(table - mean).sum(axis=0) for table, mean in zip(tables, means, strict=True)])
    mean = sizes @ means / sizes.sum()
    variance = (squares.sum(axis=0) + sizes @ np.square(means - mean)) / sizes.sum()
    largest = np.max([np.abs(table).max(axis=0) for table in tables], axis=0)
    varies = variance > (10.0 * np.finfo(np.float64).eps * largest) ** 2
    return Scale(mean, np.where(varies, np.sqrt(variance), 1.0))
