"""Privacy in runs: settings that cannot be protected are rejected; messages are clipped and get noise."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedscaffold.core.checks import given
from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.privacy import ClientLevel, Privacy, RecordLevel, clipped_rows
from fedscaffold.core.protocols import Method, Problem
from fedscaffold.core.random.stream import WORDS_PER_ROUND
from fedscaffold.core.types import Array, IntArray
from fedscaffold.engines.clippable import check_clippable

DrawNoise = Callable[[int, IntArray, int], Array]


@dataclass(frozen=True, eq=False)
class MessageProtection:
    """Clips and blurs the messages of a block of clients."""

    privacy: ClientLevel  # how much of both
    scales: Array  # standard deviation of the noise of each client of the block
    draw: DrawNoise  # (round, clients counted from the block's first, dim) → normal numbers

    def __call__(self, sent: Array, theta: Array, round: int, clients: IntArray | None) -> tuple[Array, Array]:
        """Return noisy messages, and what clients remember of them, from (repetitions, participants, dim).

        Noise is added to the change before θ is: beside a large θ both would be rounded, and the noise lost.
        """
        chosen = np.arange(sent.shape[1])[None] if clients is None else clients
        chosen = np.broadcast_to(chosen, sent.shape[:2])
        start = theta[:, None]
        change = clipped_rows(sent - start, self.privacy.clip)
        noise = self.scales[chosen][..., None] * self.draw(round, chosen, sent.shape[2])
        noisy = start + (change + noise)
        return noisy, start + change if self.privacy.summed else noisy


def check_privacy(privacy: Any, problem: Problem, method: Method, local_steps: int) -> None:
    """Raise if privacy is not of a known kind, would send something unprotected, or needs too much noise."""
    if not isinstance(privacy, Privacy):
        raise InvalidInput(
            f"privacy must be privacy.RecordLevel(...) or privacy.ClientLevel(...), got {given(privacy)}"
        )
    if method.exchange is not None:
        raise InvalidInput(
            f"{type(method).__name__} sends gradients before its local steps, which nothing would protect; "
            "use Scaffold or FedAvg with privacy"
        )
    if isinstance(privacy, ClientLevel):
        check_client_level(privacy, method, problem.n_clients)
    if isinstance(privacy, RecordLevel):
        check_clippable(problem)
        if local_steps * problem.dim > WORDS_PER_ROUND:
            raise InvalidInput(
                f"{local_steps:,} local steps with dim={problem.dim:,} need more noise in a round than the random "
                "stream has; take fewer"
            )


def check_client_level(privacy: ClientLevel, method: Method, n_clients: int) -> None:
    """Raise if a method's messages cannot be clipped, or if it would remember noise of a sum."""
    one, still = np.ones((1, 1), np.int64), np.ones((1, 1, 2))
    clients, server = method.init_clients(1, np.ones(1), 2, None), method.init_server(still[0])
    sent = method.message(clients, still, server, one)
    if not np.array_equal(sent, still) or method.compressor is not None:
        raise InvalidInput(
            f"messages of {type(method).__name__} are no models, so that their change cannot be clipped; "
            "use Scaffold or FedAvg with privacy=ClientLevel(...)"
        )
    if not privacy.summed:
        return
    if privacy.honest_clients is not None and privacy.honest_clients > method.participants(n_clients):
        raise InvalidInput(
            f"honest_clients must be at most the {method.participants(n_clients)} clients of a round, got "
            f"{privacy.honest_clients}"
        )
    later = [method.update_clients(state, sent, server, server) for state in (clients, _other(clients))]
    if not all(np.array_equal(a, b) for a, b in zip(*later, strict=True)):
        raise InvalidInput(
            f"clients of {type(method).__name__} remember more than their last message, and what they remember "
            "of sums with noise would drift; with privacy=ClientLevel(summed=True) use GradientScaffold, "
            "which is Scaffold without noise, or FedAvg"
        )


def _other(client_state: Any) -> Any:
    """Return a client state with other numbers."""
    return type(client_state)(*(values + 1.0 for values in client_state))
