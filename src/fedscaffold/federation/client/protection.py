"""A site's own protection: which requests it answers under a privacy budget, what they cost, and its noise."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.privacy import ClientLevel
from fedscaffold.core.random.noise import secret_normals
from fedscaffold.core.types import Array, IntArray
from fedscaffold.federation.client.policy import SitePolicy
from fedscaffold.federation.client.store import SiteStore
from fedscaffold.federation.messages import TrainRequest
from fedscaffold.federation.refusals import Refusal, RefusalCode
from fedscaffold.methods import FedAvg, GradientScaffold, Scaffold
from fedscaffold.simulation.protection import MessageProtection, check_client_level

CLIPS = 1e-100, 1e100  # beyond, numbers lose digits, and noise that is divided by the rows may be 0


@dataclass(frozen=True, kw_only=True)
class PartOfSum:
    """A secure sum in which a site's vector leaves it, and of which nothing but the sum becomes known.

    Parameters
    ----------
    rounded
        rounded(vector) → the vector as the sum's fixed point has it. The client state changes by the vector that
        was sent, so that Σ w_c ξ_c = 0 whatever the rounding.
    n_clients
        Number of clients whose vectors are added up.
    threshold
        So many of them would have to work together with the server to learn a single vector.
    """

    rounded: Callable[[Array], Array]
    n_clients: int
    threshold: int

    @property
    def honest_clients(self) -> int:
        """The least number of clients that must not work together with the server for vectors to stay secret."""
        return self.n_clients - self.threshold + 1


def check_protection(request: TrainRequest, policy: SitePolicy, part: PartOfSum | None) -> None:
    """Refuse a request without noise where the policy has a budget, and one whose noise would not suffice.

    What Scaffold and FedAvg send is computed from noisy steps alone; other methods also send gradients, or count
    records twice. Steps on all rows need no secret batches. Noise in parts protects in secure sums alone, and only
    if the parts of those who do not work together with the server suffice.
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
    if not (CLIPS[0] <= config.privacy.clip <= CLIPS[1] and config.privacy.noise_multiplier <= CLIPS[1]):
        raise Refusal(
            RefusalCode.POLICY_METHOD,
            f"under a privacy budget the clip must be between {CLIPS[0]:g} and {CLIPS[1]:g}, the noise below that",
        )
    if isinstance(config.privacy, ClientLevel):
        _check_parts(config.privacy, request, part)
    elif config.batches.size is not None:
        raise Refusal(RefusalCode.POLICY_BATCH, "under a privacy budget steps must be on all rows")


def _check_parts(privacy: ClientLevel, request: TrainRequest, part: PartOfSum | None) -> None:
    """Refuse noise in parts outside of a sum, in too small a sum, or of a method that would remember it."""
    try:
        check_client_level(privacy, request.config.method, request.config.n_clients)
    except InvalidInput as error:
        raise Refusal(RefusalCode.POLICY_METHOD, str(error)) from None
    if not privacy.summed:
        return
    if part is None or part.n_clients != request.config.n_clients:
        raise Refusal(RefusalCode.ONLY_SECURE, "noise in parts protects only in a secure sum over all sites")
    if privacy.honest_clients is None or privacy.honest_clients > part.honest_clients:
        raise Refusal(
            RefusalCode.ONLY_PRIVATE,
            f"the parts of {part.honest_clients} sites must suffice, since {part.threshold - 1} others may work "
            "together with the coordinator",
        )


def pay(request: TrainRequest, n_rows: int, store: SiteStore, policy: SitePolicy) -> None:
    """Write down, before it is computed, what the answer to a request spends; refused if that is too much.

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


def message_protection(request: TrainRequest) -> MessageProtection | None:
    """What clips a site's message and adds noise that nobody can draw again; None where messages need neither.

    All sites count alike: a weight by rows would tell their number.
    """
    privacy, n = request.config.privacy, request.config.n_clients
    if not isinstance(privacy, ClientLevel):
        return None

    def draw(round: int, clients: IntArray, dim: int) -> Array:
        return secret_normals(dim).reshape(1, 1, dim)

    return MessageProtection(privacy, privacy.noise_scales(np.full(1, 1.0 / n), 1.0 / n, n), draw)
