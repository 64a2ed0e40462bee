"""A site's own protection of its records: which requests it answers under a privacy budget, and what they cost."""

from fedscaffold.core.errors import InvalidInput
from fedscaffold.federation.client.policy import SitePolicy
from fedscaffold.federation.client.store import SiteStore
from fedscaffold.federation.messages import TrainRequest
from fedscaffold.federation.refusals import Refusal, RefusalCode
from fedscaffold.methods import FedAvg, Scaffold

CLIPS = 1e-100, 1e100  # beyond, numbers lose digits, and noise that is divided by the rows may be 0


def check_protection(request: TrainRequest, policy: SitePolicy) -> None:
    """Refuse a request without noise where the policy has a budget, and one whose noise would not suffice.

    What Scaffold and FedAvg send is computed from noisy steps alone; other methods also send gradients, or count
    records twice. Steps on all rows need no secret batches.
    """
    config = request.config
    if config.privacy is None:
        if policy.epsilon is not None:
            raise Refusal(
                RefusalCode.ONLY_PRIVATE,
                "the site has a privacy budget, and the request is for steps without noise",
            )
        return
    if type(config.method) not in (Scaffold, FedAvg) or request.phase == "gradient":
        raise Refusal(
            RefusalCode.POLICY_METHOD,
            f"under a privacy budget the method must be Scaffold or FedAvg, not {type(config.method).__name__}",
        )
    if not (CLIPS[0] <= config.privacy.clip <= CLIPS[1] and config.privacy.noise_multiplier <= CLIPS[1]):
        raise Refusal(
            RefusalCode.POLICY_METHOD,
            f"under a privacy budget the clip must be between {CLIPS[0]:g} and {CLIPS[1]:g}, the noise below that",
        )
    if config.batches.size is not None:
        raise Refusal(RefusalCode.POLICY_BATCH, "under a privacy budget steps must be on all rows")


def pay(request: TrainRequest, n_rows: int, store: SiteStore, policy: SitePolicy) -> None:
    """Write down, before they are taken, what the local steps of a request spend; refused if that is too much."""
    if request.config.privacy is None or policy.epsilon is None:
        return
    from fedscaffold.privacy.budget import PrivacyBudget

    try:
        budget = PrivacyBudget(
            file=store.budget_file, epsilon=policy.epsilon, delta=policy.delta_for(n_rows),
            noise_multiplier=request.config.privacy.noise_multiplier, records=n_rows,
            run=request.run, run_epsilon=policy.run_epsilon,
        )  # fmt: skip
        budget.spend(request.config.local_steps_of(request.client, request.round))
    except InvalidInput as error:
        raise Refusal(RefusalCode.PRIVACY_BUDGET, str(error)) from None
