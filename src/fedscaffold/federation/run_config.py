"""What all who take part in a federated run must agree on."""

import dataclasses
import hashlib
import json
import re
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np

from fedscaffold import methods
from fedscaffold.core.checks import seed_number, whole_number
from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.protocols import Method
from fedscaffold.core.random.batches import Batches
from fedscaffold.core.random.stream import cohorts, round_uniforms
from fedscaffold.core.types import Array, IntArray
from fedscaffold.simulation import provenance

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """A run: its name, and all that its numbers depend on apart from data and first model.

    The server sends them along, so that clients need no settings of their own. They are not Flower's run: a server
    that was started again has a new one of those, and goes on with the same terms.

    Parameters
    ----------
    name
        Letters, digits and . _ -, since clients' folders are called so.
    method
        One of `fedscaffold.methods`.
    n_clients
        N; clients are 0, ..., N − 1.
    dim
        d, how many numbers θ has.
    seed
        Chooses cohorts, and the records that are drawn.
    batches
        How local steps draw.
    """

    name: str
    method: Method
    n_clients: int
    dim: int
    seed: int = 0
    batches: Batches = field(default_factory=Batches)

    def __post_init__(self) -> None:
        name: Any = self.name
        if not isinstance(name, str) or not NAME.fullmatch(name):
            raise InvalidInput(
                f"a run's name has letters, digits and . _ - only, at most 64 and not first a sign; "
                f"got {self.name!r}"
            )
        if getattr(methods, type(self.method).__name__, None) is not type(self.method):
            raise InvalidInput(
                f"method must be one of {', '.join(methods.__all__)}, which clients know too; got {self.method!r}"
            )
        try:
            again = _rebuilt(provenance.describe(self.method))
        except InvalidInput:
            again = None
        if again != self.method:
            raise InvalidInput(f"{type(self.method).__name__} cannot be told to clients, so it cannot run here")
        whole_number("n_clients", self.n_clients, least=1)
        whole_number("dim", self.dim, least=1)
        seed_number("seed", self.seed)
        self.method.participants(self.n_clients)
        self.method.local_step_counts(self.n_clients, np.full(1, 0.5))

    def cohort(self, round: int) -> IntArray:
        """Who takes part in a round, in ascending order: the same as in `fedscaffold.run`."""
        count = self.method.participants(self.n_clients)
        if count == self.n_clients:
            return np.arange(self.n_clients)
        return cohorts(self.seed, 1, round, count, self.n_clients)[0]

    def local_step_counts(self, round: int) -> IntArray:
        """Local steps of each client in a round, (n_clients,)."""
        round_uniform: Array = round_uniforms(self.seed, 1, range(round, round + 1))[:, 0]
        return np.broadcast_to(self.method.local_step_counts(self.n_clients, round_uniform), (1, self.n_clients))[
            0
        ]

    def first_memory(self) -> Any:
        """A client's memory before the first round."""
        return self.method.init_clients(1, np.ones(1), self.dim, None)

    @property
    def remembers(self) -> bool:
        """Whether clients have a memory at all."""
        return len(self.first_memory()) > 0

    @property
    def digest(self) -> str:
        """SHA-256 of all of it, the name included."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()

    def to_json(self) -> str:
        """Text from which `from_json` makes equal terms."""
        found = {
            "name": self.name,
            "method": provenance.describe(self.method),
            "n_clients": self.n_clients,
            "dim": self.dim,
            "seed": self.seed,
            "batches": dataclasses.asdict(self.batches),
        }
        return json.dumps(found, sort_keys=True, allow_nan=False, default=int)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """The terms that `to_json` wrote."""
        try:
            found = json.loads(text)
            method = _rebuilt(found.pop("method"))
            return cls(method=method, batches=Batches(**found.pop("batches")), **found)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise InvalidInput(
                f"these are not the terms of a run, or another version's: {error}; do server and clients have the "
                "same version of fedscaffold?"
            ) from None


def _rebuilt(description: dict[str, Any]) -> Any:
    """The method that was described; None if there is none of that name."""
    given = dict(description)
    kind = given.pop("name")
    return getattr(methods, kind)(**given) if kind in methods.__all__ else None
