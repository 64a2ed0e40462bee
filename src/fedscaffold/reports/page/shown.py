"""Choose the rows that a page shows if there are too many for all."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedscaffold.core.types import Array

MOST = 30  # rows of a table or a drawing that fit on a page
COLOURS = 10  # of classes, as many as style.css.j2 defines


def largest(sizes: ArrayLike, keep: Sequence[int] = ()) -> list[int]:
    """Return at most 30 positions, from the largest size to the smallest: `keep`, and the largest others.

    Examples
    --------
    >>> largest([3, 9, 5])
    [1, 2, 0]
    """
    order = np.argsort(-np.asarray(sizes), kind="stable").tolist()
    kept = set(list(dict.fromkeys([*keep, *order]))[:MOST])
    return [k for k in order if k in kept]


def extremes(values: ArrayLike, each: int = MOST // 2) -> list[int]:
    """Return the positions of the smallest and the largest values, in ascending order; NaN is left out.

    Parameters
    ----------
    values
        Numbers.
    each
        How many to return from either end if there are more than twice this number.

    Examples
    --------
    >>> extremes([4.0, 1.0, np.nan, 3.0, 2.0], each=1)
    [1, 0]
    """
    found = np.asarray(values, dtype=float)
    order = np.argsort(found, kind="stable")[: np.count_nonzero(~np.isnan(found))].tolist()
    return order if len(order) <= 2 * each else [*order[:each], *order[-each:]]


def clearest(effects: Array, widths: Array) -> list[int]:
    """Return at most 30 positions, from the largest effect to the smallest: those furthest from 0 in their widths.

    Effects of NaN (of intercepts) are left out.
    """
    known = np.flatnonzero(~np.isnan(effects)).tolist()
    clarity = np.abs(effects) / np.maximum(widths, 1e-300)
    kept = sorted(known, key=lambda k: float(-clarity[k]))[:MOST]
    return sorted(kept, key=lambda k: float(-effects[k]))


def colour_groups(counts: NDArray[Any]) -> tuple[list[list[int]], NDArray[Any]]:
    """Return groups of classes, one per colour, and their counts, (rows, groups).

    The smallest classes share the last colour if there are too many.

    Parameters
    ----------
    counts
        Counts by row and class, (rows, classes).
    """
    order = np.argsort(-counts.sum(axis=0), kind="stable").tolist()
    alone = len(order) if len(order) <= COLOURS else COLOURS - 1
    groups = [*([j] for j in sorted(order[:alone])), *([order[alone:]] if order[alone:] else [])]
    return groups, np.stack([counts[:, group].sum(axis=1) for group in groups], axis=1)
