"""A site's privacy: the requests that it answers under a budget, their cost, and the noise in messages."""

import numpy as np

from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.privacy import ClientLevel
from fedscaffold.core.types import Array, IntArray
from fedscaffold.federation.client.policy import SitePolicy
from fedscaffold.federation.client.store import SiteStore
from fedscaffold.federation.messages import TrainRequest
from fedscaffold.federation.refusals import Refusal, RefusalCode
from fedscaffold.methods import FedAvg, GradientScaffold, Scaffold
from fedscaffold.privacy.grid import CLIP, MOST, clipped, discrete_gaussian, noise_units
from fedscaffold.simulation.protection import MessageProtection, check_client_level

CLIPS = 1e-100, 1e100  # beyond, numbers lose digits


def check_protection(request: TrainRequest, policy: SitePolicy) -> None:
    """Raise if a request is without noise although the policy has a budget, or its noise would not suffice.

    Messages of Scaffold and FedAvg are computed from noisy steps alone; other methods also send gradients, or
    count records twice. Steps on all rows need no secret batches.
    """
    config = request.config
    if config.privacy is None:
        if policy.epsilon is not None:
            raise Refusal(
                RefusalCode.ONLY_PRIVATE,
                "the site has a privacy budget, and the request is for steps without noise",
            )
        return
    whole_site = isinstance(config.privacy, ClientLevel)
    if policy.epsilon is not None and whole_site != (policy.protect == "site"):
        what = "its table as a whole" if policy.protect == "site" else "every row"
        raise Refusal(
            RefusalCode.ONLY_PRIVATE,
            f"the site has a privacy budget that protects {what}, and the request protects something else",
        )
    if type(config.method) not in (Scaffold, GradientScaffold, FedAvg) or request.phase == "gradient":
        raise Refusal(
            RefusalCode.POLICY_METHOD,
            f"under a privacy budget the method must be Scaffold or FedAvg, not {type(config.method).__name__}",
        )
    if not (CLIPS[0] <= config.privacy.clip <= CLIPS[1] and config.privacy.noise_multiplier <= MOST / CLIP):
        raise Refusal(
            RefusalCode.POLICY_METHOD,
            f"under a privacy budget the clip must be between {CLIPS[0]:g} and {CLIPS[1]:g}, the noise below "
            f"{MOST // CLIP:,} times that",
        )
    if isinstance(config.privacy, ClientLevel):
        _check_messages(config.privacy, request)
    elif config.batches.size is not None:
        raise Refusal(RefusalCode.POLICY_BATCH, "under a privacy budget steps must be on all rows")


def _check_messages(privacy: ClientLevel, request: TrainRequest) -> None:
    """Raise for a method whose messages cannot be clipped, and for noise in parts, which the server would see."""
    try:
        check_client_level(privacy, request.config.method, request.config.n_clients)
    except InvalidInput as error:
        raise Refusal(RefusalCode.POLICY_METHOD, str(error)) from None
    if privacy.summed:
        raise Refusal(RefusalCode.ONLY_SECURE, "noise in parts protects only in the secure sums of a study")


def pay(request: TrainRequest, n_rows: int, store: SiteStore, policy: SitePolicy) -> None:
    """Record the cost of an answer before it is computed; raise if it exceeds the privacy budget.

    Every local step is a release that protects rows; a message is one that protects the site.
    """
    privacy = request.config.privacy
    if privacy is None or policy.epsilon is None:
        return
    from fedscaffold.privacy.budget import PrivacyBudget

    whole_site = isinstance(privacy, ClientLevel)
    try:
        budget = PrivacyBudget(
            file=store.budget_file, epsilon=policy.epsilon, delta=policy.delta_for(n_rows),
            noise_multiplier=privacy.noise_multiplier, records=None if whole_site else n_rows,
            run=request.run, run_epsilon=policy.run_epsilon,
        )  # fmt: skip
        budget.spend(1 if whole_site else request.config.local_steps_of(request.client, request.round))
    except InvalidInput as error:
        raise Refusal(RefusalCode.PRIVACY_BUDGET, str(error)) from None


class NoisyMessages(MessageProtection):
    """Messages clipped to whole numbers of a public unit, plus noise from the operating system's generator."""

    def __call__(self, sent: Array, theta: Array, round: int, clients: IntArray | None) -> tuple[Array, Array]:
        """Return noisy messages twice: as sent, and as clients remember them."""
        start, unit = theta[:, None], self.privacy.clip / CLIP
        change = clipped(sent - start, self.privacy.clip)
        if self.privacy.noise_multiplier > 0.0:  # without noise nothing is protected, and nothing paid for
            noise = discrete_gaussian(noise_units(self.privacy.noise_multiplier), change.size)
            change = change + noise.reshape(change.shape)
        noisy = start + change * unit
        return noisy, noisy


def message_protection(request: TrainRequest) -> MessageProtection | None:
    """Return the clipping and noise of a site's messages; None if they need neither."""
    privacy = request.config.privacy
    if not isinstance(privacy, ClientLevel):
        return None
    return NoisyMessages(privacy, np.full(1, privacy.noise_multiplier * privacy.clip), lambda *_: np.zeros(0))
