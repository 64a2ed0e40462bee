"""Privacy at the level of clients: what they send is clipped and gets noise before they remember it."""

from dataclasses import dataclass

import numpy as np

from fedscaffold.core.privacy import ClientLevel, clipped_rows
from fedscaffold.core.random.noise import message_noise
from fedscaffold.core.types import Array, IntArray


@dataclass(frozen=True, eq=False)
class MessageProtection:
    """Clips and blurs the messages of a block of clients, with the noise of a simulation.

    Parameters
    ----------
    privacy
        How much of both.
    seed
        The run's seed.
    scales
        Standard deviation of the noise of each client of the block.
    first
        Index of the block's first client among all.
    """

    privacy: ClientLevel
    seed: int
    scales: Array
    first: int = 0

    def __call__(self, sent: Array, theta: Array, round: int, clients: IntArray | None) -> Array:
        """Protected messages from messages (repetitions, participants, dim) and θ (repetitions, dim)."""
        chosen = np.arange(sent.shape[1])[None] if clients is None else clients
        chosen = np.broadcast_to(chosen, sent.shape[:2])
        noise = message_noise(self.seed, round, chosen, self.first, sent.shape[2])
        change = clipped_rows(sent - theta[:, None], self.privacy.clip)
        return theta[:, None] + change + self.scales[chosen][..., None] * noise
