"""Standardised features, and coefficients in the units of the rows.

Means and variances come from what clients would send: counts, sums and sums of squares, never rows.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from fedscaffold.core.types import Array
from fedscaffold.inference import Coordinates


class Scale(NamedTuple):
    """Mean and spread of each feature, (dim,); the spread of a feature that does not vary is 1."""

    mean: Array
    spread: Array

    def apply(self, X: Array) -> Array:
        """(X − mean)/spread for rows X."""
        return (X - self.mean) / self.spread

    def to_rows(self, vectors: Array) -> tuple[Array, Array]:
        """Slopes (k, dim) and intercepts (k,) for rows as they are, from k vectors for standardised rows.

        A vector may have an intercept after its slopes.
        """
        d = self.mean.size
        coef = vectors[:, :d] / self.spread
        return coef, vectors[:, d:].sum(axis=1) - coef @ self.mean

    def from_rows(self, coef: Array, intercept: Array, *, with_intercept: bool) -> Array:
        """Vectors for standardised rows, (k, dim), or (k, dim + 1) with an intercept: the inverse of `to_rows`."""
        slopes = coef * self.spread
        return np.column_stack([slopes, intercept + coef @ self.mean]) if with_intercept else slopes

    def coordinates(
        self, names: tuple[str, ...], *, n_intercepts: int, shift: float, classes: Sequence[Any] | None
    ) -> Coordinates:
        """What summaries report: coefficients for rows as they are; of several classes, each against the first.

        `shift` is added to intercepts.
        """
        d = self.mean.size
        matrix, added = np.eye(len(names)), np.zeros(len(names))
        matrix[:d, :d] = np.diag(1.0 / self.spread)
        if n_intercepts:
            matrix[-1, :d] = -self.mean / self.spread
            added[-1] = shift
        plain = Coordinates.of_features(names, n_intercepts=n_intercepts, classes=classes)
        blocks = 1 if classes is None else len(classes) - 1
        return plain.then(np.kron(np.eye(blocks), matrix).astype(np.float64), np.tile(added, blocks))


def federated_scale(tables: list[Array], weights: list[Array] | None = None) -> Scale:
    """Merge each client's (n_c, mean_c, Σ(x − mean_c)²) into one scale (Chan, Golub & LeVeque 1979).

    With weights of the rows, their sum takes the place of n_c, and all means and sums are weighted.
    """
    if weights is not None:
        present = [own.sum() > 0 for own in weights]
        weights = [own for own, there in zip(weights, present, strict=True) if there]
        tables = [table for table, there in zip(tables, present, strict=True) if there]
        sizes = np.array([own.sum() for own in weights])
        means = np.stack([own @ table / own.sum() for table, own in zip(tables, weights, strict=True)])
        squares = np.stack(
            [own @ np.square(table - mean) for table, mean, own in zip(tables, means, weights, strict=True)]
        )
        tables = [table[own > 0] for table, own in zip(tables, weights, strict=True)]
    else:
        sizes = np.array([len(table) for table in tables], dtype=np.float64)
        means = np.stack([table.mean(axis=0) for table in tables])
        squares = np.stack(
            [np.square(table - mean).sum(axis=0) for table, mean in zip(tables, means, strict=True)]
        )
    mean = sizes @ means / sizes.sum()
    variance = (squares.sum(axis=0) + sizes @ np.square(means - mean)) / sizes.sum()
    largest = np.max([np.abs(table).max(axis=0) for table in tables], axis=0)
    varies = variance > (10.0 * np.finfo(np.float64).eps * largest) ** 2
    return Scale(mean, np.where(varies, np.sqrt(variance), 1.0))
