"""What a site with a privacy budget answers in a study."""

from dataclasses import replace
from typing import Any

from fedscaffold.data.public import LIMIT
from fedscaffold.federation.agreement import Agreement
from fedscaffold.federation.client.policy import SitePolicy
from fedscaffold.federation.refusals import Refusal, RefusalCode
from fedscaffold.federation.study.settings import StudySettings

# phases that are answered besides noisy steps: no number of a row leaves the site in them
ANSWERED = ("greet", "peers", "agree", "finish")


PROTECTED: Any = {"rows": "rows", "sites": "site"}  # what a study protects, as a site's policy calls it


def with_budget(policy: SitePolicy, settings: StudySettings) -> SitePolicy:
    """A site's policy with the study's privacy budget.

    Where the site has a budget of its own, all studies together may spend that, and this one its own ε at most;
    otherwise the study's ε covers all that was ever spent. Where the study protects sites, the number of rows and
    the client state, which has no noise, are not told.
    """
    if settings.epsilon is None or (policy.epsilon is not None and policy.protect != PROTECTED[settings.protect]):
        return policy
    if settings.protect == "sites":
        policy = replace(policy, tell_rows=False, tell_state=False)
    deltas = (policy.delta, settings.delta)
    return replace(
        policy,
        protect=PROTECTED[settings.protect],
        epsilon=settings.epsilon if policy.epsilon is None else policy.epsilon,
        run_epsilon=min(one for one in (policy.run_epsilon, policy.epsilon, settings.epsilon) if one is not None),
        delta=min((one for one in deltas if one is not None), default=None),
    )


def check_budget(policy: SitePolicy, settings: StudySettings) -> None:
    """Refuse a study without a budget, or with one that protects something else, where the site has its own."""
    if policy.epsilon is None:
        return
    if settings.epsilon is None:
        raise Refusal(RefusalCode.ONLY_PRIVATE, "the site has a privacy budget, and the study has none")
    if policy.protect != PROTECTED[settings.protect]:
        raise Refusal(
            RefusalCode.ONLY_PRIVATE,
            f'the policy has protect = "{policy.protect}", and the study protects {settings.protect}',
        )


def check_answered(phase: str, policy: SitePolicy) -> None:
    """Refuse a phase whose answer no budget covers, where the site has one."""
    if policy.epsilon is not None and phase not in ANSWERED:
        raise Refusal(
            RefusalCode.ONLY_PRIVATE, f"the site has a privacy budget, which does not cover the phase {phase}"
        )


def check_public(agreement: Agreement, policy: SitePolicy, settings: StudySettings | None) -> None:
    """Refuse a coding that does not follow from public bounds, where the site has a privacy budget.

    Whether a table fits a coding is told without noise. A coordinator that could try codings as it likes would
    learn which values occur.
    """
    if policy.epsilon is None:
        return
    if settings is None:
        public = agreement.limit is not None and not agreement.evaluate and not agreement.client_intercepts
    else:
        bounds = settings.public_bounds
        public = bounds is not None and agreement == replace(public_agreement(settings, 1), l2=agreement.l2)
    if not public:
        raise Refusal(RefusalCode.ONLY_PRIVATE, "the coding is not that of the study's public bounds")


def public_agreement(settings: StudySettings, n_rows: int) -> Agreement:
    """The encoding of a study under a privacy budget, from public bounds and the number of rows alone."""
    bounds: Any = settings.public_bounds
    target = bounds.public_target
    return Agreement(
        encoding=bounds.encoding("site"), l2=settings.penalty(n_rows), target_shift=target.shift,
        target_scale=target.scale, limit=LIMIT, target_limits=target.limits,
    )  # fmt: skip
