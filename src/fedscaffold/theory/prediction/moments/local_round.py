"""The H local steps of every client: mean, covariance, and how both depend on where the round began.

Around its mean the local model of client c is, with y = (θ, ξ_c) at the start of the round,

    θ_c^h = B_h y + n_h,     B_{h+1} = Γ_h B_h − γ [0 I],     Cov n_{h+1} = Γ_h Cov n_h Γ_h + γ² C_h,

where Γ_h = I − γG_h, G_h and C_h are the mean curvature and the mean noise over the cloud N(mean, Cov θ_c^h) of
that step, and the mean follows the mean gradient over it. For ridge this is exact, and without noise for all
problems.

Where G_h, C_h and the gradient hardly change from step to step, k steps are taken at once: with their values in
the middle of the k steps, found by a first try with those at their beginning. The difference between the two
tries says whether k was too many.

For generalised linear problems that are not quadratic the third cumulants of the clouds are followed too; see
`third_order`.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from fedscaffold.core.types import Array
from fedscaffold.theory.client_blocks import ClientBlock, list_blocks
from fedscaffold.theory.prediction.clouds.averages import Averages
from fedscaffold.theory.prediction.local_steps import divided
from fedscaffold.theory.prediction.moments.noiseless import noiseless_steps
from fedscaffold.theory.prediction.moments.skewed_margins import SkewedMargins
from fedscaffold.theory.prediction.moments.third_order import (
    Bend,
    Third,
    Tilts,
    advance_third,
    bend_of,
    cloud_skewness,
    turned,
)
from fedscaffold.theory.prediction.setting import Setting

CHANGE = 0.02  # of the cloud's size that two tries may differ by; the better of them is used
NARROWEST = 1e-6  # of the largest variance of θ or ξ_c: directions with less of it are taken as known
GROW = 0.5  # of CHANGE: below it, twice as many steps are tried
LONG_ROUND, SINGLES = 500, 16  # in rounds of so many steps, two at once are tried again after so many single ones
STEP_BY_STEP = 12  # local steps: up to so many are taken one by one


@dataclass(frozen=True, eq=False)
class Start:
    """Mean, covariance and third cumulants of y = (θ, ξ_c) as a round begins, relative to θ* and ξ*_c."""

    theta: Array  # E θ − θ*, (d,)
    ahead: Array  # E ξ_c − ξ*_c, (N, d)
    cov: Array  # (N, 2 d, 2 d)
    skew: Array | None  # (N, 2 d, 2 d, 2 d); None where third cumulants are not followed

    @cached_property
    def skew_over_cov(self) -> Array:
        """κ₃(y) with its last axis times (Cov y)⁻¹, without Cov(θ, ξ_c), as mixed κ₃ are not known."""
        assert self.skew is not None
        d, inverse = self.theta.size, np.zeros_like(self.cov)
        for part in (slice(None, d), slice(d, None)):
            inverse[:, part, part] = np.linalg.pinv(self.cov[:, part, part], rcond=NARROWEST, hermitian=True)
        return turned(self.skew, None, None, inverse)


@dataclass(frozen=True, eq=False)
class Cloud:
    """Means of local models, relative to θ*, and what they make of y: B, Cov n and, of third order, `third`."""

    mean: Array  # (N, d)
    B: Array  # (N, d, 2 d)
    noise: Array  # (N, d, d)
    third: Third | None

    def cov(self, start: Start) -> Array:
        """Cov θ_c^h, (N, d, d)."""
        return self.B @ start.cov @ np.swapaxes(self.B, 1, 2) + self.noise


@dataclass(frozen=True, eq=False)
class RoundMap:
    """What a round makes of its beginning: the clouds at its end, around where it began."""

    start: Start
    end: Cloud

    def mean_from(self, theta: Array, ahead: Array) -> Array:
        """E θ_c^H − θ* from another beginning, to first order, (N, d)."""
        d = theta.size
        shift = self.end.B[:, :, :d] @ (theta - self.start.theta)
        turned = np.einsum("kij,kj->ki", self.end.B[:, :, d:], ahead - self.start.ahead)
        return self.end.mean + shift + turned


@dataclass(frozen=True, eq=False)
class Coefficients:
    """What a step does to the clouds: mean gradient, noise, curvature, and, of skewed clouds, what goes beyond."""

    averages: Averages  # (N, d), (N, d, d), (N, d, d)
    tilts: Tilts | None
    bend: Bend | None


class LocalRound:
    """The local steps of a setting; keeps the clients' records side by side between calls."""

    def __init__(
        self, s: Setting, *, skew: bool, step_by_step: int = STEP_BY_STEP, blocks: list[ClientBlock] | None = None
    ) -> None:
        self.s = s
        self.step_by_step = step_by_step  # rounds of up to so many local steps are not shortened
        self.blocks = list_blocks(s.problem) if blocks is None else blocks
        self.skewed = SkewedMargins(s.problem, self.blocks, s.batches) if skew else None

    def __call__(self, start: Start) -> RoundMap:
        """The map of a round."""
        s = self.s
        N, d = start.ahead.shape
        if not (s.quadratic or s.noisy or start.cov.any()):
            mean, B = noiseless_steps(s, self.blocks, start.theta, start.ahead)
            return RoundMap(start, Cloud(mean, B, np.zeros((N, d, d)), None))
        B = np.zeros((N, d, 2 * d))
        B[:, :, :d] = np.eye(d)
        third = None if self.skewed is None else Third.zero(N, d)
        cloud = Cloud(np.broadcast_to(start.theta, (N, d)), B, np.zeros((N, d, d)), third)
        done, k, singles = 0, s.H if s.quadratic and not s.noisy else 1, 0
        while done < s.H:
            here = self.coefficients(cloud, start)
            k = 1 if self.step_by_step >= s.H else min(k, s.H - done)
            cloud, used, change = self.steps(cloud, here, start, k)
            done += used
            singles = singles + 1 if used == 1 else 0
            again = s.H >= LONG_ROUND and singles % SINGLES == SINGLES - 1
            k = 2 * used if change < GROW * CHANGE or again else used
        return RoundMap(start, cloud)

    def steps(self, cloud: Cloud, here: Coefficients, start: Start, k: int) -> tuple[Cloud, int, float]:
        """The cloud after k steps or, where that is too many, fewer; their number; and the change seen."""
        first = self.frozen(cloud, here, cloud, start, k)
        while k > 1:
            middle = self.frozen(cloud, here, cloud, start, k // 2)
            there = self.coefficients(middle, start)
            better = self.frozen(cloud, there, middle, start, k)
            change = difference(first, better, start)
            if change <= CHANGE:
                return better, k, change
            k, first = k // 2, middle
        return first, 1, 0.0 if self.step_by_step >= self.s.H else difference(cloud, first, start)

    def coefficients(self, cloud: Cloud, start: Start) -> Coefficients:
        """Mean gradient, noise and curvature over the clouds, and their slopes."""
        s, cov = self.s, cloud.cov(start)
        if self.skewed is not None:
            assert cloud.third is not None
            skewness = cloud_skewness(cloud.B, start.cov, start.skew, cloud.third)
            averages, tilts = self.skewed.over_clouds(s.optimum + cloud.mean, cov, skewness, s.factors)
            reach = cloud.B @ start.cov
            bend = bend_of(tilts, cloud.B, cov, reach, skewness, start.skew_over_cov, cloud.third)
            return Coefficients(averages, tilts, bend)
        gradient, noise, hessian = np.empty_like(cloud.mean), np.empty_like(cov), np.empty_like(cov)
        for block in self.blocks:
            at = block.clients
            found = s.averages.over_clouds(
                block, (s.optimum + cloud.mean[at])[:, None], cov[at][:, None], s.factors[at]
            )
            gradient[at], noise[at], hessian[at] = found.gradient[:, 0], found.noise[:, 0], found.hessian[:, 0]
        return Coefficients(Averages(gradient, noise, hessian), None, None)

    def frozen(self, cloud: Cloud, of: Coefficients, where: Cloud, start: Start, k: int) -> Cloud:
        """The cloud after k steps with the coefficients of the clouds `where` and a gradient linear there."""
        s, at = self.s, of.averages
        d = cloud.mean.shape[1]
        offset = np.einsum("kij,kj->ki", at.hessian, cloud.mean - where.mean)
        pull = at.gradient - s.gradients + start.ahead + offset
        gamma = np.eye(d) - s.gamma * at.hessian
        drive, fresh = self.added(of, where, start, gamma)
        if k == 1:
            B = gamma @ cloud.B + drive
            noise = gamma @ cloud.noise @ gamma + fresh
            mean = cloud.mean - s.gamma * pull
            U, g = None, gamma
        else:
            lam, U = np.linalg.eigh(at.hessian)
            g = 1.0 - s.gamma * lam
            power, inverse = g**k, np.swapaxes(U, 1, 2)
            total = (U * divided(g, power, 1.0, k)[:, None]) @ inverse
            B = (U * power[:, None]) @ inverse @ cloud.B + total @ drive
            products, powers = g[:, :, None] * g[:, None, :], power[:, :, None] * power[:, None, :]
            fresh = divided(products, powers, 1.0, k) * (inverse @ fresh @ U)
            noise = U @ (powers * (inverse @ cloud.noise @ U) + fresh) @ inverse
            mean = cloud.mean - s.gamma * np.einsum("kij,kj->ki", total, pull)
        if cloud.third is None or of.tilts is None:
            return Cloud(mean, B, noise, None)
        third = advance_third(cloud.third, of.tilts, s.gamma, gamma, where.B, where.noise, U, g, k)
        return Cloud(mean, B, noise, third)

    def added(self, of: Coefficients, where: Cloud, start: Start, gamma: Array) -> tuple[Array, Array]:
        """What a step adds to B and to Cov n: −γ [0 I] and γ² C; with r = ∇f_c − G u of the skewed cloud `where`,

        −γ L and −γ (E + Eᵀ) + γ (L Cov y Bᵀ Γ + its transpose) + O(γ²), E = Cov(r, u) and L = Cov(r, y) (Cov y)⁻¹.
        """
        s = self.s
        d = gamma.shape[1]
        drive, fresh = np.zeros((d, 2 * d)), s.gamma**2 * of.averages.noise
        drive[:, d:] = -s.gamma * np.eye(d)
        if of.bend is None:
            return drive, fresh
        own, slope = of.bend.own, of.bend.start
        shared = slope @ start.cov
        more = shared @ np.swapaxes(gamma @ where.B - 0.5 * s.gamma * slope, 1, 2) - own
        more = more + s.gamma * (1.0 - s.factors)[:, None, None] * own @ of.averages.hessian
        return drive - s.gamma * slope, fresh + s.gamma * (more + np.swapaxes(more, 1, 2))


def difference(one: Cloud, other: Cloud, start: Start) -> float:
    """The largest difference between two clouds of any client, in units of the second of them."""
    before, after = one.cov(start), other.cov(start)
    size = np.trace(after, axis1=1, axis2=2) + np.square(other.mean).sum(axis=1) + np.finfo(float).tiny
    apart = np.abs(after - before).sum(axis=(1, 2)) / size
    return float((apart + np.sqrt(np.square(one.mean - other.mean).sum(axis=1) / size)).max())
