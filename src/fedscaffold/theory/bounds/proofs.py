"""The two proofs of the linear speed-up: their conditions, their bounds, and the step size that a target allows.

"sharp" is this library's, by fourth moments, in docs/explanation/theory/sharp.md; "paper" is the paper's chain.
Both bound E‖θ − θ*‖² under the stationary law, and E‖θ^T − θ*‖² after T rounds.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from fedscaffold.theory.bounds.conditions import BELOW, Condition, Proof, noise_pair, rate, short_round
from fedscaffold.theory.problem_constants import Constants

Checked = tuple[float, tuple[Condition, ...]]


class StepSizes(NamedTuple):
    """What a target allows: γ, the share of the target's root that is left for the start, the largest useful N."""

    gamma: float
    left: float
    largest_n_clients: int


class SpeedUpProof(Protocol):
    """What the statements on the linear speed-up take from a proof; `share` is Σ w_c²."""

    def noise(self, constants: Constants, gamma: float, H: int) -> Checked:
        """σ*² and the conditions on γ and H."""

    def stationary(self, constants: Constants, gamma: float, H: float, share: float, sigma2: float) -> float:
        """Bound on E‖θ − θ*‖² under the stationary law."""

    def finite_time(
        self, constants: Constants, gamma: float, H: int, share: float, sigma2: float, T: int, distance2: float
    ) -> float:
        """Bound on E‖θ^T − θ*‖² from ‖X⁰ − X*‖²_Λ = distance2."""

    def longest_round(self, constants: Constants) -> float:
        """The largest γH that the conditions allow."""

    def step_size(self, constants: Constants, length: float, target: float, n_clients: int) -> StepSizes:
        """γ for which the part of the error that stays is below a share of the target, with γH = length."""

    def rounds(
        self, constants: Constants, gamma: float, H: int, sigma2: float, distance2: float, left: float
    ) -> int:
        """T after which the start's part of the error is at most `left`, in the units of `StepSizes.left`."""


@dataclass(frozen=True)
class SharpProof:
    """E‖θ − θ*‖² ≤ (√(0.7 γσ*²Σw_c²/μ) + 3.4 Qγσ*²/μ²)², and at most 0.6 γσ*²/μ; rounds contract by (1 − 7γμ/4)^H.

    The constants are rounded up from those of the proof, which the tests compute again.
    """

    length: float = 24.0  # γH(L + μ) ≤ 1/24
    spread: float = 4.0  # γHLζ₂ ≤ μ/4
    share_of_noise: float = 20.0  # γβ ≤ μ/20
    linear: float = 0.7
    curved: float = 3.4
    second_moment: float = 0.6
    contraction: float = 1.75
    stationary_part: float = 0.8  # of the root of the target; the rest is for what is left of the start
    small: float = 0.1  # of that part: up to where the curved term counts as small

    def noise(self, constants: Constants, gamma: float, H: int) -> Checked:
        """σ*² and the conditions on γ and H; smoothness of single records is not needed."""
        mu, L = constants.mu, constants.L
        sigma2, beta = noise_pair(constants, mu / (self.share_of_noise * gamma))
        return sigma2, (
            Condition("γHLζ₂ ≤ μ/4", gamma * H * L * constants.zeta2, mu / self.spread),
            short_round(gamma, H, L, mu, int(self.length)),
            Condition("γβ ≤ μ/20", gamma * beta, mu / self.share_of_noise),
        )

    def stationary(self, constants: Constants, gamma: float, H: float, share: float, sigma2: float) -> float:
        """(√(0.7 γσ*²Σw_c²/μ) + 3.4 Qγσ*²/μ²)², or the second moment, which does not fall with N, if smaller."""
        mu = constants.mu
        root = math.sqrt(self.linear * gamma * sigma2 * share / mu)
        return min(
            (root + self.curved * constants.Q * gamma * sigma2 / mu**2) ** 2, self._second(mu, gamma, sigma2)
        )

    def finite_time(
        self, constants: Constants, gamma: float, H: int, share: float, sigma2: float, T: int, distance2: float
    ) -> float:
        """(√(rate)^{HT} (‖X⁰ − X*‖_Λ + √(0.6γσ*²/μ)) + √stationary)², by the triangle inequality."""
        start = math.sqrt(distance2) + math.sqrt(self._second(constants.mu, gamma, sigma2))
        shrunk = rate(self.contraction * gamma * constants.mu, 0.5 * H * T)
        return (shrunk * start + math.sqrt(self.stationary(constants, gamma, H, share, sigma2))) ** 2

    def longest_round(self, constants: Constants) -> float:
        """min{1/(24(L + μ)), μ/(4Lζ₂)}."""
        length = BELOW / (self.length * (constants.L + constants.mu))
        if constants.zeta2 > 0:
            length = min(length, BELOW * constants.mu / (self.spread * constants.L * constants.zeta2))
        return length

    def step_size(self, constants: Constants, length: float, target: float, n_clients: int) -> StepSizes:
        """√γ is the root of curved · √γ² + linear · √γ = 0.8 √target, or γ what the second moment allows."""
        mu, sigma2 = constants.mu, constants.sigma_star2
        part = self.stationary_part * math.sqrt(target)
        limit = length if constants.beta == 0 else min(length, BELOW * mu / (self.share_of_noise * constants.beta))
        if sigma2 == 0:
            return StepSizes(limit, math.sqrt(target) - part, 0)
        p = math.sqrt(self.linear * sigma2 * constants.design_effect / (n_clients * mu))
        q = self.curved * constants.Q * sigma2 / mu**2
        root = 2.0 * part / (p + math.sqrt(p * p + 4.0 * q * part))
        gamma = BELOW * max(root**2, part**2 * mu / (self.second_moment * sigma2))
        one = (
            BELOW * part**2 * mu / (self.linear * sigma2 * constants.design_effect)
        )  # γ of one client, noise alone
        if q > 0:
            one *= (1.0 - self.small) ** 2
        largest = min(limit, self.small * part / q) if q > 0 else limit
        return StepSizes(min(gamma, limit), math.sqrt(target) - part, math.floor(largest / one))

    def rounds(
        self, constants: Constants, gamma: float, H: int, sigma2: float, distance2: float, left: float
    ) -> int:
        """T with (1 − 7γμ/4)^{HT/2} (‖X⁰ − X*‖_Λ + √(0.6γσ*²/μ)) ≤ left."""
        start = math.sqrt(distance2) + math.sqrt(self._second(constants.mu, gamma, sigma2))
        per_round = -0.5 * H * math.log1p(-self.contraction * gamma * constants.mu)
        return max(1, math.ceil(math.log(max(1.0, start / left)) / per_round))

    def _second(self, mu: float, gamma: float, sigma2: float) -> float:
        return self.second_moment * gamma * sigma2 / mu


@dataclass(frozen=True)
class PaperProof:
    """10γσ*²/(Nμ) + 6·15080 γ^{3/2}Qσ*³/μ^{5/2} + 48·600² γ³HQ²σ*⁴/μ³, with 1/N → Σ w_c²: the paper's chain."""

    linear: float = 10.0
    three_halves: float = 6.0 * 15080.0
    cubic: float = 48.0 * 600.0**2
    stationary_part: float = 0.8  # of the target; the rest is for what is left of the start

    def noise(self, constants: Constants, gamma: float, H: int) -> Checked:
        """σ*² and the conditions on γ and H."""
        mu, L = constants.mu, constants.L
        sigma2, beta = noise_pair(constants, mu / (19.0 * gamma))
        which = "L_record" if constants.Q > 0 else "L"
        return sigma2, (
            Condition("γHLζ₂ ≤ μ/10", gamma * H * L * constants.zeta2, mu / 10.0),
            short_round(gamma, H, _smoothness(constants), mu, 48, which),
            Condition("γβ ≤ μ/19", gamma * beta, mu / 19.0),
        )

    def stationary(self, constants: Constants, gamma: float, H: float, share: float, sigma2: float) -> float:
        """The sum of the three terms."""
        return self.linear * gamma * sigma2 * share / constants.mu + self._curved(constants, gamma, H, sigma2)

    def finite_time(
        self, constants: Constants, gamma: float, H: int, share: float, sigma2: float, T: int, distance2: float
    ) -> float:
        """(1 − γμ/4)^{HT} {4‖X⁰ − X*‖²_Λ + 64γσ*²/μ} + 2 · stationary."""
        left = rate(gamma * constants.mu / 4.0, H * T) * self._start(constants.mu, gamma, sigma2, distance2)
        return left + 2.0 * self.stationary(constants, gamma, H, share, sigma2)

    def longest_round(self, constants: Constants) -> float:
        """min{1/(48(L + μ)), μ/(10Lζ₂)}, with the smoothness of single records where Q > 0."""
        length = BELOW / (48.0 * (_smoothness(constants) + constants.mu))
        if constants.zeta2 > 0:
            length = min(length, BELOW * constants.mu / (10.0 * constants.L * constants.zeta2))
        return length

    def step_size(self, constants: Constants, length: float, target: float, n_clients: int) -> StepSizes:
        """γ ∝ N while the terms that N does not divide stay below half of what they may be."""
        from scipy.optimize import brentq  # here, as it is slow to import and seldom needed

        mu, Q, sigma2 = constants.mu, constants.Q, constants.sigma_star2
        room = self.stationary_part * target / (1.0 if Q == 0 else 2.0)
        left = (1.0 - self.stationary_part) * target

        def not_in_n(gamma: float) -> float:
            """Twice the last two of the three terms at this γH."""
            return 2.0 * self._curved(constants, gamma, length / gamma, sigma2)

        limit = length if constants.beta == 0 else min(length, BELOW * mu / (19.0 * constants.beta))
        if not_in_n(limit) > room:
            low = limit * room / not_in_n(limit)  # enough, as all powers of γ are larger than 1
            log_gamma = brentq(lambda u: math.log(not_in_n(math.exp(u)) / room), math.log(low), math.log(limit))
            limit = BELOW * math.exp(log_gamma)
        if sigma2 == 0:
            return StepSizes(limit, left, 0)
        one = BELOW * room * mu / (2.0 * self.linear * sigma2 * constants.design_effect)
        return StepSizes(min(n_clients * one, limit), left, math.floor(limit / one))

    def rounds(
        self, constants: Constants, gamma: float, H: int, sigma2: float, distance2: float, left: float
    ) -> int:
        """T with (1 − γμ/4)^{HT} {4‖X⁰ − X*‖²_Λ + 64γσ*²/μ} ≤ left."""
        times = max(1.0, self._start(constants.mu, gamma, sigma2, distance2) / left)
        return max(1, math.ceil(math.log(times) / (-H * math.log1p(-gamma * constants.mu / 4.0))))

    def _curved(self, constants: Constants, gamma: float, H: float, sigma2: float) -> float:
        mu, Q = constants.mu, constants.Q
        three_halves = self.three_halves * Q * gamma**1.5 * sigma2**1.5 / mu**2.5
        return float(three_halves + self.cubic * H * Q**2 * gamma**3 * sigma2**2 / mu**3)

    def _start(self, mu: float, gamma: float, sigma2: float, distance2: float) -> float:
        return 4.0 * distance2 + 64.0 * gamma * sigma2 / mu


PROOFS: dict[Proof, SpeedUpProof] = {"sharp": SharpProof(), "paper": PaperProof()}


def _smoothness(constants: Constants) -> float:
    """The paper's sixth moments need smoothness of every record where Q > 0."""
    return constants.L_record if constants.Q > 0 else constants.L
