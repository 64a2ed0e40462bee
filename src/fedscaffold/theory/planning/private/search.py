"""The search for clip, noise, step size, local steps and rounds of the least predicted error under a budget.

Every local step spends budget, so that noise grows with the number of steps S = H·T: few steps do not get there,
many are drowned. A linear model of all clients together, in which only γ, S and the clip count, proposes;
the predictor of `theory.predict` then moves from there, ever less.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedscaffold.core.capabilities import GeneralisedLinear
from fedscaffold.core.checks import positive, whole_number
from fedscaffold.core.errors import InvalidInput, Option
from fedscaffold.core.privacy import RecordLevel
from fedscaffold.core.random.batches import Batches, Sampling
from fedscaffold.core.types import Array
from fedscaffold.methods import Scaffold
from fedscaffold.privacy.accounting import noise_for
from fedscaffold.theory.planning.private.clipped_quadratic import ClippedQuadratic
from fedscaffold.theory.planning.private.plans import PrivatePlan, PrivatePlans
from fedscaffold.theory.prediction.moments.curve import small_curve
from fedscaffold.theory.prediction.moments.private import private_setting

MOST_ROUNDS, MOST_LOCAL_STEPS = 100, 64
CLIPS = (0.2, 0.35, 0.5, 0.7, 0.85, 0.95, 1.0)  # quantiles of the records' gradient norms
STEP_SIZES = np.geomspace(1e-3, 1.0, 25)  # times 2 over the largest curvature
RATIOS = (1.6, 1.25, 1.1)
MOST_TRIES = 60


def private_plan(
    problem: Any,
    *,
    epsilon: float | Sequence[float],
    delta: float | None,
    batch_size: int | None,
    sampling: Sampling,
    max_local_steps: int | None,
    max_rounds: int | None,
) -> PrivatePlan | PrivatePlans:
    """Plans for one budget or for several, of all clients' records."""
    if not isinstance(problem, GeneralisedLinear):
        raise InvalidInput("plans under a privacy budget are for ridge and logistic regression on tables")
    budgets = [positive("epsilon", one) for one in (epsilon if isinstance(epsilon, Sequence) else [epsilon])]
    if delta is None:
        raise InvalidInput(Option("epsilon"), " needs ", Option("delta"), ", below one over the number of records")
    search = PrivateSearch(
        problem, Batches(batch_size, sampling), positive("delta", delta),
        most_rounds=whole_number("max_rounds", max_rounds or MOST_ROUNDS, least=1),
        most_steps=whole_number("max_local_steps", max_local_steps or MOST_LOCAL_STEPS, least=1),
    )  # fmt: skip
    plans = tuple(search.plan(budget) for budget in budgets)
    return PrivatePlans(plans) if isinstance(epsilon, Sequence) else plans[0]


@dataclass(frozen=True)
class Trial:
    """Settings of a private run."""

    clip: float
    gamma: float
    H: int
    T: int


class PrivateSearch:
    """The search for plans of one problem; what depends on the clip alone is kept between budgets."""

    def __init__(
        self, problem: GeneralisedLinear, batches: Batches, delta: float, *, most_rounds: int, most_steps: int
    ) -> None:
        batches.check_fits(problem.sizes)
        self.problem, self.batches, self.delta = problem, batches, delta
        self.most_rounds, self.most_steps = most_rounds, most_steps
        smallest = int(problem.sizes.min())
        if delta >= 1.0 / int(problem.sizes.max()):
            largest = int(problem.sizes.max())
            raise InvalidInput(
                Option("delta"),
                f" must be below {1.0 / largest:.3g}, one over the {largest:,} records of a client; got {delta:g}",
            )
        self.accounting = {
            "delta": delta, "batch_size": batches.size, "records": smallest, "sampling": batches.sampling,
        }  # fmt: skip
        self.models = [ClippedQuadratic.of(problem, batches, clip) for clip in self._clips()]
        self.known: dict[tuple[float, int], float] = {}

    def _clips(self) -> list[float]:
        """Quantiles of the norms of records' gradients at θ* and at 0, between which runs move."""
        problem = self.problem
        norms = np.linalg.norm(problem.x, axis=1)
        points = (problem.optimum(), np.zeros(problem.dim))
        at = [np.abs(problem.d1(problem.x @ theta, problem.y)) * norms for theta in points]
        return sorted({float(q) for each in at for q in np.quantile(each, CLIPS) if q > 0.0})

    def noise(self, epsilon: float, steps: int) -> float:
        """Noise multiplier for a number of steps; with batches between those for steps some way apart."""
        if self.batches.size is None:
            return noise_for(epsilon=epsilon, steps=steps, **self.accounting)  # type: ignore[arg-type]
        ends = [4 ** math.floor(math.log(steps, 4)), 4 ** math.ceil(math.log(steps, 4))]
        for end in ends:
            if (epsilon, end) not in self.known:
                exact = noise_for(epsilon=epsilon, steps=end, **self.accounting)  # type: ignore[arg-type]
                self.known[epsilon, end] = exact
        low, high = (math.log(self.known[epsilon, end]) for end in ends)
        share = 0.0 if ends[0] == ends[1] else math.log(steps / ends[0]) / math.log(ends[1] / ends[0])
        return math.exp((1.0 - share) * low + share * high)

    def plan(self, epsilon: float) -> PrivatePlan:
        """The plan of least predicted error for a budget."""
        best = self.first(epsilon)
        error = self.error(best, epsilon)
        seen, left = {best}, MOST_TRIES
        for ratio in RATIOS:
            moved = True
            while moved and left > 0:
                moved = False
                for tried in self.moves(best, ratio):
                    if tried in seen or left == 0:
                        continue
                    seen.add(tried)
                    left -= 1
                    found = self.error(tried, epsilon)
                    if found < error:
                        best, error, moved = tried, found, True
                        break
        return self.settled(best, epsilon)

    def first(self, epsilon: float) -> Trial:
        """What the linear model proposes."""
        found: list[tuple[float, Trial]] = []
        totals = np.unique(np.geomspace(1, self.most_rounds * self.most_steps, 30).astype(int))
        for total in totals.tolist():
            noise = self.noise(epsilon, total)
            H = -(-total // self.most_rounds)
            T = max(1, total // H)
            for model in self.models:
                gammas = STEP_SIZES * 2.0 / model.largest
                errors = [model.error(gamma, H * T, noise) for gamma in gammas]
                k = int(np.argmin(errors))
                found.append((errors[k], Trial(model.clip, float(gammas[k]), H, T)))
        return min(found, key=lambda one: one[0])[1]

    def moves(self, at: Trial, ratio: float) -> list[Trial]:
        """Settings around some others."""

        def near(clip: int, gamma: int, H: int, T: int) -> Trial:
            return Trial(
                at.clip * ratio**clip,
                at.gamma * ratio**gamma,
                max(1, min(self.most_steps, round(at.H * ratio**H))),
                max(1, min(self.most_rounds, round(at.T * ratio**T))),
            )

        single = [near(*(s if i == j else 0 for j in range(4))) for i in range(4) for s in (1, -1)]
        return [
            *single,
            near(0, 1, 0, -1),
            near(0, -1, 0, 1),
            near(0, 0, 1, -1),
            near(0, 0, -1, 1),
            near(1, -1, 0, 0),
        ]

    def curve(self, trial: Trial, noise: float) -> Array:
        """Predicted error after each round."""
        method = Scaffold(step_size=trial.gamma, local_steps=trial.H)
        privacy = RecordLevel(clip=trial.clip, noise_multiplier=noise)
        s, local = private_setting(self.problem, method, self.batches, privacy)
        return np.add(*small_curve(s, local, trial.T, s.optimum - self.problem.optimum()))

    def error(self, trial: Trial, epsilon: float) -> float:
        """Predicted error after the last round; infinite where there is no prediction."""
        try:
            error = float(self.curve(trial, self.noise(epsilon, trial.H * trial.T))[-1])
        except (InvalidInput, np.linalg.LinAlgError):
            return math.inf
        return error if math.isfinite(error) else math.inf

    def settled(self, trial: Trial, epsilon: float) -> PrivatePlan:
        """The plan with the noise that its steps need exactly."""
        noise = noise_for(epsilon=epsilon, steps=trial.H * trial.T, **self.accounting)  # type: ignore[arg-type]
        curve = self.curve(trial, noise)
        return PrivatePlan(
            epsilon=epsilon,
            delta=self.delta,
            method=Scaffold(step_size=trial.gamma, local_steps=trial.H),
            rounds=trial.T,
            batch_size=self.batches.size,
            sampling=self.batches.sampling,
            privacy=RecordLevel(clip=trial.clip, noise_multiplier=noise),
            predicted_mse=float(curve[-1]),
            curve=curve,
        )
