"""Summaries of a problem, after some Newton steps, or of closing sums."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedscaffold.core.checks import positive, whole_number
from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.machine import one_blas_thread
from fedscaffold.core.types import Array
from fedscaffold.inference.closing import Covariance, covariance, fit_statistics, newton_step, residual_degrees
from fedscaffold.inference.summary import Summary
from fedscaffold.inference.sums import ClosingSums, ProblemSums
from fedscaffold.inference.training import CLOSED, Descent, newton_path
from fedscaffold.problems.families import family_of

COX = "Each client has a baseline hazard, which stays there; hazard ratios are taken to be the same at all times."
MEANING = {
    "nonrobust": "Standard errors assume that the model is right: independent rows with the family's variance.",
    "HC0": "Standard errors allow any variance of single rows, and assume that rows are independent.",
    "HC1": "Standard errors allow any variance of single rows, and assume that rows are independent.",
    "cluster": "Standard errors allow rows of a client to depend on each other, and assume independent clients.",
}
FEW_CLUSTERS = 30
MOST_STEPS_WITH_INTERCEPTS = 50  # of `summarise`
ROUNDING = 1e-13  # of the coefficients: an optimisation error that is rounding
NEGLIGIBLE = 1e-3  # of the standard error: an optimisation error that is not worth a note


@dataclass(frozen=True, eq=False)
class Coordinates:
    """Reported coefficients β = matrix θ + shift, with names.

    Attributes
    ----------
    names
        Of the reported coefficients.
    matrix
        (coefficients, dim).
    shift
        (coefficients,).
    intercepts
        Which of the coefficients are intercepts, left out of tests of all coefficients, (coefficients,).

    Examples
    --------
    >>> import numpy as np
    >>> from fedscaffold.inference import Coordinates
    >>> Coordinates.of_features(("age", "intercept"), n_intercepts=1).names
    ('age', 'intercept')
    """

    names: tuple[str, ...]
    matrix: Array
    shift: Array
    intercepts: NDArray[np.bool_]

    @classmethod
    def of_features(
        cls,
        names: Sequence[str],
        *,
        n_intercepts: int = 0,
        classes: Sequence[Any] | None = None,
        shift: ArrayLike = 0.0,
        scale: ArrayLike = 1.0,
        target_shift: float = 0.0,
        target_scale: float = 1.0,
    ) -> "Coordinates":
        """Return coefficients of features in their own units: θ_j/scale_j, and θ_0 − Σ_j θ_j shift_j/scale_j.

        Parameters
        ----------
        names
            Of the features.
        n_intercepts
            How many of the last features are intercepts.
        classes
            The classes of a multinomial problem, whose coefficients are each class's minus the first's.
        shift, scale
            Numbers that features were standardised with, (features,) or one for all; 0 and 1 for intercepts.
        target_shift, target_scale
            Numbers that the target was standardised with.
        """
        d = len(names)
        shift, scale = (np.broadcast_to(np.asarray(each, np.float64), d) for each in (shift, scale))
        units, added = np.diag(target_scale / scale), np.zeros(d)
        last = np.arange(d) >= d - n_intercepts
        if n_intercepts:
            units[-1] -= target_scale * shift / scale
            added[-1] = target_shift
        if classes is None:
            return cls(tuple(names), units, added, last)
        K = len(classes)
        contrasts = np.column_stack([-np.ones(K - 1), np.eye(K - 1)])
        labels = tuple(f"{label}: {name}" for label in classes[1:] for name in names)
        matrix = np.kron(np.eye(K - 1), units) @ np.kron(contrasts, np.eye(d))
        return cls(labels, matrix.astype(np.float64), np.tile(added, K - 1), np.tile(last, K - 1))


@one_blas_thread
def summarise(
    problem: Any,
    theta: Array | None = None,
    *,
    cov: Covariance = "nonrobust",
    level: float = 0.95,
    dispersion: float | str | None = None,
    names: Sequence[str] | None = None,
    n_intercepts: int | None = None,
    client_intercepts: bool = False,
    max_steps: int = 2,
) -> Summary:
    """Return coefficients of a problem with standard errors, from sums that its clients add up.

    Parameters
    ----------
    problem
        `fedscaffold.problems.Ridge`, `Logistic`, `Multinomial`, `Poisson` or `Gamma`.
    theta
        Coefficients, for example of a run; None for the optimum.
    cov
        "nonrobust", "HC0", "HC1" or "cluster" (by client).
    level
        Confidence level of the intervals.
    dispersion
        None for the family's own; "pearson" to estimate it (quasi-Poisson regression); or a number.
    names
        Of the features.
    n_intercepts
        How many of the last features are intercepts; by default the features without a penalty.
    client_intercepts
        Whether each client has an intercept, as with one indicator column per client.
    max_steps
        Most Newton steps from θ; 0 leaves it as it is. With client intercepts up to fifty are taken, since the
        start then solves another problem. A step that would raise the loss is halved.

    Examples
    --------
    >>> import numpy as np
    >>> import fedscaffold as fs
    >>> rng = np.random.default_rng(0)
    >>> X, y = rng.normal(size=(3, 20, 2)), rng.normal(size=(3, 20))
    >>> fs.inference.summarise(fs.problems.Ridge(X, y), cov="HC1").names
    ('x0', 'x1')
    """
    features = tuple(f"x{j}" for j in range(problem.n_features)) if names is None else tuple(map(str, names))
    if len(features) != problem.n_features:
        raise InvalidInput(f"there are {problem.n_features} features, but {len(features)} names")
    whole_number("max_steps", max_steps, least=0)
    most = MOST_STEPS_WITH_INTERCEPTS if client_intercepts and max_steps else max_steps
    source: Any = ProblemSums(problem, names=features, client_intercepts=client_intercepts)
    at = Descent(source)
    found = first = at.certificate(np.asarray(problem.optimum() if theta is None else theta, dtype=np.float64))
    for steps, found in enumerate(newton_path(at, first)):
        if steps == most or found.distance <= CLOSED:
            break
    classes = range(problem.vectors) if problem.vectors > 1 else None
    last = problem.n_unpenalised if n_intercepts is None else n_intercepts
    return summarise_sums(
        source.closing(found.theta, scores=True), problem.n_records * problem.penalty,
        Coordinates.of_features(features, n_intercepts=last, classes=classes),
        cov=cov, level=level, dispersion=dispersion, feature_names=features,
    )  # fmt: skip


def summarise_sums(
    sums: ClosingSums,
    penalty: Array,
    coordinates: Coordinates,
    *,
    cov: Covariance = "nonrobust",
    level: float = 0.95,
    dispersion: float | str | None = None,
    target_scale: float = 1.0,
    feature_names: Sequence[str] = (),
    notes: Sequence[str] = (),
) -> Summary:
    """Return a summary from closing sums alone, as a server has them.

    Parameters
    ----------
    sums
        Closing sums of all clients.
    penalty
        Second derivatives of the penalty in units of the sums: the number of records times l2 for each
        penalised coefficient, else 0, (dim,).
    coordinates
        How reported coefficients follow from θ.
    cov, level, dispersion
        As in `summarise`.
    target_scale
        Factor by which a Gaussian target was divided before the fit; the coordinates multiply by it.
    feature_names
        Of the features, for messages.
    notes
        More sentences for below the table.

    Examples
    --------
    >>> import numpy as np
    >>> import fedscaffold as fs
    >>> rng = np.random.default_rng(0)
    >>> problem = fs.problems.Ridge(rng.normal(size=(3, 20, 2)), rng.normal(size=(3, 20)))
    >>> sums = fs.inference.closing_sums(problem, problem.optimum())
    >>> coordinates = fs.inference.Coordinates.of_features(("a", "b"))
    >>> fs.inference.summarise_sums(sums, np.zeros(2), coordinates).names
    ('a', 'b')
    """
    if not positive("level", level) < 1.0:
        raise InvalidInput(f"level must be below 1, got {level!r}")
    if coordinates.matrix.shape[1] != sums.dim:
        given = coordinates.matrix.shape[1]
        raise InvalidInput(f"names for {given} coefficients were given, but there are {sums.dim}")
    coordinates, absent = _of_rows(sums, coordinates)
    family = family_of(sums.kind)
    newton = newton_step(sums, penalty, tuple(feature_names))
    T = coordinates.matrix
    cov_theta = covariance(sums, penalty, cov, given=dispersion)
    matrix = T @ cov_theta @ T.T
    se, error = np.sqrt(np.maximum(np.diagonal(matrix), 0.0)), np.abs(T @ newton.step)
    error[error <= ROUNDING * (np.abs(T) @ np.abs(sums.theta))] = 0.0  # what is left of a perfect fit
    with_t = sums.kind == "ridge" and cov == "nonrobust" and dispersion is None
    facts = {
        "family": family.name + (" (quasi)" if dispersion is not None and not family.dispersion else ""),
        "rows": f"{sums.rows:,}",
        "clients": f"{sums.clients:,}",
        "standard errors": cov,
    }
    if family.baseline:
        facts["events"] = f"{sums.null[0]:,.0f}"
    if sums.intercepts:
        facts["client intercepts"] = f"{sums.intercepts:,}"
    return Summary(
        names=coordinates.names,
        coef=T @ sums.theta + coordinates.shift,
        se=se,
        optimisation_error=error,
        cov=matrix,
        intercepts=coordinates.intercepts,
        level=level,
        df_resid=residual_degrees(sums) if with_t else None,
        statistics=fit_statistics(sums, given=dispersion, target_scale=target_scale),
        ratio=family.ratio,
        facts=facts,
        notes=(
            *([COX] if family.baseline else []),
            MEANING[cov],
            *_remarks(sums, penalty, cov, se, error, feature_names),
            *absent,
            *notes,
        ),
    )


def _of_rows(sums: ClosingSums, coordinates: Coordinates) -> tuple[Coordinates, list[str]]:
    """Return the coefficients of features that some row has, and a sentence about the others.

    A category that sites agreed on may turn out to be that of no row; a penalty then holds its coefficient at 0.
    """
    kept = (coordinates.matrix[:, _in_some_row(sums)] != 0.0).any(axis=1)
    if kept.all():
        return coordinates, []
    names = np.array(coordinates.names, dtype=object)
    found = Coordinates(
        tuple(names[kept]), coordinates.matrix[kept], coordinates.shift[kept], coordinates.intercepts[kept]
    )
    return found, [f"No row has {', '.join(names[~kept][:5])}, so that there is no coefficient."]


def _in_some_row(sums: ClosingSums) -> NDArray[np.bool_]:
    """Return whether the feature of each entry of θ is not 0 in all rows, shape (dim,)."""
    return np.tile(sums.squares > 0.0, sums.dim // sums.squares.size)


def _remarks(
    sums: ClosingSums, penalty: Array, cov: Covariance, se: Array, error: Array, features: Sequence[str]
) -> list[str]:
    """Return sentences about the limits of these intervals."""
    found = []
    if family_of(sums.kind).baseline and sums.null[2] < sums.clients:
        found.append(
            f"{sums.clients - round(float(sums.null[2])):,} of {sums.clients:,} clients have no event, and add "
            "nothing to the coefficients."
        )
    if penalty[_in_some_row(sums)].any():
        found.append(
            "Coefficients are shrunk towards zero by the penalty. Intervals are about where the penalised "
            "estimate would fall in other samples, not about the coefficient without a penalty; "
            "for that, fit without one."
        )
    with np.errstate(divide="ignore", invalid="ignore"):
        worst = float(np.max(np.where(se > 0, error / se, 0.0)))
    if worst > NEGLIGIBLE:
        found.append(
            f"The fit has not reached the optimum: coefficients are up to {worst:.1%} of a standard error away. "
            "Tests and intervals take this into account."
        )
    if cov == "cluster" and sums.clients < FEW_CLUSTERS:
        found.append(
            f"Standard errors by client rest on {sums.clients} clients; with few, they tend to be too small."
        )
    alone = [features[j] for j in np.flatnonzero(sums.varying == 1).tolist() if j < len(features)]
    if alone and cov == "cluster" and sums.clients > 1:
        found.append(
            f"Only one client has different values of {', '.join(alone[:5])}: a standard error by client means "
            "nothing there."
        )
    return found
