"""All clients together as one, on some of their records: what private steps come to, in a few milliseconds.

Scaffold with one local step is gradient descent on the mean loss, and with more of them nearly so once control
variates are known. So the mean and covariance of one model are followed, over whose cloud clipped slopes are
averaged as in `theory.predict`. Gradients are moved by a constant, such that they vanish where those of all
records do: few records then show how steep and how noisy the way to that point is, and where it lies they need
not know.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from fedscaffold.core.capabilities import GeneralisedLinear
from fedscaffold.core.random.batches import Batches
from fedscaffold.core.types import Array
from fedscaffold.theory.client_blocks import ClientBlock, noise_factors
from fedscaffold.theory.planning.private.record_sample import RecordSample
from fedscaffold.theory.prediction.clouds.averages import Averages
from fedscaffold.theory.prediction.clouds.clipped import ClippedAverages
from fedscaffold.theory.prediction.local_steps import divided

ABOUT = 1000  # records
CHANGE = 0.05  # of the cloud's size that two tries of many steps at once may differ by; the better one is used
LEAST = 1e-3  # of the squared distance at the start: what is nearer than that is not told apart so finely
HOPELESS = 1e3  # times the error at the start: runs that are there go nowhere


@dataclass(frozen=True, eq=False)
class PooledRecords:
    """Records of all clients, or a sample of them, as those of one client."""

    problem: GeneralisedLinear
    batches: Batches

    @cached_property
    def block(self) -> ClientBlock:
        """The records; each counts as much as all those of its client that it stands for."""
        return RecordSample(self.problem, ABOUT).pooled

    @cached_property
    def factor(self) -> Array:
        """Variance of the mean of the clients' batches over that of one record, (1,)."""
        return np.array([np.square(self.problem.weights) @ noise_factors(self.problem, self.batches)])

    def variance(self, clip: float) -> float:
        """Of every coordinate of the clients' mean privacy noise, for a noise multiplier of 1."""
        problem = self.problem
        counts = problem.sizes if self.batches.size is None else np.full(problem.n_clients, self.batches.size)
        return float(np.sum(np.square(problem.weights * clip / counts)))

    def error(self, clip: float, gamma: float, steps: int, noise: float, rest: Array) -> float:
        """E‖θ_S − θ*‖² after S steps from θ_0 = 0; the clipped gradient of all records vanishes at `rest`."""
        _, bias, variance = list(self.run(clip, noise, rest).path(gamma, steps))[-1]
        return bias + variance

    def run(self, clip: float, noise: float, rest: Array) -> "PooledRun":
        """Runs with a clip and a noise multiplier."""
        variance = noise**2 * self.variance(clip)
        return PooledRun(self, ClippedAverages(self.problem, False, clip, np.array([variance])), rest)


@dataclass(frozen=True, eq=False)
class PooledRun:
    """Steps with a clip and noise on the records of all clients."""

    pooled: PooledRecords
    averages: ClippedAverages
    rest: Array

    @cached_property
    def moved(self) -> Array:
        """What the sample's gradient is where that of all records vanishes."""
        return self.averages.at_point(self.pooled.block, self.rest, self.pooled.factor).gradient[0]

    def path(self, gamma: float, steps: int, growth: float = 1.0) -> Iterator[tuple[int, float, float]]:
        """‖E θ_t − θ*‖² and tr Cov θ_t after some numbers t of steps from θ_0 = 0, the last of them S.

        They are inf where runs diverge. As many steps are taken at once as hardly change what a step does, and at
        most `growth` times those before.
        """
        d, optimum = self.rest.size, self.pooled.problem.optimum()
        mean, cov, done, k = np.zeros(d), np.zeros((d, d)), 0, 1
        limit = HOPELESS * float(optimum @ optimum) + np.finfo(float).tiny
        while done < steps:
            here, k = self.over_cloud(mean, cov), min(k, steps - done, max(1, int(growth * done)))
            first = advance(mean, cov, here, mean, gamma, k)
            change = self.difference((mean, cov), first) if k == 1 else np.inf
            while k > 1:
                middle = advance(mean, cov, here, mean, gamma, k // 2)
                better = advance(mean, cov, self.over_cloud(*middle), middle[0], gamma, k)
                change = self.difference(first, better)
                if change <= CHANGE:
                    first = better
                    break
                k, first = k // 2, middle
            (mean, cov), done = first, done + k
            if not np.trace(cov) + mean @ mean <= limit:
                yield steps, np.inf, np.inf
                return
            yield done, float(np.square(mean - optimum).sum()), float(np.trace(cov))
            k = 2 * k if change < 0.5 * CHANGE else k

    def over_cloud(self, mean: Array, cov: Array) -> Averages:
        """Mean gradient, noise and curvature over a cloud of models."""
        found = self.averages.over_clouds(self.pooled.block, mean[None, None], cov[None, None], self.pooled.factor)
        return Averages(found.gradient[0, 0] - self.moved, found.noise[0, 0], found.hessian[0, 0])

    def difference(self, one: tuple[Array, Array], other: tuple[Array, Array]) -> float:
        """How far apart two clouds are, in units of the second one's distance from rest, and some of that of 0."""
        size = float(np.trace(other[1]) + np.square(other[0] - self.rest).sum() + LEAST * self.rest @ self.rest)
        size += np.finfo(float).tiny
        apart = float(np.abs(other[1] - one[1]).sum()) / size
        return apart + (float(np.square(other[0] - one[0]).sum()) / size) ** 0.5


def advance(mean: Array, cov: Array, of: Averages, where: Array, gamma: float, k: int) -> tuple[Array, Array]:
    """Mean and covariance after k steps with averages that were found around `where`."""
    pull = of.gradient + of.hessian @ (mean - where)
    if k == 1:
        turn = np.eye(mean.size) - gamma * of.hessian
        return mean - gamma * pull, turn @ cov @ turn + gamma**2 * of.noise
    lam, U = np.linalg.eigh(of.hessian)
    g = 1.0 - gamma * lam
    power = g**k
    after = mean - gamma * U @ (divided(g, power, 1.0, k) * (U.T @ pull))
    products, powers = np.multiply.outer(g, g), np.multiply.outer(power, power)
    spread = powers * (U.T @ cov @ U) + divided(products, powers, 1.0, k) * (gamma**2 * U.T @ of.noise @ U)
    return after, U @ spread @ U.T
