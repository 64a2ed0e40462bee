"""Studies under a privacy budget: one phase, "noisy", in which sites add up clipped gradients with noise.

Clip, noise, step size and number of exchanges follow from the plan at both ends. A site pays from its budget
before it computes an answer, and keeps the answer: the same question again brings the same noise, and costs
nothing.
"""

import numpy as np

from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.types import Array, IntArray
from fedscaffold.federation.client.store import SiteStore
from fedscaffold.federation.refusals import Refusal, RefusalCode
from fedscaffold.federation.study.coordinator import Coordinator
from fedscaffold.federation.study.plan import StudyPlan
from fedscaffold.federation.study.rows import LARGEST, SiteRows
from fedscaffold.federation.study.status import StatusBoard
from fedscaffold.inference.sums import slope_mask
from fedscaffold.models.fit import Fit
from fedscaffold.models.private import centred, trained_privately
from fedscaffold.privacy.budget import PrivacyBudget
from fedscaffold.privacy.grid import clipped, clipped_sum, discrete_gaussian
from fedscaffold.privacy.plan import MOST_ROUNDS, PrivacySettings, PrivatePlan, plan_budget


def private_plan(plan: StudyPlan) -> PrivatePlan:
    """Return how a study spends its privacy budget, from its plan alone.

    Under secure sums a budget of whole sites needs noise in the sum alone, of which each site adds a part; it
    holds as long as fewer than a third of the sites reveal their parts to the coordinator. In open sums, and for
    rows, each site adds all of the noise.

    Raises
    ------
    InvalidInput
        If the plan has no budget, or δ is not below one over the number of sites that it protects.
    """
    assert plan.epsilon is not None
    N, rows = len(plan.sites), plan.protect == "rows"
    return plan_budget(
        plan.public_target,
        tuple(len(plan.columns[name].levels or ()) for name in plan.feature_names),
        PrivacySettings(epsilon=plan.epsilon, delta=plan.delta, clip=plan.clip),
        units=(plan.rows or N) if rows else N,
        sites=N,
        l2=plan.coding().l2,
        protect=plan.protect,
        honest=None if rows or plan.sums == "open" else N - -(-N // 3) + 1,
        most_rounds=min(MOST_ROUNDS, plan.max_exchanges),
    )


# at a site


def pay(plan: StudyPlan, store: SiteStore, epsilon: float | None, delta: float | None) -> None:
    """Write down, before it is computed, what an answer spends; raise if that would exceed a budget.

    Parameters
    ----------
    plan
        The accepted plan.
    store
        Holds the site's budget, which is for all studies together.
    epsilon, delta
        The site's own budget; by default the plan's.
    """
    found = private_plan(plan)
    try:
        PrivacyBudget(
            file=store.budget_file, epsilon=epsilon or found.epsilon, delta=delta or found.delta, records=None,
            noise_multiplier=found.noise_multiplier, run=plan.digest, run_epsilon=found.epsilon,
        ).spend(1)  # fmt: skip
    except InvalidInput as error:
        raise Refusal(RefusalCode.PRIVACY_BUDGET, str(error)) from None


def noisy_gradient(rows: SiteRows, theta: Array) -> IntArray:
    """Return the sum of the rows' clipped gradients, or their clipped mean, in units and with noise."""
    plan, problem = private_plan(rows.plan), rows.problem
    at = np.arange(int(problem.sizes[0]))
    if plan.protect == "rows":
        total = clipped_sum(problem, theta, at, plan.clip)
    else:
        mean = problem.gradients_of_rows(theta, at).mean(axis=0)
        total = clipped(mean, plan.clip)
    return total + discrete_gaussian(plan.noise, total.size)


# at the coordinator


def trained_within_budget(coordinator: Coordinator, board: StatusBoard) -> Fit:
    """Return the model after the steps that the budget is for; see `private_plan`."""
    plan = coordinator.plan
    found, coding = private_plan(plan), plan.coding()
    board.phase("train")
    board.note(found.explain())
    encoding = coding.encoding
    slopes = slope_mask(encoding.n_vectors, encoding.dim, int(encoding.intercept))
    theta = velocity = np.zeros(coding.dim)
    for _ in range(found.rounds):
        total = coordinator.ask("noisy", theta)["change"]
        theta, velocity = found.step(theta, velocity, total, np.where(slopes, coding.l2, 0.0))
        theta = np.clip(theta, -LARGEST, LARGEST)
    theta = centred(theta, encoding.n_vectors)
    return Fit(
        coding=coding,
        trained=trained_privately(theta, encoding.n_vectors, int(encoding.intercept), found),
        sites=plan.sites,
        n_rows=plan.rows or 0,
        name=plan.name,
        settings=plan,
        received=tuple(coordinator.received),
        privacy=found,
        in_parts=plan.protect == "sites" and plan.sums == "secure",
    )
