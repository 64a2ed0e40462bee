"""The chain of inequalities behind the sharp Theorem 4.8, as numbers: docs/explanation/theory/sharp.md.

All coefficients grow with the five quantities that the conditions bound, so that their values at the corner of the
conditions, where this file computes them, are the largest. What `theory.bounds` states must not be smaller.
"""

import math
from dataclasses import dataclass

import numpy as np

from fedscaffold.core.types import Array


@dataclass(frozen=True)
class Corner:
    """Limits of γH(L + μ), γHLζ₂/μ and γβ/μ; since μ ≤ L, γHμ is at most half of the first."""

    length: float = 1.0 / 24.0
    spread: float = 1.0 / 4.0
    noise: float = 1.0 / 20.0

    @property
    def g(self) -> float:
        """Largest γHμ, and largest ‖C̃_c‖ = γ(H − 1)L/2."""
        return self.length / 2.0


@dataclass(frozen=True)
class Free:
    """The free numbers of the proof: any positive ones are allowed, these make the constants small."""

    tau: float
    t: float
    delta: float
    phi: float
    phi_prime: float


SECOND, FOURTH, SIXTH = (
    Free(14.0, 1 / 20, 1.0, 1.0, 1.0),
    Free(14.0, 1 / 20, 2 / 5, 2 / 5, 1 / 4),
    Free(14.0, 1 / 20, 3 / 10, 1 / 2, 1 / 4),
)


@dataclass(frozen=True)
class Moment:
    """E^{1/p}‖X − X*‖^{2p}_Λ ≤ whole γσ*²/μ, the same of every local model ≤ local γσ*²/μ."""

    rate: float  # r: M⁺ ≤ (1 − rγμ) M + ... in one local step
    noise: float  # ... + noise γ²σ*²
    carried: float  # ... + what the control variates add over a round, at most carried γ²H²‖ξ_c − ξ*_c‖²
    whole: float
    local: float


def binomial_terms(p: int, delta: float) -> tuple[float, float, float]:
    """c₁, c₂, c₃ with Σ_{k≥2} C(2p, k) a^{2p−k} b^k ≤ c₁ a^{2p−2} b² + c₂ a^{2p−4} b⁴ + c₃ a^{2p−6} b⁶."""
    if p == 1:
        return 1.0, 0.0, 0.0
    if p == 2:
        return 6.0 + 2.0 * delta, 1.0 + 2.0 / delta, 0.0
    return 15.0 + 10.0 * delta, 18.0 + 10.0 / delta, 4.0


def martingale(p: int) -> float:
    """κ with E^{1/p}‖Σ_h u_h‖^{2p} ≤ κ Σ_h E^{1/p}‖u_h‖^{2p} for martingale differences u_h."""
    if p == 1:
        return 1.0
    c1, c2, c3 = binomial_terms(p, 0.2 if p == 2 else 0.15)
    if p == 2:
        return max(c1 / 2.0, math.sqrt(c2))
    return max(c1 / 3.0, math.sqrt(c2 / 3.0), c3 ** (1 / 3))


def moment(p: int, corner: Corner, free: Free) -> Moment:
    """The one-step inequality of order 2p, its sum over a round and over rounds, and local models."""
    gL, gHL, g = corner.length, corner.length, corner.g  # γL is at most γHL
    c1, c2, c3 = binomial_terms(p, free.delta)
    kappa = gL + corner.noise
    kappa_w = (1.0 + 1.0 / free.phi_prime) * gL + (1.0 + free.phi_prime) * corner.noise
    up, down = 1.0 + 1.0 / free.phi, 1.0 + free.phi
    rho = 2.0 * p - p / free.tau - c1 * kappa - 2.0 * c2 * up * gL * kappa_w**2
    rho -= 8.0 * c3 * up**2 * gL**2 * kappa_w**3
    assert rho > 0
    r = rho * (1.0 - free.t) / p
    after = 1.0 - r * g  # (1 − rγμ)^H is at least this, and so is 1 − rγμ
    noises = [c1 / p / after ** (p - 1)]
    first = p * free.tau * gHL + rho * (1.0 / free.t - 1.0) * g + 4.0 * c2 * up * gL * gHL * kappa_w**2
    carries = [first / p / after ** (p - 1)]
    if p == 2:
        noises.append(math.sqrt(c2 * down) * (1.0 + free.phi_prime))
        carries.append(2.0 * math.sqrt(c2 * up) * kappa_w * gHL)
    if p == 3:
        noises.append(math.sqrt(c2 * down / 3.0 / after) * (1.0 + free.phi_prime))
        noises.append((c3 * down**2) ** (1 / 3) * (1.0 + free.phi_prime))
        both = 4.0 * c2 * up * kappa_w**2 + 16.0 * c3 * up**2 * gL * kappa_w**3
        carries.append(math.sqrt(both / 3.0 / after) * gHL)
        carries.append((16.0 * c3 * up**2) ** (1 / 3) * kappa_w * gHL)
    noise, carried = max(noises), max(carries) / 3.0
    assert carried <= after  # so that a round contracts the control variates' part too
    whole = noise / r
    return Moment(r, noise, carried, whole, local_moment(p, corner, whole, noise, carried))


def local_moment(p: int, corner: Corner, whole: float, noise: float, carried: float) -> float:
    """The fixed point of m ≤ (√(whole + noise γHμ + carried a) + √a)², a = γ²H²E^{1/p}‖ξ_c − ξ*_c‖^{2p}."""
    pairs = {1: 2.0, 2: math.sqrt(8.0), 3: 4.0}[p]  # of ε̄ − ε_c against one ε_c
    m = whole
    for _ in range(400):
        a = (
            2.0 * corner.length * math.sqrt(m)
            + math.sqrt(martingale(p) * pairs * corner.g * (1 + corner.noise * m))
        ) ** 2
        m = (math.sqrt(whole + noise * corner.g + carried * a) + math.sqrt(a)) ** 2
    return m


def contraction_rate(corner: Corner, free: Free) -> float:
    """r with E‖X⁺ − X'⁺‖²_Λ ≤ (1 − rγμ)^H ‖X − X'‖²_Λ for two chains that draw the same records."""
    rho = 2.0 - 1.0 / free.tau - corner.length
    r = rho * (1.0 - free.t)
    assert (free.tau * corner.length + rho * (1.0 / free.t - 1.0) * corner.g) / 3.0 <= 1.0 - r * corner.g
    return r


def noise_matrix(corner: Corner) -> tuple[Array, Array]:
    """(M, n) of the three inequalities M (A, B, C) ≤ n γ²Σw_c² 𝔑 of the part that noise drives."""
    g = c = corner.g
    h = g * corner.spread * (1.0 + 2.0 * corner.length) / 2.0  # γHc times the mean of ‖Δ_c‖
    matrix = [[2 * g * (1 - g), -2.0, -1.0], [-h, 1 - 2 * c - h, -2 * c], [-h * h, -4 * c * h, 1 - 4 * c * c]]
    return np.array(matrix), np.array([1.0, c, c * c])


def covariance_constant(corner: Corner, local: float) -> float:
    """α of E‖θ_U‖² ≤ α γσ*²Σw_c²/μ, from E‖ε_c‖² ≤ σ*² + β·local·γσ*²/μ."""
    matrix, noise = noise_matrix(corner)
    assert (np.linalg.inv(matrix) >= 0).all()  # so that inequalities may be solved like equations
    return float(np.linalg.solve(matrix, noise)[0]) * corner.g * (1.0 + corner.noise * local)


def remainder_constant(corner: Corner, local: float) -> float:
    """b of E^{1/2}‖θ_V‖² ≤ b Qγσ*²/μ²."""
    g = c = corner.g
    z = corner.spread * (1.0 + 2.0 * corner.length)
    return (1.0 + c / (1.0 - 2.0 * c)) / (1.0 - g / 2.0 - z / (2.0 - 4.0 * c)) * local / 2.0
