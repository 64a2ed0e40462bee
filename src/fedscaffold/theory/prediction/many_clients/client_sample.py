"""Samples of clients, drawn so that sums over all clients are estimated well from few of them."""

from dataclasses import dataclass, replace

import numpy as np

from fedscaffold.core.capabilities import GeneralisedLinear
from fedscaffold.core.types import Array, IntArray
from fedscaffold.theory.client_blocks import list_blocks
from fedscaffold.theory.prediction.setting import AtOptimum, Setting

LARGEST_KEPT = 8_000_000  # numbers in the products of all pairs of features of a sample's records


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
        keep = (
            isinstance(s.problem, GeneralisedLinear)
            and int(s.problem.sizes[s.clients[at]].sum()) * s.problem.dim**2 <= 2 * LARGEST_KEPT
        )
        return replace(
            s,
            clients=s.clients[at],
            weights=s.weights[at] * self.scale,
            factors=s.factors[at],
            own=s.own[at],
            at_optimum=some,
            kept=list_blocks(s.problem, copies=s.steps.nodes.size, clients=s.clients[at]) if keep else None,
        )

    def error(self, changes: Array) -> float:
        """Standard error of the sum over all clients of what those of the sample, and those like them, changed."""
        left = 1.0 - 1.0 / self.scale
        level = float((left * changes).sum()) / max(float(left.sum()), 1e-300)
        return float(np.sqrt((left * np.square(changes - level)).sum()))


def sample_clients(weights: Array, sizes: Array, count: int) -> Sample:
    """About so many clients, drawn systematically and without replacement.

    Their probabilities grow with their weights and with `sizes`, of what they are thought to contribute.
    """
    return draw(inclusion(0.5 * weights / weights.sum() + 0.5 * sizes / max(float(sizes.sum()), 1e-300), count))


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
