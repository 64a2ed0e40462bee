"""The search for clip, step size and number of steps under a budget, by noisy runs on simulated rows.

Noise that a budget asks for grows as √S with the number S of steps, and S steps of size γ with such noise come
to nearly the same for all S with the same γS. So a search over clips and lengths γS is enough, in which simulated
runs take the longest steps that are safe for simulated rows, and the run itself the shortest that it has steps
for: γ is one over the largest curvature that any rows within the bounds can have or, where that would take too
many steps, at most one over the largest of rows whose columns have mean square 1.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedscaffold.core.types import Array
from fedscaffold.data.public import PublicTarget
from fedscaffold.models.private.curvature import bounded_curvature, mean_squares, simulated_curvature
from fedscaffold.models.private.simulated import n_coefficients, simulated_problems
from fedscaffold.models.private.trials import Trials, gradient_norms, relative_errors
from fedscaffold.privacy.accounting import noise_for
from fedscaffold.privacy.settings import PrivacySettings

MOST_ROUNDS, MOST_LOCAL_STEPS = 20, 512
FEWEST_ROWS, MOST_ROWS = 300, 800  # of simulated tables; noise is scaled to the table's own number
ROWS_PER_COLUMN = 6
CLIPS, QUANTILES = 6, (0.1, 0.98)  # how many are tried, between which quantiles of the gradients' norms
LENGTHS = np.geomspace(0.01, 1500.0, 23)  # γS in units of one over the largest curvature of simulated rows
WORK = 2e9  # most steps · rows · coefficients, if that is less than what rounds and local steps allow
FEWER_LOCAL_STEPS = 64  # which that leaves in any case
FEWEST_STEPS = 8  # of a simulated run, unless the run itself takes fewer
NUMBERS, FINAL_NUMBERS = 32, 200  # coordinates of all repetitions together, in the search and for the error told
WORSE = 1.2  # longer runs are not tried after two lengths that were worse than the best by so much


@dataclass(frozen=True, kw_only=True)
class RunChoice:
    """Settings of a run."""

    clip: float
    step_size: float
    local_steps: int
    rounds: int

    @property
    def steps(self) -> int:
        """Number of steps that each client takes."""
        return self.local_steps * self.rounds


class PublicSearch:
    """The search for one table of which only public facts are known.

    Parameters
    ----------
    target, levels, sizes
        What is known of the target, number of values of each feature (0 for numbers), and rows of each client.
    settings, delta
        The budget, and settings that stay as they are.
    l2
        Strength of the penalty.
    intercept
        Whether there is one.
    spare_rounds
        Rounds for which the noise shall suffice beyond the planned ones.
    """

    def __init__(
        self, target: PublicTarget, levels: Sequence[int], sizes: Array, settings: PrivacySettings, *,
        delta: float, l2: float, intercept: bool, spare_rounds: int,
    ) -> None:  # fmt: skip
        width = n_coefficients(levels, intercept=intercept)
        rows = min(max(FEWEST_ROWS, ROWS_PER_COLUMN * width), MOST_ROWS)
        self.target, self.settings, self.l2, self.spare_rounds = target, settings, l2, spare_rounds
        self.squares = mean_squares(levels, intercept=intercept)
        self.problems = simulated_problems(target, levels, rows=rows, l2=l2, intercept=intercept)
        self.curvatures: dict[float, dict[int, float]] = {}
        affordable = int(WORK / (MOST_ROUNDS * sizes.sum() * self.problems[0].dim))
        self.most_local_steps = min(MOST_LOCAL_STEPS, max(FEWER_LOCAL_STEPS, affordable))
        # of the mean of all rows' gradients, for one step and a clip of 1
        self.noise = (
            noise_for(epsilon=settings.epsilon, delta=delta, steps=1) * math.sqrt(sizes.size) / sizes.sum()
        )

    def best(self) -> tuple[RunChoice, float]:
        """The settings of least error on simulated rows, and that error, E‖θ − θ*‖² / ‖θ*‖².

        The error is that of further runs, since the least of many is too low.
        """
        least, chosen, late = math.inf, None, 0
        for same in self._candidates():
            errors = self._errors(same, NUMBERS, seed=1)
            k = int(np.argmin(errors))
            if errors[k] < least:
                least, chosen, late = float(errors[k]), same[k], 0
            elif errors[k] > WORSE * least:
                late += 1
            if late == 2:
                break
        if chosen is None:
            return RunChoice(clip=1.0, step_size=1.0, local_steps=1, rounds=1), math.inf
        return chosen, float(self._errors([chosen], FINAL_NUMBERS, seed=2)[0])

    def _errors(self, candidates: Sequence[RunChoice], numbers: int, seed: int) -> Array:
        """Relative squared error of each candidate, as a mean over the simulated tables."""
        clips = np.array([one.clip for one in candidates])
        lengths = np.array([one.step_size * one.steps for one in candidates])
        most = np.array([one.steps for one in candidates])
        spare = np.array([1.0 + self.spare_rounds / one.rounds for one in candidates])
        again = 2 * -(-numbers // (2 * self.problems[0].dim))
        found = []
        for problem in self.problems:
            curved = np.array([self._curvature(problem, clip) for clip in clips.tolist()])
            steps = np.minimum(most, np.maximum(FEWEST_STEPS, np.ceil(lengths * curved))).astype(np.int64)
            noise = self.noise * clips * np.sqrt(steps * spare)
            trials = Trials(clip=clips, step_size=lengths / steps, steps=steps, noise=noise)
            found.append(relative_errors(problem, trials, repetitions=again, seed=seed))
        return np.asarray(np.mean(found, axis=0))

    def _curvature(self, problem: Any, clip: float) -> float:
        """The largest curvature of a simulated table's clipped loss, computed once."""
        known = self.curvatures.setdefault(clip, {})
        if id(problem) not in known:
            known[id(problem)] = simulated_curvature(self.target, problem, clip)
        return known[id(problem)]

    def _clips(self) -> list[float]:
        """Clips to choose from, between quantiles of gradients' norms at θ* and at 0, between which runs move."""
        if self.settings.clip is not None:
            return [self.settings.clip]
        points = [(one, theta) for one in self.problems for theta in (one.optimum(), np.zeros(one.dim))]
        norms = np.concatenate([gradient_norms(problem, theta) for problem, theta in points])
        low, high = np.quantile(norms[norms > 0.0], QUANTILES).tolist()
        return np.geomspace(low, high, CLIPS).tolist()

    def _candidates(self) -> Iterator[list[RunChoice]]:
        """Settings to choose from, short runs first: for each length those with each clip."""
        clips = self._clips()
        curved = [max(self._curvature(problem, clip) for problem in self.problems) for clip in clips]
        for length in LENGTHS.tolist():
            found = (
                self._candidate(clip, length, curvature) for clip, curvature in zip(clips, curved, strict=True)
            )
            same = [one for one in found if one is not None]
            if same:
                yield same

    def _candidate(self, clip: float, length: float, curvature: float) -> RunChoice | None:
        """Settings with a clip for γS = length / curvature; None where that would take too many steps."""
        assumed, most = (bounded_curvature(self.target, clip, square) + self.l2 for square in self.squares)
        total, given = length / curvature, self.settings.step_size
        H, T = self._split(total * most if given is None else total / given)
        gamma = total / (H * T) if given is None else given
        if given is None and gamma > 1.0 / assumed and length > LENGTHS[0]:
            return None
        gamma = gamma if given is not None else min(gamma, 1.0 / assumed)
        return RunChoice(clip=clip, step_size=gamma, local_steps=H, rounds=T)

    def _split(self, steps: float) -> tuple[int, int]:
        """Local steps and rounds for about so many steps, or as near as what is given allows."""
        H, T = self.settings.local_steps, self.settings.rounds
        wanted = max(MOST_ROUNDS, math.ceil(min(steps, 1e9)))
        if H is None:
            H = min(self.most_local_steps, -(-wanted // (T or MOST_ROUNDS)))
        return H, T or max(1, min(MOST_ROUNDS, -(-wanted // H)))
