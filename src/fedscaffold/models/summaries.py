"""Standard errors of a fit, in the table's own units."""

from typing import Any

import numpy as np

from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.types import Array
from fedscaffold.data.encoding import Encoding, Number
from fedscaffold.inference import Closed, Coordinates, Summary, close, summarise_sums
from fedscaffold.inference.covariance import Covariance
from fedscaffold.inference.per_client import MOST_COEFFICIENTS
from fedscaffold.models.planning.planned import PreparedProblem


def close_fit(prepared: PreparedProblem, theta: Array, *, steps: bool) -> Closed | None:
    """Closing sums at θ, after at most two Newton steps where `steps` says so; None with too many coefficients."""
    problem = prepared.problem
    if problem.dim > MOST_COEFFICIENTS:
        return None
    return close(problem, theta, max_steps=2 if steps else 0, names=problem.encoding.names)


def own_units(encoding: Encoding, *, target_shift: float = 0.0, target_scale: float = 1.0) -> Coordinates:
    """Coefficients for the columns as they are: θ_j/scale_j, and θ_0 − Σ_j θ_j shift_j/scale_j.

    With more than two classes, of each class against the first.
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


def summary_of(
    prepared: PreparedProblem,
    closed: Closed | None,
    *,
    cov: Covariance = "nonrobust",
    level: float = 0.95,
    dispersion: Any = None,
) -> Summary:
    """The summary of a closed fit."""
    problem = prepared.problem
    if closed is None:
        raise InvalidInput(
            f"standard errors need the Hessian of all {problem.dim:,} coefficients; at most {MOST_COEFFICIENTS:,} "
            "are possible"
        )
    classes, notes = problem.classes, []
    if classes is not None and len(classes) == 2:
        notes.append(f"Coefficients are log odds of {classes[1]!r} against {classes[0]!r}.")
    elif classes is not None:
        notes.append(f"Coefficients are log odds of each class against {classes[0]!r}.")
    return summarise_sums(
        closed.sums,
        problem.n_records * problem.penalty,
        own_units(problem.encoding, target_shift=prepared.target_shift, target_scale=prepared.target_scale),
        cov=cov,
        level=level,
        dispersion=dispersion,
        target_scale=prepared.target_scale,
        feature_names=problem.encoding.names,
        notes=notes,
    )
