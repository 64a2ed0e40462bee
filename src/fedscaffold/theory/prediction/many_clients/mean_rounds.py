"""Means of the model and of the control variates from round to round, without small-γ approximations.

A client's H steps are solved at once: the linear part in closed form, what the gradient has beyond it at the nodes
of `Steps`, iterated until it no longer changes; where it does not settle, the steps are taken one at a time.
"""

from dataclasses import dataclass, replace

import numpy as np

from fedscaffold.core.types import Array, IntArray
from fedscaffold.theory.client_blocks import ClientBlock, for_blocks
from fedscaffold.theory.prediction.local_steps import divided
from fedscaffold.theory.prediction.many_clients.bases import Bases
from fedscaffold.theory.prediction.plateau import PlateauState, local_means
from fedscaffold.theory.prediction.setting import MANY_CLIENTS, Setting

MOST_SWEEPS = 30
SWEEP_TOLERANCE, SWEEP_TOLERANCE_MANY = 2e-4, 1e-3  # the second for many clients, where a sweep takes long


@dataclass(frozen=True, eq=False)
class Propagator:
    """θ_c at nodes and at step H = power θ − pull (ξ_c − ξ*_c) − Σ_q conv_q t(h_q), in the eigenbasis."""

    power: Array  # (N, m + 1, d)
    pull: Array  # (N, m + 1, d)
    conv: Array  # (N, m + 1, m, d)
    bases: Bases


def propagator(s: Setting, state: PlateauState) -> Propagator:
    """Coefficients of the H local steps of every client; they are the same in all rounds."""
    g = state.cur.g
    N, d = g.shape
    m = s.steps.nodes.size
    power, pull, conv = np.empty((N, m + 1, d)), np.zeros((N, m + 1, d)), np.zeros((N, m + 1, m, d))
    for q, h in enumerate([*map(int, s.steps.nodes), s.H]):
        power[:, q] = gh = g**h
        if h == 0:
            continue
        pull[:, q] = s.gamma * divided(g, gh, 1.0, h)
        sums = np.stack([divided(g, gh, float(rate), h) for rate in s.steps.rates], axis=1)
        conv[:, q] = s.gamma * np.einsum("pq,kpd->kqd", s.steps.fit, sums)
    return Propagator(power, pull, conv, Bases.of(s.weights, state.cur.U))


@dataclass(frozen=True, eq=False)
class Settled:
    """A round whose residuals were those of another one before it, and how far its paths were from there."""

    theta: Array  # θ − θ* as it began
    ahead: Array  # ξ_c − ξ*_c as it began, in the eigenbasis
    pull: Array  # of its noise
    change: float  # of its paths
    push: Array  # what residuals and pull make of the local models after H steps, (N, d), in the eigenbasis

    def distance(self, s: Setting, p: Propagator, pull: Array, mean: "Mean") -> float:
        """How far the paths of another round may be at most from where the residuals were found.

        Powers of I − γG_c are taken to be at most one, and the end of a round feels the control variate most.
        """
        if pull is not self.pull:
            return np.inf
        moved = p.pull[:, -1] * (mean.ahead - self.ahead)
        ahead = float(np.sqrt(s.weights @ np.square(moved).sum(axis=1)))
        return self.change + float(np.linalg.norm(mean.theta - self.theta)) + ahead


@dataclass(frozen=True, eq=False)
class Mean:
    """Means of the model and of the control variates at the start of a round, relative to θ* and ξ*_c."""

    theta: Array  # θ − θ*, (d,)
    ahead: Array  # ξ_c − ξ*_c, (N, d), in the eigenbasis
    residual: Array  # t_c(h_q) as last found, (N, m, d), in the eigenbasis
    seen: Array  # the paths at which it was found, (N, m, d)
    stepwise: bool = False  # whether sweeps did not settle, so that steps are taken one at a time
    rate: float = 1.0  # how much a sweep changes paths, in units of what led to it
    paths: Array | None = None  # of the round that led here, (N, m, d); None where they were not found
    settled: Settled | None = None


def noise_pull(s: Setting, state: PlateauState) -> Array:
    """What the noise adds to t_c(h_q) on the plateau: with the cloud, less without, (N, m, d)."""
    if s.quadratic:
        return np.zeros_like(state.residual)
    everyone = np.arange(s.problem.n_clients)
    return state.residual - residuals(s, state, local_means(s, state, everyone))


def residuals(s: Setting, state: PlateauState, paths: Array) -> Array:
    """t_c = ∇f_c(θ* + path) − ∇f_c(θ*) − G_c path, in the eigenbasis, for paths (N, m, d) in the original one."""
    if s.quadratic:
        return np.zeros_like(state.residual)
    found = np.empty_like(paths)

    def work(block: ClientBlock) -> None:
        found[block.clients] = s.averages.gradients(block, s.optimum + paths[block.clients])

    for_blocks(s.problem, work)
    found -= s.gradients[:, None]
    return found @ state.cur.U - (paths @ state.cur.U) * state.cur.lam[:, None, :]


def linear_paths(p: Propagator, state: PlateauState, mean: Mean, at: IntArray) -> Array:
    """θ_c − θ* at the nodes of a round of quadratic losses, for some clients, (k, m, d)."""
    U = state.cur.U[at]
    linear = p.power[at, :-1] * (mean.theta @ U)[:, None] - p.pull[at, :-1] * mean.ahead[at, None]
    return linear @ np.swapaxes(U, 1, 2)


def advance(
    s: Setting,
    state: PlateauState,
    p: Propagator,
    pull: Array,
    mean: Mean,
    scale: float,
    *,
    with_paths: bool = True,
) -> Mean:
    """One round of the means.

    `scale` is the squared error of the plateau. Without `with_paths`, paths are found only where they tell new
    residuals.
    """
    begin = p.bases.enter(mean.theta)  # (N, d)
    local_end = p.power[:, -1] * begin - p.pull[:, -1] * mean.ahead
    if s.quadratic:
        theta, ahead = after(s, p, mean, local_end)
        return replace(mean, theta=theta, ahead=ahead)
    many = s.clients.size > MANY_CLIENTS and scale > 0.0
    near = (SWEEP_TOLERANCE_MANY if many else SWEEP_TOLERANCE) * float(np.sqrt(mean.theta @ mean.theta + scale))
    settled = mean.settled if many and not with_paths else None
    if settled is not None and mean.rate * settled.distance(s, p, pull, mean) <= near:
        theta, ahead = after(s, p, mean, local_end - settled.push)
        return replace(mean, theta=theta, ahead=ahead, paths=None)
    residual, seen, rate, paths, change = sweeps(s, state, p, pull, mean, begin, near, many)
    if paths is None:  # as where classes are nearly separable: curvatures at θ* are far smaller than on the way
        paths, end = take_steps(s, state, pull, mean)
        theta, ahead = after(s, p, mean, np.einsum("kij,ki->kj", state.cur.U, end))
        return Mean(theta, ahead, residual, seen=paths, stepwise=True, rate=rate, paths=paths)
    push = np.einsum("kpd,kpd->kd", p.conv[:, -1], residual + pull)
    theta, ahead = after(s, p, mean, local_end - push)
    settled = Settled(mean.theta, mean.ahead, pull, change, push)
    return Mean(theta, ahead, residual, seen, rate=rate, paths=paths, settled=settled)


def after(s: Setting, p: Propagator, mean: Mean, local_end: Array) -> tuple[Array, Array]:
    """θ − θ* and ξ_c − ξ*_c after a round, from the local models at its end, (N, d), in the eigenbasis."""
    theta = p.bases.leave(local_end)
    if not s.scaffold:
        return theta, mean.ahead
    return theta, mean.ahead + (local_end - p.bases.enter(theta)) / (s.gamma * s.H)


def sweeps(
    s: Setting, state: PlateauState, p: Propagator, pull: Array, mean: Mean, begin: Array, near: float, many: bool
) -> tuple[Array, Array, float, Array | None, float]:
    """Residuals at the nodes, where they were found, their rate, the paths, and how far these are from there.

    No paths where residuals do not settle. A further sweep would change the paths by the rate of the last ones
    times what changed since. So near the plateau, where residuals hardly depend on the path, the residuals of
    earlier rounds will do.
    """
    linear = p.power[:, :-1] * begin[:, None] - p.pull[:, :-1] * mean.ahead[:, None]
    inverse = np.swapaxes(state.cur.U, 1, 2)
    residual, seen, rate, last = mean.residual, mean.seen, mean.rate, 0.0
    for _ in range(0 if mean.stepwise else MOST_SWEEPS):
        paths = (linear - np.einsum("kqpd,kpd->kqd", p.conv[:, :-1], residual + pull)) @ inverse
        change = float(np.sqrt(s.weights @ np.square(paths - seen).mean(axis=1).sum(axis=1)))
        rate = max(min(change / last, 1.0), 0.5 * rate) if last > 0.0 and np.isfinite(last) else rate
        if (rate if many else 1.0) * change <= near:
            return residual, seen, rate, paths, change
        residual, seen, last = residuals(s, state, paths), paths, change
    return residual, seen, rate, None, np.inf


def take_steps(s: Setting, state: PlateauState, pull: Array, mean: Mean) -> tuple[Array, Array]:
    """θ_c − θ* at the nodes, (N, m, d), and after H steps, (N, d), with a gradient of all records at each step."""
    U = state.cur.U
    nodes, powers = s.steps.along, s.steps.fit @ pull  # the noise's pull at step h: Σ_p b_p^h powers_p
    seen, end = np.empty_like(pull), np.empty_like(mean.ahead)

    def work(block: ClientBlock) -> None:
        at = block.clients
        theta = np.tile(mean.theta, (at.size, 1))
        for h in range(s.H):
            if h in nodes:
                seen[at, nodes.index(h)] = theta
            correction = np.einsum("kij,kj->ki", U[at], mean.ahead[at] + s.steps.rates**h @ powers[at])
            slope = s.averages.gradients(block, (s.optimum + theta)[:, None])[:, 0] - s.gradients[at]
            theta = theta - s.gamma * (slope + correction)
        end[at] = theta

    for_blocks(s.problem, work)
    return seen, end
