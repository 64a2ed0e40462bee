"""What server and clients tell each other; no more than this travels.

Down goes the server's state (θ) and which of the client's contributions was counted last; up comes one vector.
Control variates stay where they are, with one exception: a client that lost its own is handed the server's account
of it.
"""

from dataclasses import dataclass
from typing import Any, Literal

from fedscaffold.core.types import Array
from fedscaffold.federation.run_config import RunConfig

NEVER = -1  # in place of the number of a round


@dataclass(frozen=True, kw_only=True, eq=False)
class TrainRequest:
    """What the server asks of a client in a round.

    Parameters
    ----------
    terms
        Of the run.
    client
        Who is asked.
    epoch
        How often all memories were started anew.
    round
        0, 1, ...
    phase
        "train", or "gradient" for a gradient at θ, which a method such as FedLin exchanges first.
    local_steps
        H of this client in this round.
    gradient_step
        The step as which that gradient draws its records.
    server
        The server's state, a named tuple of arrays (1, dim), θ first.
    counted
        The last round of this epoch in which the client's contribution was counted, or NEVER.
    after
        The server's state after that round; None where `server` is that, and where there is no such round.
    memory
        For a client that lost its memory: what it was after that round.
    mean_gradient
        ḡ(θ), for a method that exchanges gradients.
    """

    terms: RunConfig
    client: int
    epoch: int
    round: int
    phase: Literal["train", "gradient"] = "train"
    local_steps: int
    gradient_step: int
    server: Any
    counted: int = NEVER
    after: Any = None
    memory: Any = None
    mean_gradient: Array | None = None


@dataclass(frozen=True, kw_only=True, eq=False)
class Sent:
    """A client's contribution: one vector (dim,)."""

    client: int
    epoch: int
    round: int
    phase: str
    vector: Array


@dataclass(frozen=True, kw_only=True)
class Lost:
    """A client says that it has not the memory that the server counts on."""

    client: int
    epoch: int
    round: int


@dataclass(frozen=True, kw_only=True)
class Failed:
    """No answer, for a reason that the server should log."""

    client: int
    reason: str


Reply = Sent | Lost | Failed


@dataclass(frozen=True, kw_only=True)
class Hello:
    """Who a client is, and how much it holds."""

    client: int
    records: int
    dim: int
