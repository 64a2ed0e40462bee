"""Standard errors of a fit, in the table's own units."""

from dataclasses import replace
from typing import Any

import numpy as np

from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.types import Array
from fedscaffold.data.encoding import Encoding, Number
from fedscaffold.inference import Closed, Coordinates, Summary, close, summarise_sums
from fedscaffold.inference.closing import has_variance
from fedscaffold.inference.covariance import Covariance
from fedscaffold.inference.per_client import MOST_COEFFICIENTS
from fedscaffold.models.planning.planned import PreparedProblem

MOST_STEPS = 20  # of Newton's method, where two do not reach the tolerance


def close_fit(
    prepared: PreparedProblem, theta: Array, *, steps: bool, tolerance: float | None = None
) -> Closed | None:
    """Closing sums at θ, after Newton steps where `steps` says so; None with too many coefficients.

    Two steps at most, and more as long as some coefficient's error is above `tolerance` standard errors.
    """
    problem, own = prepared.problem, prepared.client_intercepts
    if problem.dim > MOST_COEFFICIENTS:
        return None
    names = problem.encoding.names
    closed = close(problem, theta, max_steps=2 if steps else 0, names=names, client_intercepts=own)
    while steps and tolerance is not None and closed.steps < MOST_STEPS:
        error = largest_error(prepared, closed)
        if error is None or error <= tolerance:
            break
        further = close(problem, closed.theta, max_steps=2, names=names, client_intercepts=own)
        if further.steps == 0:
            break
        closed = replace(
            further, steps=closed.steps + further.steps, distance_before=closed.distance_before,
            moved=further.theta - theta,
        )  # fmt: skip
    return closed


def largest_error(prepared: PreparedProblem, closed: Closed | None) -> float | None:
    """The largest optimisation error of a coefficient, in its standard errors; None where it has none."""
    if closed is None or not has_variance(closed.sums):
        return None
    summary = summary_of(prepared, closed)
    with np.errstate(divide="ignore", invalid="ignore"):
        return float(np.max(np.where(summary.se > 0.0, summary.optimisation_error / summary.se, 0.0)))


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
    if prepared.client_intercepts:
        notes.append("Each client has an intercept of its own, which is not shown and never leaves it.")
    if prepared.left_out:
        were, their = ("client was", "its") if prepared.left_out == 1 else ("clients were", "their")
        notes.append(
            f"{prepared.left_out:,} {were} left out: {their} target never varies, so that an intercept fits it."
        )
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
