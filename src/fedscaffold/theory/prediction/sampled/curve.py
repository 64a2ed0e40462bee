"""The way to the plateau by drawn rounds."""

from typing import NamedTuple

import numpy as np

from fedscaffold.core.types import Array
from fedscaffold.theory.prediction.sampled.plateau import SampledPlateau, handled_at_once
from fedscaffold.theory.prediction.sampled.rounds import Replicas, SampledRounds, nanoseconds
from fedscaffold.theory.prediction.setting import Setting

BUDGET = 1e9  # nanoseconds of processor time
SETTLED = 8.0  # times the rounds to forget after which a run is on its plateau
DRAWN_ROUNDS = 32  # rounds that are drawn
FEWEST, MOST = 64, 16_384  # replicas


class SampledCurve(NamedTuple):
    """E‖θ_t − θ*‖² for t = 0, 1, ... as far as rounds were drawn, and standard errors, relative."""

    values: Array
    errors: Array


def sampled_curve(s: Setting, forget: float, plateau: SampledPlateau, mse: float, seed: int) -> SampledCurve:
    """The beginning of the curve from θ_0 = 0, ξ_c = 0, as long as it is not yet on the plateau and affordable.

    Beside every run goes one on the plateau that draws the same records. The two come ever closer, and E‖θ − θ*‖²
    of the second is known to be `mse`: by how much its mean over the drawn runs differs from that is taken off the
    first one's, times the coefficient of a regression.
    """
    in_all = BUDGET / (2.0 * nanoseconds(s))
    horizon = int(min(SETTLED * forget + 8.0, DRAWN_ROUNDS, in_all / FEWEST))
    count = int(min(in_all / max(horizon, 1), MOST))
    width = min(handled_at_once(s), count)
    settled, found = Replicas.joined(plateau.ends), []
    for begin in range(0, count - width + 1, width):
        draw, beside = SampledRounds(s, seed, 1 + begin), np.arange(begin, begin + width) % settled.theta.shape[2]
        now = Replicas.at(s, np.zeros_like(s.optimum), np.zeros_like(s.gradients), width)
        now, squares = now.beside(settled.chosen(beside)), np.empty((2, horizon + 1, width))
        for t in range(horizon + 1):
            now = draw(now) if t else now
            squares[:, t] = np.square(now.theta - s.optimum[:, None]).sum(axis=1)
        found.append(squares)
    values, others = np.concatenate(found, axis=2)
    return with_known_mean(values, others, mse)


def with_known_mean(values: Array, others: Array, known: float) -> SampledCurve:
    """Means of values (rounds, replicas), corrected by others beside them whose expectation is known."""
    mean, other = values.mean(axis=1, keepdims=True), others.mean(axis=1, keepdims=True)
    variance = np.square(others - other).mean(axis=1, keepdims=True)
    together = ((values - mean) * (others - other)).mean(axis=1, keepdims=True)
    slope = together / np.maximum(variance, np.finfo(float).tiny)
    found = mean - slope * (other - known)
    left = (values - mean) - slope * (others - other)
    errors = np.sqrt(np.square(left).mean(axis=1) / values.shape[1])
    return SampledCurve(found[:, 0], errors / np.maximum(found[:, 0], np.finfo(float).tiny))
