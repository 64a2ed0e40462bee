"""From closing sums to the distance left to the optimum, and Newton steps that remove it."""

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from fedscaffold.core.checks import positive, shown, whole_number
from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.types import Array
from fedscaffold.inference.diagnosis import refuse_undetermined
from fedscaffold.inference.families import family_of
from fedscaffold.inference.per_client import closing_sums
from fedscaffold.inference.sums import ClosingSums

CLOSED = 1e-9  # of the standard errors: a distance that needs no further step
ROUNDING = 1e-12  # of the loss: a rise that rounding explains
MOST_STEPS_WITH_INTERCEPTS = 50
MOST_HALVINGS = 30  # of a step that is too long


@dataclass(frozen=True, kw_only=True, eq=False)
class NewtonStep:
    """What the closing sums say about the way to the optimum.

    Attributes
    ----------
    step
        A⁻¹(g + penalty θ): θ minus the optimum, to first order, (dim,).
    theta
        θ − step, the one-step estimator, (dim,).
    distance
        √(gᵀA⁻¹g/φ), the Newton decrement in units of standard errors: no combination of coefficients is further
        from the optimum than this many of its own standard errors.
    inverse
        A⁻¹, the inverse Hessian of the penalised loss, (dim, dim).

    Examples
    --------
    >>> import numpy as np
    >>> import fedscaffold as fs
    >>> rng = np.random.default_rng(0)
    >>> problem = fs.problems.Ridge(rng.normal(size=(3, 20, 2)), rng.normal(size=(3, 20)))
    >>> sums = fs.inference.closing_sums(problem, problem.optimum())
    >>> fs.inference.newton_step(sums, np.zeros(2)).distance < 1e-12
    True
    """

    step: Array
    theta: Array
    distance: float
    inverse: Array


@dataclass(frozen=True, kw_only=True, eq=False)
class Closed:
    """Coefficients after closing, and the sums taken there.

    Attributes
    ----------
    theta
        Coefficients, (dim,).
    sums
        Closing sums at `theta`, with score products.
    steps
        Number of Newton steps that led there.
    distance_before, distance
        Distance to the optimum in standard errors, before the first step and now.
    moved
        `theta` minus the coefficients that were given, (dim,).

    Examples
    --------
    >>> import numpy as np
    >>> import fedscaffold as fs
    >>> rng = np.random.default_rng(0)
    >>> problem = fs.problems.Ridge(rng.normal(size=(3, 20, 2)), rng.normal(size=(3, 20)))
    >>> fs.inference.close(problem, np.zeros(2)).steps
    1
    """

    theta: Array
    sums: ClosingSums
    steps: int
    distance_before: float
    distance: float
    moved: Array


def newton_step(sums: ClosingSums, penalty: Array, names: tuple[str, ...] = ()) -> NewtonStep:
    """The Newton step from closing sums.

    Parameters
    ----------
    sums
        Closing sums of all clients.
    penalty
        Second derivatives of the penalty in units of the sums, (dim,): l2 times the number of records where a
        coefficient is penalised.
    names
        Names of the features, for messages.

    Raises
    ------
    InvalidInput
        If the sums do not determine the coefficients: columns that depend on each other, or classes that a
        combination of columns separates. The message names the columns.

    Examples
    --------
    >>> import numpy as np
    >>> import fedscaffold as fs
    >>> rng = np.random.default_rng(0)
    >>> X, y = rng.normal(size=(3, 20, 2)), rng.normal(size=(3, 20))
    >>> problem = fs.problems.Ridge(X, y)
    >>> step = fs.inference.newton_step(fs.inference.closing_sums(problem, np.zeros(2)), np.zeros(2))
    >>> bool(np.allclose(step.theta, problem.optimum()))
    True
    """
    refuse_undetermined(sums, penalty, names)
    inverse = inverse_hessian(sums, penalty)
    gradient = sums.gradient + penalty * sums.theta
    step = inverse @ gradient
    phi = dispersion(sums) if residual_degrees(sums) > 0 else 1.0  # with no row to spare, there is no variance
    distance = np.sqrt(max(0.0, float(gradient @ step)) / max(phi, np.finfo(np.float64).tiny))
    return NewtonStep(step=step, theta=sums.theta - step, distance=float(distance), inverse=inverse)


def inverse_hessian(sums: ClosingSums, penalty: Array, *, expected: bool = False) -> Array:
    """(Hessian + penalty)⁻¹; of several classes in the space where their coefficients sum to zero."""
    A = (sums.information if expected and sums.information is not None else sums.hessian) + np.diag(penalty)
    if sums.kind == "multinomial":
        A = A + ties(sums, penalty)
    scale = 1.0 / np.sqrt(np.diagonal(A))
    found = np.linalg.inv(A * scale * scale[:, None]) * scale * scale[:, None]
    return 0.5 * (found + found.T)


def ties(sums: ClosingSums, penalty: Array) -> Array:
    """A matrix that fixes what classes have in common, which no data determines, at zero: c Σ_k θ_k = 0."""
    K = sums.null.size
    free = penalty == 0.0
    same = np.kron(np.ones((K, K)), np.eye(sums.dim // K)) * free * free[:, None]
    return same * np.sqrt(np.outer(np.diagonal(sums.hessian), np.diagonal(sums.hessian)))


Dispersion = float | Literal["pearson"] | None


def check_dispersion(given: Any) -> Dispersion:
    """A dispersion as `dispersion` takes it; anything else is refused."""
    if given is None:
        return None
    if isinstance(given, str):
        if given == "pearson":
            return "pearson"
        raise InvalidInput(f"dispersion must be a positive number or 'pearson', got {shown(given)!r}")
    return positive("dispersion", given)


def dispersion(sums: ClosingSums, given: float | str | None = None) -> float:
    """The factor φ of the variance: 1, or Pearson's statistic over the degrees of freedom.

    `given` may be a number, or "pearson" for families that have none of their own (quasi-Poisson regression).
    """
    given = check_dispersion(given)
    if isinstance(given, float):
        return given
    if given is None and not family_of(sums.kind).dispersion:
        return 1.0
    if sums.kind == "multinomial":
        raise InvalidInput("there is no Pearson dispersion for more than two classes; leave dispersion as None")
    left = residual_degrees(sums)
    if left <= 0:
        raise InvalidInput(
            f"there are {sums.rows:,} rows for {n_parameters(sums):,} coefficients, so nothing is left to "
            "estimate the variance from; use more rows or fewer columns"
        )
    return sums.pearson / left


def has_variance(sums: ClosingSums) -> bool:
    """Whether the sums determine a variance: a family that has one needs more rows than coefficients."""
    return residual_degrees(sums) > 0 or not family_of(sums.kind).dispersion


def n_parameters(sums: ClosingSums) -> int:
    """Number of fitted coefficients, with own intercepts of clients; features that no row has have none."""
    vectors = sums.dim // sums.squares.size
    free = vectors - 1 if sums.kind == "multinomial" else vectors
    return free * int(np.count_nonzero(sums.squares)) + sums.intercepts


def residual_degrees(sums: ClosingSums) -> int:
    """Residual degrees of freedom: the number of rows minus that of fitted coefficients."""
    return sums.rows - n_parameters(sums)


def close(
    problem: Any,
    theta: Array,
    *,
    max_steps: int = 2,
    client_intercepts: bool = False,
    names: tuple[str, ...] = (),
) -> Closed:
    """Go from θ to the optimum by at most some Newton steps, each from sums that clients add up.

    Parameters
    ----------
    problem
        As in `closing_sums`.
    theta
        Coefficients to start from, (dim,).
    max_steps
        Most Newton steps; 0 leaves θ as it is. With client intercepts up to fifty are taken, since the start then
        solves another problem. A step that would raise the loss is halved.
    client_intercepts
        Whether each client has an intercept of its own.
    names
        Names of the features, for messages.

    Examples
    --------
    >>> import numpy as np
    >>> import fedscaffold as fs
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(3, 50, 2))
    >>> problem = fs.problems.Logistic(X, rng.random((3, 50)) < 0.5)
    >>> closed = fs.inference.close(problem, np.array([0.1, 0.1]))
    >>> closed.distance < 1e-4 < closed.distance_before
    True
    """
    whole_number("max_steps", max_steps, least=0)
    most = MOST_STEPS_WITH_INTERCEPTS if client_intercepts and max_steps else max_steps
    penalty = problem.n_records * problem.penalty
    start = theta = np.asarray(theta, dtype=np.float64)

    scored = most == 0
    sums = closing_sums(problem, theta, scores=scored, client_intercepts=client_intercepts)
    newton = newton_step(sums, penalty, names)
    before, steps = newton.distance, 0
    while steps < most and newton.distance > CLOSED:
        scores, here = steps + 1 == most, penalised_loss(sums, penalty)
        for halvings in range(MOST_HALVINGS):
            point = theta - 0.5**halvings * newton.step
            with np.errstate(over="ignore", invalid="ignore"):  # where a step is too long for an exponential
                found = closing_sums(problem, point, scores=scores, client_intercepts=client_intercepts)
            if penalised_loss(found, penalty) <= here + ROUNDING * abs(here):
                break
        else:
            break  # no shorter step helps; the distance says how far it is
        theta, sums, newton, steps, scored = point, found, newton_step(found, penalty, names), steps + 1, scores
    if not scored:
        sums = closing_sums(problem, theta, client_intercepts=client_intercepts)
    return Closed(
        theta=theta, sums=sums, steps=steps, distance_before=before, distance=newton.distance, moved=theta - start
    )


def penalised_loss(sums: ClosingSums, penalty: Array) -> float:
    """Σ a ℓ plus the penalty."""
    return sums.loss + 0.5 * float(penalty @ sums.theta**2)
