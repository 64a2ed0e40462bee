"""What a site with a privacy budget answers in a study."""

from dataclasses import replace
from typing import Any

from fedscaffold.data.public.bounds import LIMIT
from fedscaffold.federation.agreement import Agreement
from fedscaffold.federation.client.policy import SitePolicy
from fedscaffold.federation.refusals import Refusal, RefusalCode
from fedscaffold.federation.study.settings import StudySettings

# phases that are answered besides noisy steps: no number of a row leaves the site in them
ANSWERED = ("greet", "peers", "agree", "finish")


def with_budget(policy: SitePolicy, settings: StudySettings) -> SitePolicy:
    """A site's policy with the study's privacy budget.

    Where the site has a budget of its own, all studies together may spend that, and this one its own ε at most;
    otherwise the study's ε covers all that was ever spent.
    """
    if settings.epsilon is None:
        return policy
    deltas = (policy.delta, settings.delta)
    return replace(
        policy,
        epsilon=settings.epsilon if policy.epsilon is None else policy.epsilon,
        run_epsilon=min(one for one in (policy.run_epsilon, policy.epsilon, settings.epsilon) if one is not None),
        delta=min((one for one in deltas if one is not None), default=None),
    )


def check_answered(phase: str, policy: SitePolicy) -> None:
    """Refuse a phase whose answer no budget covers, where the site has one."""
    if policy.epsilon is not None and phase not in ANSWERED:
        raise Refusal(
            RefusalCode.ONLY_PRIVATE, f"the site has a privacy budget, which does not cover the phase {phase}"
        )


def public_agreement(settings: StudySettings, n_rows: int) -> Agreement:
    """The encoding of a study under a privacy budget, from public bounds and the number of rows alone."""
    bounds: Any = settings.public_bounds
    target = bounds.public_target
    return Agreement(
        encoding=bounds.encoding("site"), l2=settings.penalty(n_rows), target_shift=target.shift,
        target_scale=target.scale, limit=LIMIT, target_limits=target.limits,
    )  # fmt: skip
