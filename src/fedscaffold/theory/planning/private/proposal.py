"""Clip, step size and number of steps for a budget, by the pooled model of all clients.

Noise grows with the root of the number of steps S, and what it adds up to hardly depends on S while γS is the
same: over wide ranges of S the least error is nearly the same too. So clip and γS are found for few steps, which
takes a moment, and S is changed where that gains something.
"""

import math
from collections.abc import Callable
from functools import cached_property
from typing import NamedTuple

import numpy as np

from fedscaffold.core.capabilities import GeneralisedLinear
from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.random.batches import Batches
from fedscaffold.core.types import Array
from fedscaffold.theory.planning.private.clipped_quadratic import ClippedQuadratic
from fedscaffold.theory.planning.private.pooled import PooledRecords
from fedscaffold.theory.planning.private.simplex import least

CLIPS = (0.2, 0.35, 0.5, 0.7, 0.85, 0.95, 1.0)  # quantiles of the records' gradient norms
BEYOND = 1.3  # times the longest of these clips, and one over it of the shortest, none is looked for
APART = 1.15  # clips that are nearer to each other, as a ratio, are taken as one
SMALL_STEP, MANY_STEPS = 0.2, 1024  # of the runs that show all numbers of steps; γ over the largest curvature
GROWTH = 0.4  # of the number of steps between two looks at them
TINY = 1e-3  # noise multiplier of these runs
ARRIVED = 1e-5  # of the squared distance at the start: with so little change of the bias, more steps gain nothing
NEARLY = 3.0  # times the least of these errors
FEW_STEPS = 16  # to begin with
FAR, NEAR = 0.25, 0.15  # logarithms of ratios that clip and step size are changed by at first, and again
TRIES, MORE_TRIES = 20, 10
LONG_STEPS = (0.5, 1.0, 2.0, 4.0)  # over the largest curvature with a clip
GAIN = 0.97  # of the error: four times as many steps are worth it where they gain as much


class Proposal(NamedTuple):
    """Settings of a private run, local steps and rounds counted together."""

    clip: float
    gamma: float
    steps: int


class Proposer:
    """Proposals for one problem; what depends on the clip alone is kept between budgets."""

    def __init__(self, problem: GeneralisedLinear, batches: Batches, most_steps: int) -> None:
        self.problem, self.batches, self.most_steps = problem, batches, most_steps
        self.pooled = PooledRecords(problem, batches)
        self.models: list[ClippedQuadratic] = []  # by clip, the longest first
        for clip in self._clips():
            near = self.models[-1].optimum if self.models else None
            try:
                self.models.append(ClippedQuadratic.of(problem, batches, clip, near))
            except InvalidInput:  # so short a clip leaves nothing to settle around
                if not self.models:
                    raise
                break

    def _clips(self) -> list[float]:
        """Quantiles of the norms of records' gradients at θ* and at 0, between which runs move; falling."""
        problem = self.problem
        norms = np.linalg.norm(problem.x, axis=1)
        points = (problem.optimum(), np.zeros(problem.dim))
        at = [np.abs(problem.d1(problem.x @ theta, problem.y)) * norms for theta in points]
        found: list[float] = []
        for clip in sorted({float(q) for each in at for q in np.quantile(each, CLIPS) if q > 0.0}, reverse=True):
            if not found or found[-1] > APART * clip:
                found.append(clip)
        return found

    def best(self, noise: Callable[[int], float]) -> Proposal:
        """The proposal of least error in the pooled model; noise by the number of steps."""
        found = [self._from(clip, length, noise) for clip, length in self._first(noise)]
        return min(*found, self._two_steps(noise))[1]

    def _two_steps(self, noise: Callable[[int], float]) -> tuple[float, Proposal]:
        """The best of two long steps: with short clips these may be better than any number of small ones."""
        steps = min(2, self.most_steps)
        tried = [Proposal(one.clip, size / one.largest, steps) for one in self.models for size in LONG_STEPS]
        return self.refined(min((self.error(one, noise), one) for one in tried)[1], noise, FAR, TRIES)

    def _from(self, clip: float, length: float, noise: Callable[[int], float]) -> tuple[float, Proposal]:
        """The proposal of least error that is found from a clip and γS on."""
        steps = min(FEW_STEPS, self.most_steps)
        error, best = self.refined(Proposal(clip, length / steps, steps), noise, FAR, TRIES)
        while best.steps < self.most_steps:
            found = self.refined(with_steps(best, min(4 * best.steps, self.most_steps)), noise, NEAR, MORE_TRIES)
            if not found[0] < GAIN * error:
                break
            error, best = found
        while 1 < best.steps <= steps:
            found = self.refined(with_steps(best, best.steps // 2), noise, NEAR, MORE_TRIES)
            if not found[0] < error:
                break
            error, best = found
        return error, best

    @cached_property
    def _paths(self) -> list[tuple[float, Array, Array, Array]]:
        """For each clip numbers t of small steps, and bias² and variance after them, for a noise multiplier of 1.

        Without the noise of batches, and as if the noise of privacy were too small to matter for mean slopes: the
        variance then grows with its square, and one run shows all budgets and all numbers of steps.
        """
        gamma, last = SMALL_STEP / self.models[0].largest, min(MANY_STEPS, self.most_steps)
        still, found = PooledRecords(self.problem, Batches()), []
        for model in self.models:
            path: list[tuple[int, float, float]] = []
            for look in still.run(model.clip, TINY, model.optimum).path(gamma, last, GROWTH):
                path.append(look)
                if len(path) > 1 and abs(path[-2][1] - look[1]) < ARRIVED * float(model.start @ model.start):
                    break
            counts, biases, variances = np.array(path).T
            scale = self.pooled.variance(model.clip) / still.variance(model.clip) / TINY**2
            found.append((model.clip, counts, biases, scale * variances))
        return found

    def _first(self, noise: Callable[[int], float]) -> list[tuple[float, float]]:
        """Clips, and γS of the least error of small steps with them: the best, and another that is nearly as good.

        Short clips, with which steps are of one length, may be the best where there are hardly any steps.
        """
        found = []
        for clip, counts, biases, variances in self._paths:
            multipliers = np.array([noise(t) for t in counts.astype(int).tolist()])
            errors = biases + variances * np.square(multipliers)
            k = int(np.argmin(errors))
            found.append((float(errors[k]), clip, SMALL_STEP / self.models[0].largest * float(counts[k])))
        errors = np.array([math.inf, *(error for error, _, _ in found), math.inf])
        valleys = (errors[1:-1] <= errors[:-2]) & (errors[1:-1] <= errors[2:])
        ranked = sorted(one for one, lowest in zip(found, valleys, strict=True) if lowest)[:2]
        return [(clip, length) for error, clip, length in ranked if error <= NEARLY * ranked[0][0]]

    def refined(
        self, one: Proposal, noise: Callable[[int], float], reach: float, tries: int
    ) -> tuple[float, Proposal]:
        """The best clip and step size around others, with their error."""
        error, clip, gamma = least(
            lambda clip, gamma: self.error(Proposal(clip, gamma, one.steps), noise), one.clip, one.gamma,
            reach=reach, tries=tries,
        )  # fmt: skip
        return error, Proposal(clip, gamma, one.steps)

    def error(self, one: Proposal, noise: Callable[[int], float]) -> float:
        """E‖θ − θ*‖² at the end by the pooled model; inf for clips beyond those whose optimum is known."""
        if not self.models[-1].clip / BEYOND <= one.clip <= BEYOND * self.models[0].clip:
            return math.inf
        rest = self.rest(one.clip)
        with np.errstate(over="ignore", invalid="ignore"):
            return self.pooled.error(one.clip, one.gamma, one.steps, noise(one.steps), rest)

    def rest(self, clip: float) -> Array:
        """Where the mean clipped gradient vanishes: on straight lines between the clips of the models."""
        models = self.models[::-1]
        place = float(np.interp(math.log(clip), [math.log(one.clip) for one in models], range(len(models))))
        low = min(int(place), max(len(models) - 2, 0))
        high = min(low + 1, len(models) - 1)
        return models[low].optimum + (place - low) * (models[high].optimum - models[low].optimum)


def with_steps(one: Proposal, steps: int) -> Proposal:
    """As far in another number of steps."""
    return Proposal(one.clip, one.gamma * one.steps / steps, steps)
