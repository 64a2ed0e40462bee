"""The law of local models along a round, and what they meet there: curvature, noise, and what is not linear."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from fedscaffold.core.types import Array, IntArray
from fedscaffold.theory.client_blocks import ClientBlock, for_blocks
from fedscaffold.theory.prediction.family.family_setting import FamilySetting
from fedscaffold.theory.prediction.local_steps import Curvature, accumulate, curvature, rotate


@dataclass(frozen=True, eq=False)
class Linearisation:
    """f_c along client c's local steps: ∇f_c(θ) ≈ ∇f_c(θ*) + G_c (θ − θ*) + t_c(h), and the noise.

    In G_c's eigenbasis. For quadratic f_c, G_c is the Hessian and t = 0. Exchanged gradients are linear around the
    law of θ instead.
    """

    cur: Curvature
    noise: Array  # E C_c at the nodes, (N, m, d, d); not used where noise is followed step by step
    residual: Array  # t_c at the nodes, (N, m, d)
    round_noise: Array  # Σ_h Γ^{H−1−h} C(h) Γ^{H−1−h}, in mean over the number of steps, (N, d, d)
    exchange_hessian: Array  # (N, d, d), in the original basis
    exchange_offset: Array  # ∇f_c(θ) ≈ offset + hessian (θ − θ*), (N, d)
    exchange_noise: Array  # C_c at θ, (N, d, d)

    def push(self, s: FamilySetting) -> Array:
        """γ Σ_h Γ^{H−1−h} t(h) of each client, in mean over the number of steps, (N, d)."""
        if s.quadratic:
            return np.zeros_like(self.cur.g)
        return s.linear.gamma * _over_steps(s, self.cur, self.residual)


def _over_steps(s: FamilySetting, cur: Curvature, values: Array) -> Array:
    counts, probabilities = s.linear.steps, s.linear.probabilities
    if probabilities is not None:
        sums = accumulate(s.steps, cur, values, [int(h) for h in counts])
        return np.tensordot(probabilities, np.moveaxis(sums, 1, 0), axes=1)
    found = np.empty_like(values[:, 0])
    for h in np.unique(counts):
        at = np.flatnonzero(counts == h)
        found[at] = accumulate(s.steps, cur[at], values[at], [int(h)])[:, 0]
    return found


def at_optimum(s: FamilySetting) -> Linearisation:
    """The first guess: curvature and noise at θ*."""
    N, d, m = s.problem.n_clients, s.problem.dim, s.steps.nodes.size
    cur = curvature(s.hessians, s.linear.gamma, s.steps.H)
    noise, at = np.empty((N, m, d, d)), np.empty((N, d, d))

    def work(block: ClientBlock) -> None:
        k = block.clients
        points = np.broadcast_to(s.optimum, (k.size, 1, d))
        at[k] = s.averages.noise_at(block, points, s.factors[k])[:, 0]
        noise[k] = rotate(cur.U[k], at[k])[:, None]

    for_blocks(s.problem, work)
    rounds = _over_steps(s, cur, noise)
    return Linearisation(cur, noise, np.zeros((N, m, d)), rounds, s.hessians, s.gradients, at)


@dataclass(frozen=True, eq=False)
class RoundStart:
    """What a client's local steps start from: θ and −γ(∇f_c(θ*) + ξ_c), in its eigenbasis."""

    mean: Array  # (2, N, d)
    cov: Array  # (2, 2, N, d, d)


def relinearised(
    s: FamilySetting, lin: Linearisation, start: RoundStart, theta: tuple[Array, Array]
) -> Linearisation:
    """Averages over the clouds of local models that a round with this linearisation has; theta is its mean and
    covariance, for gradients that are exchanged at θ.
    """
    N, d, m = s.problem.n_clients, s.problem.dim, s.steps.nodes.size
    noise, residual, rounds = lin.noise.copy(), np.zeros((N, m, d)), np.empty((N, d, d))
    U, lam = lin.cur.U.copy(), lin.cur.lam.copy()
    hessian, offset, at_theta = lin.exchange_hessian.copy(), lin.exchange_offset.copy(), np.empty((N, d, d))
    weights, exchanges = s.steps.average_weights(), s.linear.correction_own != 0.0

    def work(block: ClientBlock) -> None:
        k = block.clients
        if s.step_by_step:
            rounds[k] = exact_round_noise(s, lin.cur[k], start, block)
        else:
            mean, cov = local_clouds(s, lin, start, k)
            found = s.averages.over_clouds(block, s.optimum + mean, cov, s.factors[k])
            if not s.quadratic:
                matrices = np.einsum("q,kqij->kij", weights, np.broadcast_to(found.hessian, (k.size, m, d, d)))
                own = curvature(matrices, s.linear.gamma, s.steps.H)
                U[k], lam[k] = own.U, own.lam
                residual[k] = (found.gradient - s.gradients[k][:, None] - mean @ matrices) @ own.U
            noise[k] = rotate(U[k][:, None], found.noise)
        if exchanges:
            one = np.broadcast_to(theta[0], (k.size, 1, d)), np.broadcast_to(theta[1], (k.size, 1, d, d))
            there = s.averages.over_clouds(block, s.optimum + one[0], one[1], s.factors[k])
            hessian[k], at_theta[k] = there.hessian[:, 0], there.noise[:, 0]
            offset[k] = there.gradient[:, 0] - hessian[k] @ theta[0]

    for_blocks(s.problem, work, copies=m)
    cur = lin.cur if s.quadratic else Curvature.of(U, lam, s.linear.gamma, s.steps.H)
    if not s.step_by_step:
        rounds = _over_steps(s, cur, noise)
    there = at_theta if exchanges else lin.exchange_noise
    return Linearisation(cur, noise, residual, rounds, hessian, offset, there)


def exact_round_noise(s: FamilySetting, cur: Curvature, start: RoundStart, block: ClientBlock) -> Array:
    """Σ_h Γ^{H−1−h} C(h) Γ^{H−1−h} for quadratic f_c, step after step: linear in the law of the start."""
    k, linear = block.clients, s.linear
    g, back = cur.g[:, :, None] * cur.g[:, None, :], np.swapaxes(cur.U, 1, 2)
    (a, b), gathered = start.mean[:, k], np.zeros_like(cur.U)
    (aa, ab), (ba, bb) = start.cov[:, :, k]
    power, total, found = np.ones_like(cur.g), np.zeros_like(cur.g), np.zeros_like(cur.U)
    counts = linear.steps if linear.probabilities is not None else linear.steps[k]
    for h in range(int(counts.max())):
        mean = power * a + total * b
        cov = (
            linear.gamma**2 * gathered
            + power[:, :, None] * aa * power[:, None]
            + total[:, :, None] * bb * total[:, None]
        )
        cov = cov + power[:, :, None] * ab * total[:, None] + total[:, :, None] * ba * power[:, None]
        points = np.einsum("kj,kji->ki", mean, back)[:, None]
        noise = s.averages.over_clouds(
            block, s.optimum + points, (cur.U @ cov @ back)[:, None], s.factors[k]
        ).noise
        gathered = g * gathered + rotate(cur.U, noise[:, 0])
        power, total = power * cur.g, cur.g * total + 1.0
        if linear.probabilities is None:
            found[counts == h + 1] = gathered[counts == h + 1]
        elif h + 1 in counts:
            found += linear.probabilities[np.searchsorted(counts, h + 1)] * gathered
    return found


def local_clouds(
    s: FamilySetting, lin: Linearisation, start: RoundStart, at: IntArray, hs: Sequence[int] | None = None
) -> tuple[Array, Array]:
    """Mean and covariance of θ_c^h − θ* for h in hs, the nodes unless given, (k, m, d) and (k, m, d, d).

    In the original basis.
    """
    cur, along, gamma = lin.cur[at], s.steps.along if hs is None else hs, s.linear.gamma
    shares = np.stack([cur.powers(along), cur.sums(along)])  # (2, k, m, d)
    mean = np.einsum("akqd,akd->kqd", shares, start.mean[:, at])
    if not s.quadratic:
        mean = mean - gamma * accumulate(s.steps, cur, lin.residual[at], along)
    cov = gamma**2 * accumulate(s.steps, cur, lin.noise[at], along)
    for a in range(2):
        for b in range(2):
            cov = cov + shares[a][..., :, None] * start.cov[a, b][at][:, None] * shares[b][..., None, :]
    return mean @ np.swapaxes(cur.U, 1, 2), cur.rotate_back(cov)


def off_between_nodes(s: FamilySetting, lin: Linearisation, start: RoundStart) -> float:
    """By how much the noise of quadratic f_c half-way between nodes is not what the nodes say, relative.

    Noise that grows with the distance which it causes may fade more slowly than any power of I − γG_c does.
    """
    hs = [(a + b) // 2 for a, b in pairwise([*s.steps.along, s.steps.H])]
    between = s.steps.rates[None, :] ** np.array(hs)[:, None] @ s.steps.fit
    worst = [0.0]

    def work(block: ClientBlock) -> None:
        k = block.clients
        mean, cov = local_clouds(s, lin, start, k, hs)
        noise = s.averages.over_clouds(block, s.optimum + mean, cov, s.factors[k]).noise
        found = rotate(lin.cur.U[k][:, None], noise)
        gap = np.abs(np.einsum("hq,kqij->khij", between, lin.noise[k]) - found).max(axis=(1, 2, 3))
        worst.append(float((gap / np.maximum(np.abs(found).max(axis=(1, 2, 3)), np.finfo(float).tiny)).max()))

    for_blocks(s.problem, work, copies=len(hs))
    return max(worst)
