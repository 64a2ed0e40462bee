"""Coefficients that the data do not determine: named before a Newton step would run into them."""

import numpy as np

from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.types import Array, IntArray
from fedscaffold.inference.sums import ClosingSums
from fedscaffold.problems.newton import PENALISE

DEPENDENT = (
    1e-11  # smallest eigenvalue of a Hessian with ones on its diagonal: below, columns depend on each other
)
SEPARATED = 1e-6  # smallest curvature over the usual one: below, some rows are fitted perfectly
TAKES_PART, DEPENDS = 0.1, 1e-3  # of the largest entry of a direction: columns with less are not named
MOST_NAMED = 5


def refuse_undetermined(sums: ClosingSums, penalty: Array, names: tuple[str, ...] = ()) -> None:
    """Raise InvalidInput that names the columns where some combination of coefficients is not determined."""
    if (penalty > 0.0).all():
        return
    features = sums.squares.size
    names = names or tuple(f"x{j}" for j in range(features))
    classes = sums.null.size if sums.kind == "multinomial" else 1
    hessian, own = sums.hessian, penalty[:features]
    if classes > 1:  # each class against the first
        hessian, own = hessian[features:, features:], penalty[features:]
    A = hessian + np.diag(own)
    if sums.rows < A.shape[0] + sums.intercepts and not own.any():
        raise InvalidInput(
            f"there are {sums.rows:,} rows for {A.shape[0] + sums.intercepts:,} coefficients; use fewer columns "
            f"or more rows, or {PENALISE}"
        )
    free = own == 0.0  # a penalty, however small, determines the rest
    A, columns = A[np.ix_(free, free)], (np.arange(A.shape[0]) % features)[free]
    zero = sums.squares[columns] == 0.0
    if sums.intercepts:
        zero |= np.diagonal(A) <= 1e-12 * np.maximum(sums.squares[columns], np.finfo(np.float64).tiny)
    if zero.any():
        which = _named([names[j] for j in dict.fromkeys(columns[zero].tolist())])
        why = "is the same in all rows of each client" if sums.intercepts else "is 0 in all rows"
        raise InvalidInput(f"{which} {why}, so it has no coefficient; leave it out, or {PENALISE}")
    more_than_a_constant = np.unique(columns).size > 1 or bool(sums.varying[columns].any())
    usual = _usual_curvature(sums)
    if usual is not None and more_than_a_constant:
        value, direction = _flattest(A, usual * sums.squares[columns])
        if value < SEPARATED and sums.extreme:
            part = _part_of(direction, columns, TAKES_PART)
            guilty = [names[j] for j in part if sums.varying[j]] or [names[j] for j in part]
            raise InvalidInput(
                f"{_named(guilty)} {_certainty(sums, len(guilty) == 1)}, and coefficients would grow for ever; "
                f"leave it out, merge categories, or {PENALISE}"
            )
    value, direction = _flattest(A, np.diagonal(A))
    if value < DEPENDENT:
        involved = [names[j] for j in _part_of(direction, columns, DEPENDS)]
        what = "depend on each other, so that their coefficients are not determined"
        if len(involved) == 1:
            what = "has no coefficient of its own"
        raise InvalidInput(f"{_named(involved)} {what}; leave one out, or {PENALISE}")


def _usual_curvature(sums: ClosingSums) -> float | None:
    """ℓ'' of a record that is not fitted perfectly: at a probability of one half, or at the mean count.

    None for families in which no coefficient can grow for ever.
    """
    if sums.kind == "poisson":
        return float(sums.null[0]) / sums.weight
    return 0.25 if sums.kind in ("logistic", "multinomial") else None


def _certainty(sums: ClosingSums, one: bool) -> str:
    if sums.kind == "poisson":
        verb = "goes" if one else "together go"
        return f"{verb} with counts of 0 alone: for {sums.extreme:,} rows the fitted mean is 0"
    verb = "separates" if one else "together separate"
    return f"{verb} the classes: for {sums.extreme:,} rows the class is certain"


def _flattest(A: Array, weight: Array) -> tuple[float, Array]:
    """Smallest eigenvalue of A scaled by 1/√weight on both sides, and its direction when scaled so."""
    scale = 1.0 / np.sqrt(weight)
    values, vectors = np.linalg.eigh(A * scale * scale[:, None])
    return float(values[0]), np.asarray(vectors[:, 0])


def _part_of(direction: Array, columns: IntArray, least: float) -> list[int]:
    """Columns that take part in a direction, those with the largest share first."""
    size = np.abs(direction)
    order = [int(j) for j in np.argsort(-size, kind="stable") if size[j] >= least * size.max()]
    return list(dict.fromkeys(int(columns[j]) for j in order))


def _named(names: list[str]) -> str:
    shown = [repr(name) for name in names[:MOST_NAMED]]
    if len(names) > MOST_NAMED:
        shown.append(f"{len(names) - MOST_NAMED} more")
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} and {shown[-1]}"
