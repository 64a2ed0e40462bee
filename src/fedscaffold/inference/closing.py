"""Newton steps, covariance, dispersion, degrees of freedom and likelihood from closing sums."""

import math
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln

from fedscaffold.core.checks import positive, shown
from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.types import Array
from fedscaffold.inference.diagnosis import check_determined
from fedscaffold.inference.sums import ClosingSums, symmetric
from fedscaffold.problems.families import family_of

ROUNDING = 1e-12  # relative error below which rounding hides the distance


@dataclass(frozen=True, kw_only=True, eq=False)
class Certificate:
    """The Newton step from sums over all clients, and the distance of a model to the optimum that it implies.

    Parameters
    ----------
    theta
        The model, (dim,).
    loss
        The penalised loss per row, f(θ).
    step
        A⁻¹g, (dim,): the distance to the optimum, coefficient by coefficient, up to its square.
    decrement
        ½ gᵀA⁻¹g: how far f(θ) is above its minimum, up to higher order.
    slopes
        Whether each coefficient is a slope, (dim,).
    standard_errors
        Standard error of each coefficient, (dim,); None without Hessians, or with too few rows.
    sums
        The closing sums; None if clients add up gradients alone.
    distance
        √(gᵀA⁻¹g/φ), the Newton decrement in units of standard errors: an upper bound on the distance of any
        combination of coefficients to the optimum, in its standard errors. NaN without Hessians.
    unsolved
        Bound on the length of the part of `step` that was not solved for.
    penalty
        Second derivatives of the penalty in units of the sums, (dim,); None if there are none.

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

    theta: Array
    loss: float
    step: Array
    decrement: float
    slopes: NDArray[np.bool_]
    standard_errors: Array | None = None
    sums: ClosingSums | None = None
    distance: float = math.nan
    unsolved: float = 0.0
    penalty: Array | None = None

    @property
    def error_in_standard_errors(self) -> float | None:
        """The largest distance of a coefficient to the optimum, in its standard errors; None if not known.

        A distance within the rounding error of the coefficients counts as 0: standard errors of a perfect fit are
        as small.
        """
        if self.standard_errors is None:
            return None
        distance = np.abs(self.step)
        distance = np.where(distance <= ROUNDING * np.abs(self.theta).max(), 0.0, distance)
        return float((distance / self.standard_errors).max())

    @property
    def relative_error(self) -> float:
        """‖A⁻¹g‖ / ‖θ − A⁻¹g‖ over the slopes; at least the rounding error."""
        norm = float(np.linalg.norm((self.theta - self.step)[self.slopes]))
        length = float(np.linalg.norm(self.step[self.slopes])) + self.unsolved
        if length == 0.0:
            return ROUNDING
        return max(length / norm, ROUNDING) if norm else math.inf


def newton_step(
    sums: ClosingSums, penalty: Array, names: tuple[str, ...] = (), *, slopes: NDArray[np.bool_] | None = None
) -> Certificate:
    """Return the Newton step from closing sums, with the distance to the optimum.

    Parameters
    ----------
    sums
        Closing sums of all clients.
    penalty
        Second derivatives of the penalty in units of the sums, (dim,): l2 times the number of records for each
        penalised coefficient, else 0.
    names
        Names of the features, for messages.
    slopes
        Whether each coefficient is a slope, (dim,); by default all are.

    Returns
    -------
    Certificate

    Raises
    ------
    InvalidInput
        If columns depend on each other, or a column separates the classes. The message names the columns.

    Examples
    --------
    >>> import numpy as np
    >>> import fedscaffold as fs
    >>> rng = np.random.default_rng(0)
    >>> X, y = rng.normal(size=(3, 20, 2)), rng.normal(size=(3, 20))
    >>> problem = fs.problems.Ridge(X, y)
    >>> step = fs.inference.newton_step(fs.inference.closing_sums(problem, np.zeros(2)), np.zeros(2))
    >>> bool(np.allclose(step.theta - step.step, problem.optimum()))
    True
    """
    check_determined(sums, penalty, names)
    gradient = sums.gradient + penalty * sums.theta
    step = inverse_hessian(sums, penalty) @ gradient
    phi = dispersion(sums) if residual_degrees(sums) > 0 else 1.0  # with no row to spare, there is no variance
    distance = np.sqrt(max(0.0, float(gradient @ step)) / max(phi, np.finfo(np.float64).tiny))
    errors = None
    if has_variance(sums):
        errors = np.sqrt(np.maximum(np.diagonal(covariance(sums, penalty)), np.finfo(np.float64).tiny))
    return Certificate(
        theta=sums.theta, loss=sums.penalised_loss(penalty), step=step, sums=sums, penalty=penalty,
        decrement=0.5 * float(gradient @ step) / sums.rows, distance=float(distance), standard_errors=errors,
        slopes=np.ones(sums.dim, dtype=bool) if slopes is None else slopes,
    )  # fmt: skip


def inverse_hessian(sums: ClosingSums, penalty: Array, *, expected: bool = False) -> Array:
    """Return (Hessian + penalty)⁻¹; of several classes in the space of coefficients that sum to zero."""
    A = (sums.information if expected and sums.information is not None else sums.hessian) + np.diag(penalty)
    if sums.kind == "multinomial":
        A = A + ties(sums, penalty)
    scale = 1.0 / np.sqrt(np.diagonal(A))
    return symmetric(np.linalg.inv(A * scale * scale[:, None]) * scale * scale[:, None])


def ties(sums: ClosingSums, penalty: Array) -> Array:
    """Return a matrix that holds the sum Σ_k θ_k over classes, which no data determine, at zero."""
    K = sums.null.size
    free = penalty == 0.0
    same = np.kron(np.ones((K, K)), np.eye(sums.dim // K)) * free * free[:, None]
    return same * np.sqrt(np.outer(np.diagonal(sums.hessian), np.diagonal(sums.hessian)))


Covariance = Literal["nonrobust", "HC0", "HC1", "cluster"]
Dispersion = float | Literal["pearson"] | None


def check_dispersion(given: Any) -> Dispersion:
    """Return a dispersion as `dispersion` takes it; raise if it is another value."""
    if given is None:
        return None
    if isinstance(given, str):
        if given == "pearson":
            return "pearson"
        raise InvalidInput(f"dispersion must be a positive number or 'pearson', got {shown(given)!r}")
    return positive("dispersion", given)


def dispersion(sums: ClosingSums, given: float | str | None = None) -> float:
    """Return the factor φ of the variance: 1, or Pearson's statistic over the degrees of freedom.

    `given` may be a number, or "pearson" to estimate φ for families without one (quasi-Poisson regression).
    """
    given = check_dispersion(given)
    if isinstance(given, float):
        return given
    if given is None and not family_of(sums.kind).dispersion:
        return 1.0
    if sums.kind in ("multinomial", "cox"):
        kind = "kind='cox'" if sums.kind == "cox" else "more than two classes"
        raise InvalidInput(f"there is no Pearson dispersion for {kind}; leave dispersion as None")
    left = residual_degrees(sums)
    if left <= 0:
        raise InvalidInput(
            f"there are {sums.rows:,} rows for {n_parameters(sums):,} coefficients, so nothing is left to "
            "estimate the variance from; use more rows or fewer columns"
        )
    return sums.pearson / left


def has_variance(sums: ClosingSums) -> bool:
    """Return whether the sums determine a variance: with a dispersion, rows must outnumber coefficients."""
    return residual_degrees(sums) > 0 or not family_of(sums.kind).dispersion


def n_parameters(sums: ClosingSums) -> int:
    """Return the number of fitted coefficients and clients' intercepts, without features that are always 0."""
    vectors = sums.dim // sums.squares.size
    free = vectors - 1 if sums.kind == "multinomial" else vectors
    return free * int(np.count_nonzero(sums.squares)) + sums.intercepts


def residual_degrees(sums: ClosingSums) -> int:
    """Return the residual degrees of freedom: the number of rows minus that of fitted coefficients."""
    return sums.rows - n_parameters(sums)


def covariance(
    sums: ClosingSums, penalty: Array, cov: Covariance = "nonrobust", *, given: float | str | None = None
) -> Array:
    """Return the covariance matrix of θ̂, (dim, dim).

    With A the Hessian of the penalised loss: φ A⁻¹ H A⁻¹ if the model holds, H being the Hessian without
    penalty; A⁻¹ S A⁻¹ otherwise, with S the products of scores of records (HC0; HC1 times n/(n − k)) or of
    clients (cluster, times N/(N − 1) · (n − 1)/(n − k)). As in statsmodels, HC1 has its factor for linear
    regression alone, from which it comes; for other families it equals HC0. Of Cox regression, cluster has no
    factor, and scores are the score residuals of the partial likelihood, as in statsmodels' PHReg.

    Parameters
    ----------
    sums, penalty
        As in `newton_step`.
    cov
        Which of the four.
    given
        The dispersion φ; see `dispersion`.
    """
    if cov not in get_args(Covariance):
        raise InvalidInput(f"cov must be one of {', '.join(map(repr, get_args(Covariance)))}, got {shown(cov)!r}")
    n, k, N, baseline = sums.rows, n_parameters(sums), sums.clients, family_of(sums.kind).baseline
    if cov == "nonrobust":
        H = sums.hessian if sums.information is None else sums.information
        inverse = inverse_hessian(sums, penalty, expected=True)
        found = inverse if not penalty.any() and sums.kind != "multinomial" else inverse @ H @ inverse
        return dispersion(sums, given) * symmetric(found)
    inverse = inverse_hessian(sums, penalty)
    if cov == "cluster":
        if N < 2:
            raise InvalidInput("cov='cluster' compares clients, and there is one only; use 'HC1' or 'nonrobust'")
        middle = sums.cluster_products - np.outer(sums.gradient, sums.gradient) / N
        factor = 1.0 if baseline else N / (N - 1) * (n - 1) / _positive(residual_degrees(sums), n, k)
    else:
        middle = sums.score_products - np.outer(sums.gradient, sums.gradient) / n
        factor = 1.0 if cov == "HC0" or sums.kind != "ridge" else n / _positive(residual_degrees(sums), n, k)
    return factor * symmetric(inverse @ middle @ inverse)


def _positive(left: int, n: int, k: int) -> int:
    if left <= 0:
        raise InvalidInput(
            f"there are {n:,} rows for {k:,} coefficients, too few for these standard errors; use more rows or "
            "fewer columns"
        )
    return left


@dataclass(frozen=True, kw_only=True)
class FitStatistics:
    """Goodness of fit; NaN if a number is not defined.

    Attributes
    ----------
    log_likelihood, null_log_likelihood
        Of the model, and of one with a constant alone; for Cox regression partial ones, of the baselines alone.
    aic, bic
        −2 log-likelihood + 2k, and + k log n, with k coefficients and n rows, or events of Cox regression.
    deviance
        Twice the difference to the log-likelihood of a perfect fit, in units of the dispersion; NaN without one.
    pseudo_r2
        1 − log-likelihood / null log-likelihood (McFadden); for a Gaussian target R² itself.
    dispersion
        φ, the factor of the variance.
    """

    log_likelihood: float
    null_log_likelihood: float
    aic: float
    bic: float
    deviance: float
    pseudo_r2: float
    dispersion: float


def fit_statistics(
    sums: ClosingSums, *, given: float | str | None = None, target_scale: float = 1.0
) -> FitStatistics:
    """Return the statistics of a fit.

    Parameters
    ----------
    sums
        Closing sums of all clients.
    given
        The dispersion φ; see `dispersion`.
    target_scale
        Factor by which a Gaussian target was divided before the fit; the numbers are for the target as it was.
    """
    null = family_of(sums.kind).null_loss(sums.null, sums.weight)
    phi, factor, observed = dispersion(sums, given), 1.0, float(sums.rows)
    saturated = sums.saturated
    if family_of(sums.kind).baseline:  # no model fits every row, and censored rows tell little
        observed, saturated = float(sums.null[0]), math.nan
    if sums.kind == "ridge":
        factor = target_scale**2
        own, other = (_gaussian(sums, factor * loss) for loss in (sums.loss, null))
        r2 = 1.0 - sums.loss / null if null > 0.0 else math.nan
    elif sums.kind == "gamma":
        own, other = (_gamma(sums, loss, phi) for loss in (sums.loss, null))
        r2 = math.nan
    elif given is not None:  # a quasi-likelihood: the variance is no longer the family's
        own = other = r2 = math.nan
    else:
        own, other = sums.constant - sums.loss, sums.constant - null
        r2 = 1.0 - own / other if other < 0.0 else math.nan
    k = n_parameters(sums)
    return FitStatistics(
        log_likelihood=own, null_log_likelihood=other, aic=2.0 * k - 2.0 * own,
        bic=k * math.log(observed) - 2.0 * own, deviance=2.0 * factor * (sums.loss - saturated),
        pseudo_r2=r2, dispersion=phi * factor,
    )  # fmt: skip


def _gaussian(sums: ClosingSums, loss: float) -> float:
    """Return the log-likelihood at the variance that fits best, Σ a (y − z)²/n; constant is Σ log a."""
    n = sums.rows
    if loss <= 0.0:
        return math.inf
    return -0.5 * n * (math.log(2.0 * math.pi * 2.0 * loss / n) + 1.0) + 0.5 * sums.constant


def _gamma(sums: ClosingSums, loss: float, phi: float) -> float:
    """Return the log-likelihood at φ; constant is Σ a log y. NaN if weights differ."""
    if not np.isclose(sums.weight, sums.rows, rtol=1e-12):
        return math.nan
    shape, n = 1.0 / phi, sums.rows
    return n * shape * math.log(shape) - shape * loss + (shape - 1.0) * sums.constant - n * float(gammaln(shape))
