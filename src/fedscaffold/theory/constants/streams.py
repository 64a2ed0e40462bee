"""The constants of assumptions A1 to A6 of clients that are distributions; they hold for all θ."""

import math

import numpy as np

from fedscaffold.core.capabilities import HasResidualVariances, PopulationMoments
from fedscaffold.core.random.batches import Batches
from fedscaffold.core.types import Array
from fedscaffold.theory.client_blocks import noise_factors
from fedscaffold.theory.constants.batch_moments import noise_constants, sixth_moment
from fedscaffold.theory.constants.heterogeneity import client_constants


def stream_constants(problem: PopulationMoments, batches: Batches) -> dict[str, float]:
    """Values of the fields of `theory.Constants`, by name; no record is bounded, so that L_record is infinite.

    Of records x ~ N(0, s_c Λ): Hölder's inequality for E|xᵀu|²|xᵀv| and E|xᵀu|³|xᵀv| with unit u and v.
    """
    theta = problem.optimum()
    kappa3, kappa4 = problem.margin_derivative_bounds
    top = problem.largest_scale * float(problem.spectrum.max())
    return {
        "mu": problem.strong_convexity(),
        "L": problem.smoothness(batches),
        "L_record": math.inf,
        "Q": kappa3 * (2.0 * math.sqrt(2.0 / math.pi) * top**1.5),
        "G": kappa4 * (3.0 * top**2),
        **client_constants(problem, theta),
        **_noise_constants(problem, theta, top, float(noise_factors(problem, batches)[0]), batches.size or 1),
    }


def _noise_constants(
    problem: PopulationMoments, theta: Array, top: float, factor: float, B: int
) -> dict[str, float]:
    """A5's constants at θ*; `top` is the largest variance of any xᵀu, `factor` 1/B, or 0 for full gradients.

    Cauchy and Schwarz's inequality between |ℓ'| and ‖x‖; the sixth moment of a mean of B by the ways in which six
    factors share a record, each at its largest.
    """
    if factor == 0.0:
        return noise_constants(0.0, 0.0, 0.0)
    everyone = np.arange(problem.n_clients)
    gradient, _, covariance = problem.averages(
        everyone, np.broadcast_to(theta, (everyone.size, 1, 1, problem.dim))
    )
    pull = np.linalg.norm(gradient[:, 0] - problem.l2 * theta, axis=1)
    m2 = np.trace(covariance[:, 0], axis1=1, axis2=2)
    scale, _ = problem.law(everyone)
    norms = {p: scale ** (p / 2) * norm_moment(problem.spectrum, p // 2) for p in (4, 6, 8, 12)}
    if isinstance(problem, HasResidualVariances):
        square = problem.residual_variances(theta, everyone)
        m4, m6 = np.sqrt(105.0 * square**4 * norms[8]), np.sqrt(10395.0 * square**6 * norms[12])
    else:  # logistic regression, with |ℓ'| ≤ 1
        m4, m6 = norms[4], norms[6]
    noise = sixth_moment(pull, m2, m4, m6, B)
    kappa, total = problem.curvature, problem.largest_scale * float(problem.spectrum.sum())
    worst = {p: problem.largest_scale ** (p / 2) * norm_moment(problem.spectrum, p // 2) for p in (8, 12)}
    b2 = kappa**2 * (total * top + 2.0 * top**2)
    b4 = kappa**4 * math.sqrt(105.0 * top**4 * worst[8])
    b6 = kappa**6 * math.sqrt(10395.0 * top**6 * worst[12])
    slope = sixth_moment(kappa * top, np.array(b2), b4, b6, B)
    return noise_constants(float(noise.max()), factor * float(m2.max()), float(slope))


def norm_moment(spectrum: Array, n: int) -> float:
    """E‖x‖²ⁿ for x ~ N(0, diag(spectrum)), from the cumulants 2ʲ⁻¹ (j − 1)! Σ λʲ of ‖x‖²."""
    cumulants = [2.0 ** (j - 1) * math.factorial(j - 1) * float((spectrum**j).sum()) for j in range(1, n + 1)]
    found = [1.0]
    for k in range(1, n + 1):
        found.append(sum(math.comb(k - 1, j - 1) * cumulants[j - 1] * found[k - j] for j in range(1, k + 1)))
    return found[n]
