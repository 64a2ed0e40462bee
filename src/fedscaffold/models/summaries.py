"""Coefficients in the table's own units, and the spread of their columns."""

import numpy as np

from fedscaffold.core.types import Array
from fedscaffold.data.encoding import Encoding, Number
from fedscaffold.inference import Coordinates, Summary


def own_units(encoding: Encoding, *, target_shift: float = 0.0, target_scale: float = 1.0) -> Coordinates:
    """Return the map from θ to coefficients of columns as they are: θ_j/scale_j, θ_0 − Σ_j θ_j shift_j/scale_j.

    With more than two classes, coefficients are of each class against the first.
    """
    d = encoding.dim
    shift, scale = np.zeros(d), np.ones(d)
    for column, place in zip(encoding.columns, encoding.places, strict=True):
        if isinstance(column, Number):
            shift[place], scale[place] = column.shift, column.scale
    matrix, constant = np.diag(target_scale / scale), np.zeros(d)
    if encoding.intercept:
        matrix[-1] -= target_scale * shift / scale
        constant[-1] = target_shift
    many = encoding.n_vectors > 1
    plain = Coordinates.of_features(
        encoding.names, n_intercepts=int(encoding.intercept), classes=encoding.classes if many else None
    )
    blocks = encoding.n_vectors - 1 if many else 1
    return plain.then(np.kron(np.eye(blocks), matrix).astype(np.float64), np.tile(constant, blocks))


def column_spread(summary: Summary, encoding: Encoding) -> Array:
    """Return the standard deviation of each coefficient's column, (k,): 1 for a category, NaN for an intercept.

    A coefficient times this is the effect of one standard deviation, or of a category against its reference.
    """
    spread = np.ones(encoding.dim)
    for column, place in zip(encoding.columns, encoding.places, strict=True):
        if isinstance(column, Number):
            spread[place] = column.scale
    names = own_units(encoding).names
    known = dict(zip(names, np.tile(spread, len(names) // encoding.dim), strict=True))
    return np.where(summary.intercepts, np.nan, [known[name] for name in summary.names])
