"""The way to the plateau: the mean's path without small-γ approximations, and the covariance that builds up.

The mean of a round follows the non-linear recursion without noise, plus the pull of the round's noise on the mean.
A client's H steps are solved at once: the linear part in closed form, what the gradient has beyond it at the nodes
of `Steps`, iterated until it no longer changes; where it does not settle, the steps are taken one at a time. The
covariance follows the linear recursion with the noise of the round, see `round_noise`.
"""

from dataclasses import dataclass, replace

import numpy as np

from fedscaffold.core.types import Array, IntArray
from fedscaffold.theory.client_blocks import ClientBlock, for_blocks
from fedscaffold.theory.prediction.local_steps import along, divided, steps
from fedscaffold.theory.prediction.many_clients.first_guess import FEW_STEPS, LEAST
from fedscaffold.theory.prediction.plateau import PlateauState, local_means, theta_covariance
from fedscaffold.theory.prediction.round_noise import RoundNoise, RoundNoises
from fedscaffold.theory.prediction.setting import MANY_CLIENTS, Setting

MOST_SWEEPS = 30
SWEEP_TOLERANCE, SWEEP_TOLERANCE_MANY = 2e-4, 1e-3  # the second for many clients, where a sweep takes long
REPEATS = 2  # of the first rounds, whose mean depends much on the pull of their noise
FIRST_ROUNDS = 4  # whose noise is found each; later ones at 1, 1.5, 2, 3, 4, 6, ... times it


@dataclass(frozen=True, eq=False)
class Propagator:
    """θ_c at nodes and at step H = power θ − pull (ξ_c − ξ*_c) − Σ_q conv_q t(h_q), in the eigenbasis."""

    power: Array  # (N, m + 1, d)
    pull: Array  # (N, m + 1, d)
    conv: Array  # (N, m + 1, m, d)


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
    return Propagator(power, pull, conv)


@dataclass(frozen=True, eq=False)
class Mean:
    """Means of the model and of the control variates at the start of a round, relative to θ* and ξ*_c."""

    theta: Array  # θ − θ*, (d,)
    ahead: Array  # ξ_c − ξ*_c, (N, d), in the eigenbasis
    residual: Array  # t_c(h_q) as last found, (N, m, d), in the eigenbasis
    seen: Array  # the paths at which it was found, (N, m, d)
    stepwise: bool = False  # whether sweeps did not settle, so that steps are taken one at a time
    rate: float = 1.0  # how much a sweep changes paths, in units of what led to it
    paths: Array | None = None  # of the round that led here, (N, m, d); None for quadratic losses


def curve_parts(s: Setting, state: PlateauState, rounds: int) -> tuple[Array, Array]:
    """‖E θ_t − θ*‖² and tr Cov θ_t for t = 0, ..., rounds from θ_0 = 0, ξ_c = 0: approximations.

    Their sum is the curve E‖θ_t − θ*‖²; it is exact without noise. Noise and pull are found at rounds 0, 1, 2, 3,
    4, 6, 8, 12, ... until they are those of the plateau. In between, noise lies on straight lines.
    """
    if s.clients.size > MANY_CLIENTS:
        s, state = with_fewer_steps(s, state)
    p, plateau_pull = propagator(s, state), noise_pull(s, state)
    scale = float(np.trace(state.cov_theta) + state.bias @ state.bias)
    start = np.einsum("kij,ki->kj", state.cur.U, s.gradients)
    mean = Mean(-s.optimum, start, np.zeros_like(state.residual), np.full_like(state.residual, np.inf))
    noises = RoundNoises.of(s, state) if s.factors.any() else None
    if noises is not None and not s.quadratic:  # pulls of all clients are older than the sample's
        plateau_pull = plateau_pull + noises.pull_since(plateau_pull[noises.clients]) @ state.cur.U
    spread = SpreadOfRounds(state.A, s.problem.dim)
    squares, t = [float(mean.theta @ mean.theta)], 0
    pull = np.zeros_like(plateau_pull)
    last: RoundNoise | None = None
    faded, everyone = noises is None, np.arange(s.clients.size)
    resting = 1.0 if noises is None or not s.quadratic else noises.level(np.zeros_like(s.gradients))
    while t < rounds or (not faded and spread.waits(rounds)):
        before, mean = mean, advance(s, state, p, pull, mean, scale)
        wanted = noises is not None and not faded and is_wanted(t)
        for _ in range((REPEATS if t < FIRST_ROUNDS and not s.quadratic else 1) if wanted else 0):
            assert noises is not None
            all_paths = linear_paths(p, state, before, everyone) if mean.paths is None else mean.paths
            level = noises.level(all_paths[:, all_paths.shape[1] // 2]) / resting if s.quadratic else 1.0
            last = noises.at(t, all_paths[noises.clients], spread.guess(t), last, level)
            faded = t >= FIRST_ROUNDS and noises.faded(last)
            if not s.quadratic:
                pull = plateau_pull if faded else plateau_pull + noises.pull_beyond(last) @ state.cur.U
                warm = replace(before, residual=mean.residual, seen=mean.seen, stepwise=mean.stepwise)
                mean = advance(s, state, p, pull, warm, scale) if t < FIRST_ROUNDS else mean
        if wanted and last is not None:
            spread.found(t, last.input)
        squares.append(float(mean.theta @ mean.theta))
        t += 1
    variances = np.zeros(rounds + 1) if noises is None else spread.traces(rounds, noises.plateau_input)
    return np.array(squares[: rounds + 1]), variances


def with_fewer_steps(s: Setting, state: PlateauState) -> tuple[Setting, PlateauState]:
    """The same law seen at fewer local steps: of many clients the rounds of a curve take long."""
    few = steps(s.gamma, s.H, s.at_optimum.smallest, s.at_optimum.largest, FEW_STEPS, least=LEAST)
    if few.nodes.size >= s.steps.nodes.size:
        return s, state
    there = s.steps.rates[None, :] ** few.nodes[:, None] @ s.steps.fit
    noise = state.noise if state.noise.shape[1] == 1 else along(there, state.noise)
    return replace(s, steps=few), replace(state, residual=along(there, state.residual), noise=noise)


def is_wanted(t: int) -> bool:
    """Whether t is one of 0, 1, 2, 3, 4, 6, 8, 12, 16, ..."""
    octave = 1 << max(t.bit_length() - 1, 0)
    return t < FIRST_ROUNDS or t in (octave, octave + octave // 2)


class SpreadOfRounds:
    """The covariance of the reduced state from round to round, with noise that is found at some rounds."""

    def __init__(self, A: Array, d: int) -> None:
        self.A, self.d = A, d
        self.rounds: list[int] = []
        self.inputs: list[Array] = []
        self.covariances = [np.zeros_like(A)]  # P_t, up to the last round at which noise was found

    def waits(self, rounds: int) -> bool:
        """Whether some of so many rounds are after the last at which noise was found, and wait for the next."""
        return not self.rounds or self.rounds[-1] < rounds - 1

    def guess(self, t: int) -> Array:
        """Cov θ_t, with the noise of the last round at which it was found for those since."""
        P = self.covariances[-1]
        for _ in range(len(self.covariances) - 1, t):
            P = self.A @ P @ self.A.T + self.inputs[-1]
        return theta_covariance(P, self.d)

    def found(self, t: int, noise: Array) -> None:
        """Take note of the noise of round t, and with it of the covariances up to there."""
        if self.rounds:
            before, begin = self.inputs[-1], self.rounds[-1]
            for k in range(len(self.covariances) - 1, t):
                share = (k - begin) / (t - begin)
                self.covariances.append(self.step((1.0 - share) * before + share * noise))
        self.rounds.append(t)
        self.inputs.append(noise)

    def step(self, noise: Array) -> Array:
        """The covariance a round after the last one that is known."""
        return self.A @ self.covariances[-1] @ self.A.T + noise

    def traces(self, rounds: int, later: Array) -> Array:
        """Tr Cov θ_t for t = 0, ..., rounds, with the noise `later` after the last round at which it was found."""
        while len(self.covariances) <= rounds:
            t = len(self.covariances) - 1
            self.covariances.append(self.step(self.inputs[-1] if t == self.rounds[-1] else later))
        return np.array([np.trace(theta_covariance(P, self.d)) for P in self.covariances[: rounds + 1]])


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


def advance(s: Setting, state: PlateauState, p: Propagator, pull: Array, mean: Mean, scale: float) -> Mean:
    """One round of the means."""
    w, U = s.weights, state.cur.U
    begin = mean.theta @ U  # (N, d)
    local_end = p.power[:, -1] * begin - p.pull[:, -1] * mean.ahead
    residual, seen, stepwise, rate, paths = mean.residual, mean.seen, False, mean.rate, mean.paths
    if not s.quadratic:
        residual, seen, stepwise, rate, paths = sweeps(s, state, p, pull, mean, begin, scale)
        if (
            stepwise
        ):  # as where classes are nearly separable: curvatures at θ* are far smaller than on the way there
            paths, end = take_steps(s, state, pull, mean)
            seen = paths
            local_end = np.einsum("kij,ki->kj", U, end)
        else:
            local_end = local_end - np.einsum("kpd,kpd->kd", p.conv[:, -1], residual + pull)
    theta = np.tensordot(U, w[:, None] * local_end, axes=([0, 2], [0, 1]))
    ahead = mean.ahead
    if s.scaffold:
        ahead = ahead + (local_end - theta @ U) / (s.gamma * s.H)
    return Mean(theta, ahead, residual, seen, stepwise, rate, paths)


def sweeps(
    s: Setting, state: PlateauState, p: Propagator, pull: Array, mean: Mean, begin: Array, scale: float
) -> tuple[Array, Array, bool, float, Array]:
    """Residuals at the nodes, where they were found, whether they do not settle, their rate, and the paths.

    A further sweep would change the paths by the rate of the last ones times what changed since. So near the
    plateau, where residuals hardly depend on the path, the residuals of earlier rounds will do.
    """
    many = s.clients.size > MANY_CLIENTS and scale > 0.0
    near = (SWEEP_TOLERANCE_MANY if many else SWEEP_TOLERANCE) * np.sqrt(mean.theta @ mean.theta + scale)
    linear = p.power[:, :-1] * begin[:, None] - p.pull[:, :-1] * mean.ahead[:, None]
    inverse = np.swapaxes(state.cur.U, 1, 2)
    residual, seen, rate, last = mean.residual, mean.seen, mean.rate, 0.0
    for _ in range(0 if mean.stepwise else MOST_SWEEPS):
        paths = (linear - np.einsum("kqpd,kpd->kqd", p.conv[:, :-1], residual + pull)) @ inverse
        change = float(np.sqrt(s.weights @ np.square(paths - seen).mean(axis=1).sum(axis=1)))
        rate = max(min(change / last, 1.0), 0.5 * rate) if last > 0.0 and np.isfinite(last) else rate
        if (rate if many else 1.0) * change <= near:
            return residual, seen, False, rate, paths
        residual, seen, last = residuals(s, state, paths), paths, change
    return residual, seen, True, rate, seen


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
