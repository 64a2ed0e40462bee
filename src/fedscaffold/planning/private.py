"""Plans under privacy budgets: clip, noise, step size, local steps and rounds of the least simulated error.

Every local step spends budget, so the noise grows with the number of steps; `fedscaffold.privacy.noise_for` gives
the multiplier. The search is that of other plans (`search.descend`), over clip, γ, H and T.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from fedscaffold.core.capabilities import GeneralisedLinear
from fedscaffold.core.checks import positive
from fedscaffold.core.display import Advance
from fedscaffold.core.errors import Diverged, InvalidInput
from fedscaffold.core.privacy import RecordLevel
from fedscaffold.core.random.stream import Batches
from fedscaffold.core.types import IntArray
from fedscaffold.methods import Scaffold
from fedscaffold.planning.measured import Subject, measured_curve
from fedscaffold.planning.plans import Plan, Plans
from fedscaffold.planning.prediction import optimum_of
from fedscaffold.planning.search import WORK, Meter, Settings, descend
from fedscaffold.privacy.accounting import noise_for
from fedscaffold.problems import Logistic, Ridge

SAMPLE = 4000  # records that searches look at: their errors differ by percents from errors of all records


def private_plans(
    problem: Any,
    *,
    epsilon: float | Sequence[float],
    delta: float | None,
    batches: Batches,
    most_rounds: int,
    most_local_steps: int,
    optimum: ArrayLike | None,
    advance: Advance,
) -> Plan | Plans:
    """Return the plan of least error for each budget; larger budgets begin where smaller ones ended.

    Raises
    ------
    InvalidInput
        If the problem is not a table of ridge or logistic regression, or the budget cannot be used.
    """
    if not isinstance(problem, GeneralisedLinear):
        raise InvalidInput("plans under a privacy budget are for ridge and logistic regression on tables")
    budgets = [positive("epsilon", one) for one in (epsilon if isinstance(epsilon, Sequence) else [epsilon])]
    if delta is None:
        raise InvalidInput("epsilon requires delta=..., below one over the number of records")
    batches.check_fits(problem.sizes)
    search = _Search(problem, batches, positive("delta", delta), most_rounds, most_local_steps, optimum)
    found: dict[float, Plan] = {}
    start = search.start()
    for k, budget in enumerate(sorted(set(budgets))):
        start = search.best(budget, start)
        found[budget] = search.plan(budget, start)
        advance(k + 1, len(budgets))
    plans = tuple(found[budget] for budget in budgets)
    return Plans(plans) if isinstance(epsilon, Sequence) else plans[0]


class _Search:
    """Simulated errors of Scaffold with a clip, γ, H and T under budgets of one problem."""

    def __init__(
        self, problem: Any, batches: Batches, delta: float, most_rounds: int, most_steps: int, optimum: Any
    ) -> None:
        largest = int(problem.sizes.max())
        if delta >= 1.0 / largest:
            raise InvalidInput(
                f"delta must be below {1.0 / largest:.3g}, one over the {largest:,} records of a client; "
                f"got {delta:g}"
            )
        self.problem, self.batches, self.delta = problem, batches, delta
        self.most = (most_rounds, most_steps)
        self.optimum = optimum_of(problem, optimum)
        self.few, self.share = _sampled(problem)
        self.best_of_few = self.optimum if self.few is problem else self.few.optimum()
        self.noises: dict[tuple[float, int], float] = {}

    def noise(self, epsilon: float, steps: int) -> float:
        """Return the least noise multiplier for a budget; the client with the fewest records needs the most."""
        if (epsilon, steps) not in self.noises:
            self.noises[epsilon, steps] = noise_for(
                epsilon=epsilon, steps=steps, delta=self.delta, batch_size=self.batches.size,
                records=int(self.problem.sizes.min()), sampling=self.batches.sampling,
            )  # fmt: skip
        return self.noises[epsilon, steps]

    def about(self, epsilon: float, steps: int) -> float:
        """Return about the same; with batches interpolated between powers of four, as each takes long to find."""
        if self.batches.size is None:
            return self.noise(epsilon, steps)
        low, high = 4 ** math.floor(math.log(steps, 4)), 4 ** math.ceil(math.log(steps, 4))
        ends = [math.log(self.noise(epsilon, end)) for end in (low, high)]
        return math.exp(float(np.interp(math.log(steps), np.log([low, high]), ends)))

    def rounded(self, at: Settings) -> tuple[float, float, int, int]:
        """Return clip, γ, H and T as a run takes them."""
        T, H = (int(np.clip(round(one), 1, most)) for one, most in zip((at[3], at[2]), self.most, strict=True))
        return at[0], at[1], H, T

    def start(self) -> Settings:
        """Return the median norm of the records' gradients at θ = 0, 1/L, one local step and eight rounds."""
        few = self.few
        norms = np.abs(few.d1(np.zeros(len(few.y)), few.y)) * np.linalg.norm(few.x, axis=1)
        clip = float(np.median(norms)) or 1.0
        return clip, 1.0 / few.smoothness(Batches()), 1.0, float(min(8, self.most[0]))

    def error(self, epsilon: float, at: Settings) -> float:
        """Return the mean error after the last round on the sampled records; infinite if runs diverge."""
        clip, gamma, H, T = self.rounded(at)
        noise = self.about(epsilon, H * T) * (self.share if self.batches.size is None else 1.0)
        subject = Subject(
            self.few, Scaffold(step_size=gamma, local_steps=H), self.batches, self.best_of_few,
            RecordLevel(clip=clip, noise_multiplier=noise),
        )  # fmt: skip
        meter = Meter(self.best_of_few, averaged=False)
        try:
            R = subject.repetitions(WORK / T, 8, 128)
            subject.follow(meter.add, rounds=T, repetitions=R)
        except Diverged:
            return math.inf
        return meter.error(T)

    def best(self, epsilon: float, start: Settings) -> Settings:
        """Return the settings of the least error that factors lead to."""
        moves = (
            (0.0, 1.0, 0.0, 0.0), (0.0, -1.0, 0.0, 0.0), (1.0, 0.0, 0.0, 0.0), (-1.0, 0.0, 0.0, 0.0),
            (0.0, 0.0, 0.0, 1.0), (0.0, 0.0, 0.0, -1.0), (0.0, -1.0, 0.0, 1.0), (0.0, 1.0, 0.0, -1.0),
            (0.0, 0.0, 1.0, 0.0), (0.0, 0.0, -1.0, 0.0), (-1.0, 1.0, 0.0, 0.0),
        )  # fmt: skip
        return descend(
            lambda at: (0.0, self.error(epsilon, at)), start, moves, factors=(2.0, 1.4, 1.15), most=90, gain=0.995
        )

    def plan(self, epsilon: float, at: Settings) -> Plan:
        """Return the plan with the noise that its steps need exactly, and its error on all records."""
        clip, gamma, H, T = self.rounded(at)
        method = Scaffold(step_size=gamma, local_steps=H)
        privacy = RecordLevel(clip=clip, noise_multiplier=self.noise(epsilon, H * T))
        subject = Subject(self.problem, method, self.batches, self.optimum, privacy)
        curve, errors = measured_curve(subject, T, accuracy=0.03, seconds=3.0)
        return Plan(
            mode="private", method=method, rounds=T, batch_size=self.batches.size, sampling=self.batches.sampling,
            privacy=privacy, target_mse=None, predicted_mse=float(curve[-1]), standard_error=float(errors[-1]),
            how="measured", n_clients=self.problem.n_clients, cost=float(H * T), gradients_per_client=H * T,
            epsilon=epsilon, delta=self.delta, curve=curve,
        )  # fmt: skip


def _sampled(problem: Any) -> tuple[Any, float]:
    """Return the problem with about SAMPLE evenly spaced records, and their share of all."""
    total, make = int(problem.sizes.sum()), {"ridge": Ridge, "logistic": Logistic}.get(problem.kind)
    share = SAMPLE / total
    if share > 0.7 or make is None:
        return problem, 1.0
    rows: list[IntArray] = []
    for begin, size in zip(problem.offsets[:-1].tolist(), problem.sizes.tolist(), strict=True):
        rows.append(begin + np.linspace(0, size - 1, max(2, round(share * size))).round().astype(np.int64))
    few = make(
        [problem.x[own] for own in rows], [problem.y[own] for own in rows], l2=problem.l2, weights=problem.weights,
        n_unpenalised=int((problem.penalty == 0.0).sum()) if problem.l2 else 0,
    )  # fmt: skip
    return few, share
