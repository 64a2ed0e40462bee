"""Likelihood, deviance, AIC and BIC from closing sums alone."""

import math
from dataclasses import dataclass

import numpy as np
from scipy.special import gammaln

from fedscaffold.inference.closing import dispersion, n_parameters
from fedscaffold.inference.families import family_of
from fedscaffold.inference.sums import ClosingSums


@dataclass(frozen=True, kw_only=True)
class FitStatistics:
    """Goodness of fit; NaN if a number is not defined.

    Attributes
    ----------
    log_likelihood, null_log_likelihood
        Of the model, and of one with a constant alone.
    aic, bic
        −2 log-likelihood + 2k, and + k log n, with k coefficients and n rows.
    deviance
        Twice the difference to the log-likelihood of a perfect fit, in units of the dispersion.
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
    phi, factor = dispersion(sums, given), 1.0
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
        log_likelihood=own,
        null_log_likelihood=other,
        aic=2.0 * k - 2.0 * own,
        bic=k * math.log(sums.rows) - 2.0 * own,
        deviance=2.0 * factor * (sums.loss - sums.saturated),
        pseudo_r2=r2,
        dispersion=phi * factor,
    )


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
