"""The way to the plateau: the mean's path without small-γ approximations, and the covariance that builds up.

The mean of a round follows the non-linear recursion without noise, plus the pull of the noise on the mean as it is
on the plateau. A client's H steps are solved at once: the linear part in closed form, what the gradient has beyond
it at the nodes of `Steps`, iterated until it no longer changes; where it does not settle, the steps are taken one
at a time. The covariance follows the linear recursion with the noise of the records at the mean's path, which far
from θ* is larger than on the plateau.
"""

from bisect import bisect_left
from dataclasses import dataclass, replace

import numpy as np

from fedscaffold.core.types import Array
from fedscaffold.theory.client_blocks import ClientBlock, for_blocks
from fedscaffold.theory.prediction.expansion import weighted
from fedscaffold.theory.prediction.local_steps import accumulate, divided, rotate
from fedscaffold.theory.prediction.plateau import PlateauState, local_means, theta_covariance
from fedscaffold.theory.prediction.reduced_system import noise_input
from fedscaffold.theory.prediction.setting import Setting

MOST_SWEEPS = 30
SWEEP_TOLERANCE = 2e-4
FADED = 0.01


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


def curve_parts(s: Setting, state: PlateauState, rounds: int) -> tuple[Array, Array]:
    """‖E θ_t − θ*‖² and tr Cov θ_t for t = 0, ..., rounds from θ_0 = 0, ξ_c = 0: approximations.

    Their sum is the curve E‖θ_t − θ*‖²; it is exact without noise.
    """
    p, pull = propagator(s, state), noise_pull(s, state)
    scale = float(np.trace(state.cov_theta) + state.bias @ state.bias)
    start = np.einsum("kij,ki->kj", state.cur.U, s.gradients)
    mean = Mean(-s.optimum, start, np.zeros_like(state.residual), np.full_like(state.residual, np.inf))
    noise = NoiseAlong.at_plateau(s, state) if s.factors.any() else None
    squares, t = [float(mean.theta @ mean.theta)], 0
    while t < rounds or (noise is not None and noise.open_at(rounds)):
        mean = advance(s, state, p, pull, mean, scale)
        squares.append(float(mean.theta @ mean.theta))
        if noise is not None and noise.wants(t):
            noise = noise.extended(t, input_of(s, state, path_noise(s, state, mean.seen)))
        t += 1
    variances = np.zeros(rounds + 1)
    if noise is not None:
        variances[1:] = noise.traces(state.A, s.problem.dim, rounds)
    return np.array(squares[: rounds + 1]), variances


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


def advance(s: Setting, state: PlateauState, p: Propagator, pull: Array, mean: Mean, scale: float) -> Mean:
    """One round of the means; the local paths at the nodes are in `seen`."""
    w, U = s.problem.weights, state.cur.U
    inverse = np.swapaxes(U, 1, 2)
    linear = p.power * np.einsum("kij,i->kj", U, mean.theta)[:, None] - p.pull * mean.ahead[:, None]
    near = SWEEP_TOLERANCE * np.sqrt(mean.theta @ mean.theta + scale)
    residual, seen = mean.residual, mean.seen
    stepwise = mean.stepwise or not s.quadratic
    for _ in range(0 if s.quadratic or mean.stepwise else MOST_SWEEPS):
        paths = (linear[:, :-1] - np.einsum("kqpd,kpd->kqd", p.conv[:, :-1], residual + pull)) @ inverse
        if np.sqrt(w @ np.square(paths - seen).mean(axis=1).sum(axis=1)) <= near:
            stepwise = False
            break
        residual, seen = residuals(s, state, paths), paths
    if stepwise:  # as where classes are nearly separable: curvatures at θ* are far smaller than on the way there
        seen, end = take_steps(s, state, pull, mean)
        local_end = np.einsum("kij,ki->kj", U, end)
    else:
        local_end = linear[:, -1] - np.einsum("kpd,kpd->kd", p.conv[:, -1], residual + pull)
    theta = np.einsum("k,kij,kj->i", w, U, local_end)
    ahead = mean.ahead
    if s.scaffold:
        ahead = ahead + (local_end - np.einsum("kij,i->kj", U, theta)) / (s.gamma * s.H)
    if s.quadratic:
        seen = linear[:, :-1] @ inverse
    return Mean(theta, ahead, residual, seen, stepwise)


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


@dataclass(frozen=True, eq=False)
class NoiseAlong:
    """Noise input of the rounds, found at rounds 0, 1, 2, 3, 4, 6, 8, 12, ... with straight lines in between.

    W(t) = W_path(t) + W_local tr W_path(t)/tr W_path(∞) + W_state tr Cov θ_t/tr Cov θ_∞: the noise at the mean's
    path, and what the spread of local models adds, as on the plateau but in proportion to what causes it.
    """

    path: Array  # W_path(∞)
    local: Array  # what the spread that arises within a round adds, on the plateau
    state: Array  # what the spread of θ and ξ_c adds, on the plateau
    plateau: float  # tr Cov θ_∞
    rounds: tuple[int, ...] = ()
    found: tuple[Array, ...] = ()

    @classmethod
    def at_plateau(cls, s: Setting, state: PlateauState) -> "NoiseAlong":
        """The three parts of the noise on the plateau, with no round of the path yet."""
        everyone = np.arange(s.problem.n_clients)
        means = local_means(s, state, everyone)
        path = input_of(s, state, path_noise(s, state, means))
        both = input_of(s, state, path_noise(s, state, means, spread=True))
        return cls(path, both - path, input_of(s, state, state.Q) - both, float(np.trace(state.cov_theta)))

    def wants(self, t: int) -> bool:
        """Whether the noise of round t is to be found: at 1, 1.5, 2, 3, 4, 6, ... until it has faded."""
        if t < 4:
            return True
        octave = 1 << (t.bit_length() - 1)
        return not self.faded and t in (octave, octave + octave // 2)

    @property
    def faded(self) -> bool:
        """Whether the noise along the mean's path is that of the plateau."""
        if len(self.rounds) < 4:
            return False
        return bool(abs(np.trace(self.found[-1]) - np.trace(self.path)) <= FADED * np.trace(self.path))

    def open_at(self, rounds: int) -> bool:
        """Whether the noise of some of the rounds lies beyond the last that was found and has not faded."""
        return not self.faded and (not self.rounds or self.rounds[-1] < rounds - 1)

    def extended(self, t: int, path: Array) -> "NoiseAlong":
        """The same with W_path of round t added; t must be later than the rounds before."""
        return replace(self, rounds=(*self.rounds, t), found=(*self.found, path))

    def at(self, t: int) -> Array:
        """W_path(t), interpolated between the rounds at which it was found."""
        after = bisect_left(self.rounds, t)
        if after == len(self.rounds):
            return self.path
        if self.rounds[after] == t:
            return self.found[after]
        left, right = self.rounds[after - 1], self.rounds[after]
        share = (t - left) / (right - left)
        return (1.0 - share) * self.found[after - 1] + share * self.found[after]

    def traces(self, A: Array, d: int, rounds: int) -> list[float]:
        """Tr Cov θ_t for t = 1, ..., rounds."""
        P = np.zeros_like(self.path)
        own, values = float(np.trace(theta_covariance(self.path, d))), [0.0]
        for t in range(rounds):
            path = self.at(t)
            within = float(np.trace(theta_covariance(path, d))) / own if own > 0.0 else 0.0
            across = values[-1] / self.plateau if self.plateau > 0.0 else 0.0
            P = A @ P @ A.T + path + within * self.local + across * self.state
            values.append(float(np.trace(theta_covariance(P, d))))
        return values[1:]


def path_noise(s: Setting, state: PlateauState, paths: Array, *, spread: bool = False) -> Array:
    """Q_c with the noise at given paths; with `spread`, of clouds around them as wide as one round makes."""
    Q = np.empty_like(state.Q)

    def work(block: ClientBlock) -> None:
        at = block.clients
        cur, points = state.cur[at], s.optimum + paths[at]
        if spread:
            clouds = s.gamma**2 * cur.rotate_back(accumulate(s.steps, cur, state.noise[at], s.steps.along))
            noise = s.averages.over_clouds(block, points, clouds, s.factors[at]).noise
        else:
            noise = s.averages.noise_at(block, points, s.factors[at])
        Q[at] = accumulate(s.steps, cur, rotate(cur.U[:, None], noise), [s.H])[:, 0]

    for_blocks(s.problem, work, copies=s.steps.nodes.size)
    return Q


def input_of(s: Setting, state: PlateauState, Q: Array) -> Array:
    """γ² Cov ε of the reduced state; of θ for FedAvg."""
    if state.system is not None:
        return s.gamma**2 * noise_input(state.system, s.problem.weights * s.own, state.cur, Q)
    U = state.cur.U
    return s.gamma**2 * weighted(s.problem.weights * s.own, U @ Q @ np.swapaxes(U, 1, 2))
