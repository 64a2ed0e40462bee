"""Protection of records and clients: clipped contributions and Gaussian noise."""

from dataclasses import dataclass

import numpy as np

from fedscaffold.core.checks import choice, not_negative, positive, set_fields, whole_number
from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.types import Array


@dataclass(frozen=True, kw_only=True)
class RecordLevel:
    """Protection of single records: every record's gradient is clipped, and every local step gets noise.

    In each local step the gradient of every record of the batch, without the penalty, is shortened to norm `clip`
    if it is longer; their mean gets noise N(0, (noise_multiplier · clip / B)² I), with B the batch size or,
    with full gradients, the number of the client's records (DP-SGD of Abadi et al. 2016, within Scaffold the
    DP-Scaffold of Noble et al. 2022). `fedscaffold.privacy.epsilon` says what that protects.

    Parameters
    ----------
    clip
        The largest norm of one record's gradient.
    noise_multiplier
        Standard deviation of the noise in the sum of a batch's gradients, in units of `clip`; 0 for clipping
        alone, which protects nothing.

    Examples
    --------
    >>> import fedscaffold as fs
    >>> problem = fs.problems.paper("regression", n_clients=4)
    >>> method = fs.Scaffold(step_size=0.05, local_steps=5)
    >>> privacy = fs.privacy.RecordLevel(clip=1.0, noise_multiplier=2.0)
    >>> fs.run(problem, method, rounds=3, privacy=privacy).theta.shape
    (1, 20)
    """

    clip: float
    noise_multiplier: float

    def __post_init__(self) -> None:
        set_fields(
            self,
            clip=positive("clip", self.clip),
            noise_multiplier=not_negative("noise_multiplier", self.noise_multiplier),
        )

    @property
    def noise(self) -> float:
        """Standard deviation of the noise in the sum of a batch's gradients."""
        return self.noise_multiplier * self.clip


@dataclass(frozen=True, kw_only=True)
class ClientLevel:
    """Protection of whole clients: the change that a client sends is clipped and gets noise.

    The difference between the message and θ is shortened to norm `clip` if it is longer, and gets Gaussian noise.

    Parameters
    ----------
    clip
        The largest norm of a client's change of θ.
    noise_multiplier
        Standard deviation of the noise in units of `clip`.
    summed
        False if the server sees every message: each gets noise of standard deviation noise_multiplier · clip, and
        the client remembers the noisy message, so that control variates still sum to zero.
        True if the server learns only their weighted sum (secure sums): each client then adds its part, so that
        the sum has noise of standard deviation noise_multiplier · clip · max w_c. The client remembers the clipped
        message without its part: otherwise later sums would reveal the noise of earlier ones. For methods whose
        clients remember one round at most, FedAvg and `GradientScaffold`.
    honest_clients
        With `summed`, the number of clients whose parts alone have to suffice, if others may reveal theirs to the
        server; by default all participants. With fewer every part is larger.

    Examples
    --------
    >>> import fedscaffold as fs
    >>> problem = fs.problems.paper("regression", n_clients=4)
    >>> method = fs.FedAvg(step_size=0.05, local_steps=5)
    >>> privacy = fs.privacy.ClientLevel(clip=0.5, noise_multiplier=1.0, summed=True)
    >>> fs.run(problem, method, rounds=3, batch_size=10, privacy=privacy).theta.shape
    (1, 20)
    """

    clip: float
    noise_multiplier: float
    summed: bool = False
    honest_clients: int | None = None

    def __post_init__(self) -> None:
        set_fields(
            self,
            clip=positive("clip", self.clip),
            noise_multiplier=not_negative("noise_multiplier", self.noise_multiplier),
            summed=choice("summed", self.summed, (True, False)),
        )
        if self.honest_clients is not None:
            set_fields(self, honest_clients=whole_number("honest_clients", self.honest_clients, least=1))
            if not self.summed:
                raise InvalidInput("honest_clients requires summed=True (noise that clients add in parts)")

    def noise_scales(self, weights: Array, largest: float, participants: int) -> Array:
        """Return the standard deviation of each client's noise, by its weight; `largest` is the largest of all."""
        if not self.summed:
            return np.full(weights.shape, self.noise_multiplier * self.clip)
        count = participants if self.honest_clients is None else self.honest_clients
        return self.noise_multiplier * self.clip * largest / (weights * np.sqrt(count))


Privacy = RecordLevel | ClientLevel


def clipped_rows(rows: Array, clip: float) -> Array:
    """Return vectors along the last axis shortened to norm `clip` if they are longer; zero if not finite."""
    finite = np.isfinite(rows).all(axis=-1, keepdims=True)
    rows = np.where(finite, rows, 0.0)
    largest = np.abs(rows).max(axis=-1, keepdims=True, initial=0.0)
    unit = np.where(largest > 0.0, largest, 1.0)  # squares of large numbers would be infinite
    norms = largest * np.linalg.norm(rows / unit, axis=-1, keepdims=True)
    return rows * (clip / np.maximum(norms, clip))
