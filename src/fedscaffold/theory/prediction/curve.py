"""The way to the plateau: the mean's path without small-γ approximations, and the covariance that builds up.

The mean of a round follows the non-linear recursion without noise (`mean_rounds`), plus the pull of the round's
noise on the mean. The covariance follows the linear recursion with the noise of the round, see `round_noise`.
"""

from dataclasses import replace

import numpy as np

from fedscaffold.core.types import Array
from fedscaffold.theory.prediction.local_steps import along, steps
from fedscaffold.theory.prediction.many_clients.first_guess import FEW_STEPS, LEAST
from fedscaffold.theory.prediction.many_clients.mean_rounds import (
    Mean,
    advance,
    linear_paths,
    noise_pull,
    propagator,
)
from fedscaffold.theory.prediction.many_clients.spread import SpreadOfRounds
from fedscaffold.theory.prediction.plateau import PlateauState
from fedscaffold.theory.prediction.round_noise import RoundNoise, RoundNoises
from fedscaffold.theory.prediction.setting import MANY_CLIENTS, Setting

REPEATS = 2  # of the first rounds, whose mean depends much on the pull of their noise
MOVED = 1e-3  # of the mean's norm: where the pull moves it by less, once is enough
FIRST_ROUNDS = 4  # whose noise is found each; later ones at 1, 1.5, 2, 3, 4, 6, ... times it


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
        wanted = noises is not None and not faded and is_wanted(t)
        before, mean = mean, advance(s, state, p, pull, mean, scale, with_paths=wanted)
        for _ in range((REPEATS if t < FIRST_ROUNDS and not s.quadratic else 1) if wanted else 0):
            assert noises is not None
            all_paths = linear_paths(p, state, before, everyone) if mean.paths is None else mean.paths
            level = noises.level(all_paths[:, all_paths.shape[1] // 2]) / resting if s.quadratic else 1.0
            last = noises.at(t, all_paths[noises.clients], spread.guess(t), last, level)
            faded = t >= FIRST_ROUNDS and noises.faded(last)
            if not s.quadratic:
                pull = plateau_pull if faded else plateau_pull + noises.pull_beyond(last) @ state.cur.U
                warm = replace(before, residual=mean.residual, seen=mean.seen, stepwise=mean.stepwise)
                first, mean = mean, advance(s, state, p, pull, warm, scale) if t < FIRST_ROUNDS else mean
                if np.linalg.norm(mean.theta - first.theta) <= MOVED * np.linalg.norm(mean.theta):
                    break
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
