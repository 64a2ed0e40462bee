"""Covariance matrices of the coefficients, from closing sums alone."""

from typing import Literal, get_args

import numpy as np

from fedscaffold.core.checks import shown
from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.types import Array
from fedscaffold.inference.closing import dispersion, inverse_hessian, n_parameters, residual_degrees
from fedscaffold.inference.sums import ClosingSums, symmetric

Covariance = Literal["nonrobust", "HC0", "HC1", "cluster"]


def covariance(
    sums: ClosingSums, penalty: Array, cov: Covariance = "nonrobust", *, given: float | str | None = None
) -> Array:
    """Return the covariance matrix of θ̂, (dim, dim).

    With A the Hessian of the penalised loss: φ A⁻¹ H A⁻¹ if the model holds, H being the Hessian without
    penalty; A⁻¹ S A⁻¹ otherwise, with S the products of scores of records (HC0; HC1 times n/(n − k)) or of
    clients (cluster, times N/(N − 1) · (n − 1)/(n − k)). As in statsmodels, HC1 has its factor for linear
    regression alone, from which it comes; for other families it equals HC0.

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
    n, k, N = sums.rows, n_parameters(sums), sums.clients
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
        factor = N / (N - 1) * (n - 1) / _positive(residual_degrees(sums), n, k)
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
