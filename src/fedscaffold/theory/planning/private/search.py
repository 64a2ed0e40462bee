"""The search for clip, noise, step size, local steps and rounds of the least predicted error under a budget.

Every local step spends budget, so that noise grows with the number of steps S = H·T. A model of all clients
together, in which only γ, S and the clip count, proposes; the predictor of `theory.predict` on some of the records
divides S into local steps and rounds; and on all records it moves a little, as often as takes little time.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from fedscaffold.core.capabilities import GeneralisedLinear
from fedscaffold.core.checks import positive, whole_number
from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.privacy import RecordLevel
from fedscaffold.core.random.batches import Batches, Sampling
from fedscaffold.core.threads import one_blas_thread
from fedscaffold.core.types import Array
from fedscaffold.methods import Scaffold
from fedscaffold.theory.planning.private.noise import NoiseOfSteps
from fedscaffold.theory.planning.private.plans import PrivatePlan, PrivatePlans
from fedscaffold.theory.planning.private.proposal import Proposal, Proposer
from fedscaffold.theory.planning.private.rehearsal import Rehearsal
from fedscaffold.theory.planning.private.simplex import least
from fedscaffold.theory.prediction.moments.curve import small_curve
from fedscaffold.theory.prediction.moments.local_round import STEP_BY_STEP
from fedscaffold.theory.prediction.moments.private import private_setting

MOST_ROUNDS, MOST_LOCAL_STEPS = 100, 64
DIVISIONS = (1, 2, 4, 8)  # local steps to try, times the fewest that the limit on rounds allows
FINALISTS = 2  # local steps and rounds whose errors are predicted from all records
FAR, NEAR = 0.25, 0.12  # logarithms of ratios that clip and step size are changed by at first, and again
TRIES, MOST_TRIES, LEAST_TRIES = 8, 24, 4  # of clip and step size
CLOSE = 2.0  # times the least error: where it is larger, clip and step size are not looked for any further
WORK = 1_000_000  # records seen, times local steps, in tries with all records: of larger tables there are fewer


@one_blas_thread
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
        raise InvalidInput("epsilon requires delta=..., below one over the number of records")
    search = PrivateSearch(
        problem, Batches(batch_size, sampling), positive("delta", delta),
        most_rounds=whole_number("max_rounds", max_rounds or MOST_ROUNDS, least=1),
        most_steps=whole_number("max_local_steps", max_local_steps or MOST_LOCAL_STEPS, least=1),
    )  # fmt: skip
    found = {budget: search.plan(budget) for budget in sorted(budgets)}  # what less can buy, more can too
    plans = tuple(found[budget] for budget in budgets)
    return PrivatePlans(plans) if isinstance(epsilon, Sequence) else plans[0]


class Trial(NamedTuple):
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
        self.noise = NoiseOfSteps(problem.sizes, batches, delta)
        self.proposer = Proposer(problem, batches, most_rounds * most_steps)
        self.rehearsal = Rehearsal(problem, batches)
        self.chosen: list[Trial] = []  # for other budgets

    def plan(self, epsilon: float) -> PrivatePlan:
        """The plan of least predicted error for a budget."""
        proposed = self.proposer.best(lambda steps: self.noise.about(epsilon, steps))

        def some(one: Trial) -> float:
            return self.rehearsed(one, epsilon)

        ranked = sorted((some(one), one) for one in self.divisions(proposed))[:FINALISTS]
        finalists = [refined(one, some, FAR, TRIES)[1] for _, one in ranked]
        self.chosen.append(self.polished([*finalists, *self.chosen[-1:]], epsilon))
        return self.settled(self.chosen[-1], epsilon)

    def polished(self, finalists: list[Trial], epsilon: float) -> Trial:
        """The best of some settings, and of others around it, by predictions from all records."""
        work = 0

        def ask(one: Trial) -> float:
            nonlocal work
            work += self.cost(one)
            return self.predicted(one, epsilon)

        def tried(one: Trial, most: int, reach: float) -> tuple[float, Trial]:
            tries = min((WORK - work) // self.cost(one), most)
            return refined(one, ask, reach, tries) if tries >= LEAST_TRIES else (math.inf, one)

        best = min((ask(one), one) for one in finalists)
        best = min(best, tried(best[1], MOST_TRIES, NEAR))
        moved, seen = True, {(one.H, one.T) for one in finalists}
        while moved:
            moved = False
            for H, T in self.neighbours(best[1].H, best[1].T):
                near = Trial(best[1].clip, best[1].gamma * math.sqrt(best[1].H * best[1].T / (H * T)), H, T)
                if (H, T) not in seen and work + self.cost(near) <= WORK:
                    seen.add((H, T))
                    found = (ask(near), near)
                    found = min(found, tried(near, TRIES, NEAR)) if found[0] <= CLOSE * best[0] else found
                    if found < best:
                        best, moved = found, True
                        break
        return best[1]

    def neighbours(self, H: int, T: int) -> list[tuple[int, int]]:
        """More or fewer local steps or rounds, or one for the other."""
        more, most = (math.ceil(1.4 * H), math.ceil(1.4 * T)), (self.most_steps, self.most_rounds)
        less = max(1, math.floor(H / 1.4)), max(1, math.floor(T / 1.4))
        pairs = [(H, less[1]), (less[0], T), (H, more[1]), (more[0], less[1]), (less[0], more[1]), (more[0], T)]
        return [pair for pair in pairs if pair[0] <= most[0] and pair[1] <= most[1] and pair != (H, T)]

    def cost(self, one: Trial) -> int:
        """Records seen, times local steps, by a prediction from all records."""
        return self.problem.x.shape[0] * one.T * min(one.H, STEP_BY_STEP)

    def divisions(self, proposed: Proposal) -> list[Trial]:
        """A number of steps as local steps and rounds."""
        total, fewest = proposed.steps, -(-proposed.steps // self.most_rounds)
        local = sorted({min(fewest * times, self.most_steps) for times in DIVISIONS})
        pairs = {(H, -(-steps // H)) for H in local for steps in (total, 2 * total)}
        return [
            Trial(proposed.clip, proposed.gamma * total / (H * T), H, T)
            for H, T in sorted(pairs)
            if self.most_rounds >= T
        ]

    def rehearsed(self, one: Trial, epsilon: float) -> float:
        """Error after the last round that is predicted from some of the records; inf where there is none."""
        noise, rest = self.noise.about(epsilon, one.H * one.T), self.proposer.rest(one.clip)
        try:
            return finite(self.rehearsal.error(one.clip, one.gamma, one.H, one.T, noise, rest))
        except np.linalg.LinAlgError:
            return math.inf

    def predicted(self, one: Trial, epsilon: float) -> float:
        """Error after the last round that is predicted from all records; inf where there is none."""
        try:
            return finite(float(self.curve(one, self.noise.about(epsilon, one.H * one.T))[-1]))
        except (InvalidInput, np.linalg.LinAlgError):
            return math.inf

    def curve(self, trial: Trial, noise: float) -> Array:
        """Predicted error after each round, from all records."""
        method = Scaffold(step_size=trial.gamma, local_steps=trial.H)
        privacy = RecordLevel(clip=trial.clip, noise_multiplier=noise)
        s, local = private_setting(self.problem, method, self.batches, privacy)
        return np.add(*small_curve(s, local, trial.T, s.optimum - self.problem.optimum()))

    def settled(self, trial: Trial, epsilon: float) -> PrivatePlan:
        """The plan with the noise that its steps need exactly."""
        noise = self.noise.exact(epsilon, trial.H * trial.T)
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


def finite(error: float) -> float:
    """An error, or inf where it is not a number."""
    return error if math.isfinite(error) else math.inf


def refined(one: Trial, ask: Callable[[Trial], float], reach: float, tries: int) -> tuple[float, Trial]:
    """The best clip and step size around others, with their error."""
    error, clip, gamma = least(
        lambda clip, gamma: ask(Trial(clip, gamma, one.H, one.T)), one.clip, one.gamma, reach=reach, tries=tries
    )
    return error, Trial(clip, gamma, one.H, one.T)
