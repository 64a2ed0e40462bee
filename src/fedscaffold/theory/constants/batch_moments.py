"""Moments of the mean of a batch from those of single records, and the constants of A5 that follow."""

from typing import Any

import numpy as np

from fedscaffold.core.types import Array


def batch_moments(share: Array, a: Array, B: int) -> tuple[Array, Array]:
    """(E^{1/3}‖mean of B draws of a_i‖⁶, E‖a_i‖²) for centred a_i (k, n, d) of shares (k, n), each (k,).

    Exact for draws with replacement. The sixth moment of a sum of B independent centred vectors, by the ways to
    split six factors into groups that share a draw: {6}, {4, 2}, {3, 3}, {2, 2, 2}. Without replacement it is
    smaller (Hoeffding 1963).
    """
    squares = np.einsum("knd,knd->kn", a, a)
    weighted = share[..., None] * a
    cov = np.swapaxes(a, 1, 2) @ weighted
    m2, m4, m6 = ((share * squares**p).sum(axis=1) for p in (1, 2, 3))
    cov_a = np.einsum("kn,knd,kde,kne->k", share * squares, a, cov, a, optimize=True)
    skew = np.square(np.einsum("kn,knd->kd", share * squares, a)).sum(axis=1)
    gram = a @ np.swapaxes(a, 1, 2)
    third: Any = np.einsum("ki,kij,kj->k", share, gram**3, share)
    t1, t2, t3 = (np.trace(power, axis1=1, axis2=2) for power in (cov, cov @ cov, cov @ cov @ cov))
    pairs = 3 * m4 * m2 + 12 * cov_a + 6 * skew + 4 * third
    triples = t1**3 + 6 * t1 * t2 + 8 * t3
    total = B * m6 + B * (B - 1) * pairs + B * (B - 1) * (B - 2) * triples
    return np.cbrt(total) / B**2, m2


def sixth_moment(drift: Array | float, b2: Array, b4: Array | float, b6: Array | float, B: int) -> Array:
    """E^{1/3}‖mean of B draws of a_i‖⁶, an upper bound.

    Here a_i = b_i − E b with E‖a‖² ≤ b2, ‖E b‖ ≤ drift and E‖b‖^p ≤ b_p: the expansion of `batch_moments` with
    each term at its largest. For matrices b_i with E‖b u‖^p ≤ b_p‖u‖^p it bounds ℓ² of the noise's slope.
    """
    m2, m4, m6 = b2, (b4**0.25 + drift) ** 4, (b6 ** (1 / 6) + drift) ** 6
    total = B * m6 + 25 * B * (B - 1) * m4 * m2 + 15 * B * (B - 1) * (B - 2) * m2**3
    return np.cbrt(total) / B**2


def noise_constants(sixth: float, variance: float, slope2: float) -> dict[str, float]:
    """The noise assumption's pair (2 s², 2 ℓ²) and what it is made of, by their names in `theory.Constants`.

    Parameters
    ----------
    sixth
        s² = max_c E^{1/3}‖ε_c(θ*)‖⁶.
    variance
        max_c E‖ε_c(θ*)‖².
    slope2
        ℓ² with E^{1/3}‖ε_c(θ) − ε_c(θ')‖⁶ ≤ ℓ²‖θ − θ'‖².
    """
    return {
        "sigma_star2": 2.0 * sixth,
        "beta": 2.0 * slope2,
        "noise_at_optimum": sixth,
        "noise_variance_at_optimum": variance,
        "noise_lipschitz2": slope2,
    }
