"""Tables of clients as they are fitted: which rows are whose, standardised features, and the way back to units.

Means and variances come from what clients would send: counts, sums and sums of squares, never rows. Under a
privacy budget public bounds take their place, and noisy steps alone read the rows.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.validation import check_array, check_consistent_length

from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.types import Array
from fedscaffold.data.public import LIMIT, PublicTarget
from fedscaffold.problems.families import Kind


class Scale(NamedTuple):
    """Mean and spread of each feature, (dim,); the spread of a feature that does not vary is 1."""

    mean: Array
    spread: Array

    def apply(self, X: Array) -> Array:
        """Return (X − mean)/spread for rows X."""
        return (X - self.mean) / self.spread

    def to_rows(self, vectors: Array) -> tuple[Array, Array]:
        """Return slopes (k, dim) and intercepts (k,) in the rows' units of k vectors with or without intercept."""
        d = self.mean.size
        coef = vectors[:, :d] / self.spread
        return coef, vectors[:, d:].sum(axis=1) - coef @ self.mean

    def from_rows(self, coef: Array, intercept: Array, *, with_intercept: bool) -> Array:
        """Return vectors for standardised rows, (k, dim), or (k, dim + 1) with an intercept; undo `to_rows`."""
        slopes = coef * self.spread
        return np.column_stack([slopes, intercept + coef @ self.mean]) if with_intercept else slopes


@dataclass(frozen=True, kw_only=True, eq=False)
class ClientTables:
    """Rows of each client as they are fitted."""

    features: list[Array]  # centred and standardised if asked for; the last column may be the intercept's
    scale: Scale  # means and spreads that were taken off
    rows: list[NDArray[np.int64]]  # positions of each client's rows
    weight: Array | None  # of all rows, (rows,); None for weights of one
    dtype: np.dtype[Any]  # of the rows as they were given

    def split(self, values: Array) -> list[Array]:
        """Return values of all rows as one array per client."""
        return [values[own] for own in self.rows]


def federated_scale(tables: list[Array], weights: list[Array] | None = None) -> Scale:
    """Merge each client's (n_c, mean_c, Σ(x − mean_c)²) into one scale (Chan, Golub & LeVeque 1979).

    With weights of the rows, their sum takes the place of n_c, and all means and sums are weighted.
    """
    if weights is None:
        weights = [np.ones(len(table)) for table in tables]
    own = [(table[a > 0], a[a > 0]) for table, a in zip(tables, weights, strict=True) if a.any()]
    sizes = np.array([a.sum() for _, a in own])
    means = np.stack([a @ table / a.sum() for table, a in own])
    squares = sum(a @ np.square(table - mean) for (table, a), mean in zip(own, means, strict=True))
    mean = sizes @ means / sizes.sum()
    variance = (squares + sizes @ np.square(means - mean)) / sizes.sum()
    largest = np.max([np.abs(table).max(axis=0) for table, _ in own], axis=0)
    varies = variance > (10.0 * np.finfo(np.float64).eps * largest) ** 2
    return Scale(mean, np.where(varies, np.sqrt(variance), 1.0))


def rows_of_clients(clients: Any, n_rows: int, min_rows: int) -> tuple[NDArray[Any], list[NDArray[np.int64]]]:
    """Return ids of the clients in ascending order, and the positions of each one's rows.

    Raise if an id is missing, ids are neither all text nor all numbers, or a client has less than `min_rows` rows.
    """
    ids = check_array(clients, ensure_2d=False, dtype=None, input_name="clients", ensure_all_finite="allow-nan")
    if ids.ndim != 1:
        raise InvalidInput(f"clients must be one id per row, got an array of shape {ids.shape}")
    check_consistent_length(ids, np.empty(n_rows))
    missing = sum(each is None or each != each for each in ids.tolist())
    if missing:
        raise InvalidInput(f"clients holds None or NaN in {missing} of {n_rows} rows; name a client for each row")
    try:
        names, index = np.unique(ids, return_inverse=True)
    except TypeError:
        raise InvalidInput("clients must be all text or all numbers, not some of each") from None
    sizes = np.bincount(index)
    small = np.flatnonzero(sizes < min_rows)
    if small.size:
        others = f" ({small.size} clients are that small)" if small.size > 1 else ""
        rows = int(sizes[small[0]])
        few = f"client {names[small[0]]!s} has only {rows} row{'s' * (rows > 1)}{others}"
        raise InvalidInput(f"{few}; leave out the rows of such clients, or accept them with min_rows={rows}")
    return names, np.split(np.argsort(index, kind="stable"), np.cumsum(sizes)[:-1])


def public_target(kind: Kind, bounds: Any) -> PublicTarget:
    """Return a numeric target by its public range; raise if that does not fit the kind."""
    low, high = _ends("target_bounds", bounds, 1)
    try:
        return PublicTarget(kind=kind, ends=(float(low[0]), float(high[0])))
    except InvalidInput as error:
        raise InvalidInput(f"target_bounds: {error}") from None


def public_scale(name: str, bounds: Any, length: int, *, centred: bool) -> Scale:
    """Return middle and sixth of ranges; if nothing may be shifted, 0 and a third of the further end."""
    low, high = _ends(name, bounds, length)
    if centred:
        return Scale(low + 0.5 * (high - low), (high - low) / (2.0 * LIMIT))
    return Scale(np.zeros_like(low), np.maximum(np.abs(low), np.abs(high)) / LIMIT)


def _ends(name: str, bounds: Any, length: int) -> tuple[Array, Array]:
    """Return the lower and upper ends of ranges, (length,) each."""
    try:
        low, high = (np.broadcast_to(np.asarray(end, dtype=np.float64), length) for end in bounds)
    except (TypeError, ValueError):
        raise InvalidInput(f"{name} must be (low, high): two numbers, or two arrays of {length} numbers") from None
    if not (np.isfinite(low) & np.isfinite(high) & (low < high)).all():
        raise InvalidInput(f"{name} must be finite, with low < high")
    return low, high
