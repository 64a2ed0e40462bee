"""Coefficients that the data do not determine, named by column before Newton steps run into them.

Columns depend on each other if a Hessian has a direction without curvature. Classes are separated if the
curvature of a direction vanishes as coefficients grow: it is compared with that of the first model, since no sum
counts rows.
"""

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.types import Array, IntArray
from fedscaffold.inference.sums import ClosingSums
from fedscaffold.problems.families import family_of
from fedscaffold.problems.newton import PENALISE

DEPENDENT = 1e-11  # least eigenvalue of a Hessian with ones on its diagonal: a hundred times its rounding error
SEPARATED = 1e-7  # curvature over that of the first model: one event in 40 million rows leaves about as much
TAKES_PART, DEPENDS = 0.1, 1e-3  # of the largest entry of a direction: columns with less are not named
MOST_NAMED = 5


def check_determined(sums: ClosingSums, penalty: Array, names: tuple[str, ...] = ()) -> None:
    """Raise if some combination of coefficients is not determined by closing sums.

    The message names the columns that are constant, depend on each other, or separate the classes. The parameters
    are as in `newton_step`.
    """
    if (penalty > 0.0).all():
        return
    names = names or tuple(f"x{j}" for j in range(sums.squares.size))
    A, free, columns = _free_part(sums, penalty)
    if sums.rows < free.size + sums.intercepts and free.all():
        raise InvalidInput(
            f"there are {sums.rows:,} rows for {free.size + sums.intercepts:,} coefficients; use fewer columns "
            f"or more rows, or {PENALISE}"
        )
    squares = sums.squares[columns]
    zero, baseline = squares == 0.0, family_of(sums.kind).baseline
    if baseline and not sums.null[0]:
        raise InvalidInput("no row has an event, so there is nothing to learn from these times")
    if sums.intercepts or baseline:
        zero |= np.diagonal(A) <= 1e-12 * np.maximum(squares, np.finfo(np.float64).tiny)
    if zero.any():
        which = _listed(_columns_of(names[j] for j in dict.fromkeys(columns[zero].tolist())))
        why = "is the same in all rows of each client" if sums.intercepts else "is 0 in all rows"
        why = "is the same in all rows of each client that are at risk at its events" if baseline else why
        raise InvalidInput(f"{which} {why}, so it has no coefficient; leave it out, or {PENALISE}")
    curvature = _null_curvature(sums)
    if curvature is not None and sums.varying[columns].any() and not baseline:
        vanished = np.diagonal(A) < SEPARATED * curvature * squares
        if vanished.any():
            raise _separation(sums, names, columns[vanished].tolist())
    scale = 1.0 / np.sqrt(np.diagonal(A))
    values, vectors = np.linalg.eigh(A * scale * scale[:, None])  # with ones on the diagonal
    if values[0] < DEPENDENT:
        involved = _columns_of(names[j] for j in _part_of(vectors[:, 0], columns, DEPENDS))
        what = "depend on each other, so that their coefficients are not determined"
        if len(involved) == 1:
            what = "has values that depend on each other, so that coefficients are not determined"
        raise InvalidInput(f"{_listed(involved)} {what}; leave one out, or {PENALISE}")


def check_not_separated(
    sums: ClosingSums, first: ClosingSums, penalty: Array, names: tuple[str, ...] = ()
) -> None:
    """Raise if the curvature of some direction has vanished since the first model, with sums `first`.

    The message names the columns that separate the classes, or go with counts of 0 alone.
    """
    if (penalty > 0.0).all():
        return
    names = names or tuple(f"x{j}" for j in range(sums.squares.size))
    (A, _, columns), (A0, _, _) = _free_part(sums, penalty), _free_part(first, penalty)
    curvature = _null_curvature(sums)
    if curvature is None or not sums.varying[columns].any():
        return
    # at most the curvature of a model with a constant alone: outcomes may be rare, the first model far off
    A0 = A0 * min(1.0, float((curvature * sums.squares[columns] / np.diagonal(A0)).min()))
    scale = 1.0 / np.sqrt(np.diagonal(A0))
    half = np.linalg.inv(np.linalg.cholesky(A0 * scale * scale[:, None]))
    values, vectors = np.linalg.eigh(half @ (A * scale * scale[:, None]) @ half.T)
    if values[0] < SEPARATED:
        raise _separation(sums, names, _part_of(half.T @ vectors[:, 0], columns, TAKES_PART))


def _free_part(sums: ClosingSums, penalty: Array) -> tuple[Array, NDArray[np.bool_], IntArray]:
    """Return the Hessian of coefficients without penalty, which coefficients these are, and their columns.

    A penalty, however small, determines the others. Of several classes, each is taken against the first.
    """
    features = sums.squares.size
    begin = features if sums.kind == "multinomial" else 0
    free = penalty[begin:] == 0.0
    columns = (np.arange(free.size) % features)[free]
    return sums.hessian[begin:, begin:][np.ix_(free, free)], free, columns


def _null_curvature(sums: ClosingSums) -> float | None:
    """Return ℓ'' of a record under a model with a constant alone; None for kinds that cannot be separated."""
    curvature = family_of(sums.kind).null_curvature
    return None if curvature is None else curvature(sums.null, sums.weight)


def _separation(sums: ClosingSums, names: tuple[str, ...], part: list[int]) -> InvalidInput:
    guilty = _columns_of([names[j] for j in part if sums.varying[j]] or [names[j] for j in part])
    what = "separates the classes" if len(guilty) == 1 else "together separate the classes"
    if sums.kind == "poisson":
        what = "goes with counts of 0 alone" if len(guilty) == 1 else "together go with counts of 0 alone"
    if sums.kind == "cox":
        what = "predicts the order of events perfectly, as a group without events does"
        what = what if len(guilty) == 1 else what.replace("predicts", "together predict")
    return InvalidInput(
        f"{_listed(guilty)} {what}, and coefficients would grow for ever; leave it out, merge categories, or "
        f"{PENALISE}"
    )


def _part_of(direction: Array, columns: IntArray, least: float) -> list[int]:
    """Return the columns that take part in a direction, the largest share first."""
    size = np.abs(direction)
    order = [int(j) for j in np.argsort(-size, kind="stable") if size[j] >= least * size.max()]
    return list(dict.fromkeys(int(columns[j]) for j in order))


def _columns_of(features: Iterable[str]) -> list[str]:
    """Return names of features; several values of one category, "ward=x" and "ward=y", become "ward"."""
    names = list(features)
    columns = [name.partition("=")[0] for name in names]
    pairs = zip(names, columns, strict=True)
    return list(dict.fromkeys(column if columns.count(column) > 1 else name for name, column in pairs))


def _listed(names: list[str]) -> str:
    shown = [repr(name) for name in names[:MOST_NAMED]]
    if len(names) > MOST_NAMED:
        shown.append(f"{len(names) - MOST_NAMED} more")
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} and {shown[-1]}"
