"""Samples of clients, drawn so that sums over all clients are estimated well from few of them."""

from dataclasses import dataclass, replace

import numpy as np

from fedscaffold.core.types import Array, IntArray
from fedscaffold.theory.prediction.setting import AtOptimum, Setting

PRECISION = 1e-2  # of what later passes change, as guessed; what a sample finds says better, see `Sample.error`
NEXT = 0.1  # how much of the last change later passes are expected to change
UNLIKE = 0.4  # how much clients' next changes differ from what their last ones foretell, relative
FEWEST = 80


@dataclass(frozen=True, eq=False)
class Sample:
    """Some clients in increasing order, and how many of all clients each of them stands for."""

    clients: IntArray
    scale: Array

    def of(self, s: Setting) -> Setting:
        """The setting with these clients only, with the weights of those that they stand for."""
        at, whole = self.clients, s.at_optimum
        some = AtOptimum(
            whole.gradients[at], whole.U[at], whole.lam[at], whole.noise[at], whole.smallest, whole.largest
        )
        return replace(
            s,
            clients=s.clients[at],
            weights=s.weights[at] * self.scale,
            factors=s.factors[at],
            own=s.own[at],
            at_optimum=some,
        )

    def error(self, changes: Array) -> float:
        """Standard error of the sum over all clients of what those of the sample, and those like them, changed."""
        left = 1.0 - 1.0 / self.scale
        level = float((left * changes).sum()) / max(float(left.sum()), 1e-300)
        return float(np.sqrt((left * np.square(changes - level)).sum()))


def sample_clients(weights: Array, sizes: Array) -> Sample | None:
    """The smallest sample whose sums of what later passes change are precise enough; None where most are needed.

    Clients are drawn systematically, without replacement, with probabilities that grow with their weights and with
    what they changed in the last pass, `sizes`, relative to the whole.
    """
    chances = 0.5 * weights / weights.sum() + 0.5 * sizes / max(float(sizes.sum()), 1e-300)
    for share in (8, 4, 2):
        count = max(FEWEST, weights.size // share)
        p = inclusion(chances, count)
        if standard_error(sizes, p) <= PRECISION and count <= weights.size // 2:
            return draw(p)
    return None


def standard_error(sizes: Array, p: Array) -> float:
    """Of the sum of what clients change in the next pass, for a sample of fixed size (Hájek, 1964)."""
    left = p * (1.0 - p)
    level = float((sizes * (1.0 - p)).sum()) / max(float(left.sum()), 1e-300)
    spread = left * np.square(sizes / p - level) + np.square(UNLIKE * sizes) * (1.0 / p - 1.0)
    return NEXT * float(np.sqrt(spread.sum()))


def inclusion(chances: Array, count: int) -> Array:
    """Probabilities min(1, a · chance) that add up to about `count`."""
    p = np.minimum(1.0, count * chances / chances.sum())
    for _ in range(4):
        free = p < 1.0
        left = count - int((~free).sum())
        if left <= 0 or not free.any():
            break
        p[free] = np.minimum(1.0, left * chances[free] / chances[free].sum())
    return np.maximum(p, 1e-12)


def draw(p: Array) -> Sample:
    """A systematic sample with given probabilities: where their running sum passes 0.5, 1.5, 2.5, ..."""
    steps = np.floor(np.cumsum(p) + 0.5)
    taken = (np.diff(steps, prepend=0.0) > 0.0) | (p >= 1.0)
    clients = np.flatnonzero(taken)
    return Sample(clients, 1.0 / p[clients])
