"""Which clients are available in which rounds: by turns, coming and going at random, or as a table says."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedscaffold.core.checks import positive, seed_number, set_fields, whole_number
from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.random.normals import NOBODY
from fedscaffold.core.random.stream import SERVER, philox
from fedscaffold.core.types import IntArray


@dataclass(frozen=True)
class Periodic:
    """Clients take turns: client c is available in every round t with t mod groups = c mod groups.

    Parameters
    ----------
    groups
        Number of groups, of which one is available in each round.

    Examples
    --------
    >>> import fedscaffold as fs
    >>> fs.simulation.Periodic(groups=3).available(round=4, n_clients=7)
    array([1, 4])
    """

    groups: int

    def __post_init__(self) -> None:
        set_fields(self, groups=whole_number("groups", self.groups, least=1))

    def available(self, round: int, n_clients: int) -> IntArray:
        """Return the indices of the clients that are available in a round, ascending."""
        if self.groups > n_clients:
            raise InvalidInput(f"groups={self.groups}, but there are {n_clients} clients")
        return np.arange(round % self.groups, n_clients, self.groups)


@dataclass(frozen=True, kw_only=True)
class Markov:
    """Each client comes and goes on its own: a chain with two states, available and not.

    An available client is gone in the next round with probability `leave`, another one is back with probability
    `enter`; in the first round each is available with probability enter/(enter + leave), as it is in the long run.

    Parameters
    ----------
    leave, enter
        Probabilities in (0, 1].
    seed
        Chooses who comes and goes when; the same in all repetitions of a run.

    Examples
    --------
    >>> import fedscaffold as fs
    >>> coming = fs.simulation.Markov(leave=0.2, enter=0.2)
    >>> sum(coming.available(round=t, n_clients=1000).size for t in range(20)) // 1000
    10
    """

    leave: float
    enter: float
    seed: int = 0
    _walked: dict[int, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        for name in ("leave", "enter"):
            set_fields(self, **{name: positive(name, getattr(self, name))})
            if getattr(self, name) > 1.0:
                raise InvalidInput(f"{name} is a probability, at most 1; got {getattr(self, name)!r}")
        set_fields(self, seed=seed_number("seed", self.seed))

    def available(self, round: int, n_clients: int) -> IntArray:
        """Return the indices of the clients that are available in a round, ascending."""
        at, state = self._walked.get(n_clients, (-1, None))
        if at > round:
            at = -1
        while at < round:
            at += 1
            uniform = self._uniforms(at, n_clients)
            chance = (
                np.where(state, 1.0 - self.leave, self.enter) if at else self.enter / (self.enter + self.leave)
            )
            state = uniform < chance
        self._walked[n_clients] = (at, state)  # a round's state is the same however it is reached
        return np.flatnonzero(state)

    def _uniforms(self, round: int, n_clients: int) -> NDArray[np.float64]:
        counter = np.zeros((n_clients, 4), dtype=np.uint32)
        counter[:, 0], counter[:, 1], counter[:, 2], counter[:, 3] = np.arange(n_clients), round, SERVER, NOBODY
        words = philox(counter, (self.seed & 0xFFFFFFFF, self.seed >> 32))[:, 0]
        return (words.astype(np.float64) + 0.5) / 2.0**32


@dataclass(frozen=True)
class AvailabilityTable:
    """Availability as it was recorded: a table with a row for each round and a column for each client.

    Parameters
    ----------
    table
        (rounds, clients), true where a client is available; begun again after its last row. Kept as tuples.

    Examples
    --------
    >>> import fedscaffold as fs
    >>> fs.simulation.AvailabilityTable([[1, 1, 0], [0, 1, 1]]).available(round=3, n_clients=3)
    array([1, 2])
    """

    table: ArrayLike

    def __post_init__(self) -> None:
        try:
            found = np.asarray(self.table, dtype=bool)
        except (TypeError, ValueError):
            found = np.zeros(0, dtype=bool)
        if found.ndim != 2 or not found.size or not found.any(axis=1).all():
            raise InvalidInput(
                "table must have a row for each round and a column for each client, and someone in each row"
            )
        set_fields(self, table=tuple(tuple(bool(value) for value in row) for row in found))

    def available(self, round: int, n_clients: int) -> IntArray:
        """Return the indices of the clients that are available in a round, ascending."""
        rows: Any = self.table
        if len(rows[0]) != n_clients:
            raise InvalidInput(f"the table has {len(rows[0])} columns, but there are {n_clients} clients")
        return np.flatnonzero(rows[round % len(rows)])
