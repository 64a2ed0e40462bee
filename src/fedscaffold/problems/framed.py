"""Problems made from a table, which know their clients' names and how rows are encoded."""

from collections.abc import Mapping
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedscaffold.core.checks import not_negative, positive
from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.types import Array
from fedscaffold.problems.arrow import Label
from fedscaffold.problems.columns import some
from fedscaffold.problems.encoding import Encoding
from fedscaffold.problems.glm import Glm
from fedscaffold.problems.logistic import Logistic
from fedscaffold.problems.ridge import Ridge
from fedscaffold.problems.tables import client_weights

Weights = Literal["rows", "uniform"] | Mapping[Any, float]


class Framed(Glm):
    """f = Σ_c w_c f_c over the clients of a table; a problem like any other that also knows where it came from.

    Unlike its parent it takes the records as they lie in memory, client after client, and copies nothing: a
    table may fill most of the memory. `client_names[c]` is client c's name in the table, `encoding` how rows
    became numbers.
    """

    def __init__(
        self,
        x: Array,
        y: Array,
        offsets: NDArray[np.int64],
        *,
        l2: float,
        weights: Array,
        client_names: tuple[Label, ...],
        encoding: Encoding,
    ) -> None:
        self.l2 = not_negative("l2", l2)
        self.x, self.y, self.offsets = x, y, offsets
        self.sizes: NDArray[np.int64] = np.diff(offsets)
        self.n_clients, self.dim = self.sizes.size, x.shape[1]
        self.weights = client_weights(weights, self.n_clients)
        for array in (self.x, self.y, self.offsets, self.sizes, self.weights):
            array.flags.writeable = False
        self.client_names = client_names
        self.encoding = encoding

    @property
    def classes(self) -> tuple[Label, ...] | None:
        """The target's classes, kept as −1 and +1 in this order; None for a numeric target."""
        return self.encoding.classes

    def subset(self, clients: ArrayLike) -> Self:
        """The same problem on some of the clients, their weights scaled to sum to one."""
        chosen = [int(client) for client in np.asarray(clients)]
        rows = np.concatenate([np.arange(self.offsets[c], self.offsets[c + 1]) for c in chosen])
        return type(self)(
            self.x[rows],
            self.y[rows],
            offsets_of(self.sizes[chosen]),
            l2=self.l2,
            weights=self.weights[chosen],
            client_names=tuple(self.client_names[c] for c in chosen),
            encoding=self.encoding,
        )


class FramedRidge(Framed, Ridge):
    """f_c(θ) = mean of ½(xᵀθ − y)² over client c's rows of a table, plus l2/2 ‖θ‖²."""


class FramedLogistic(Framed, Logistic):
    """f_c(θ) = mean of log(1 + exp(−y xᵀθ)) over client c's rows of a table, plus l2/2 ‖θ‖²."""


def offsets_of(sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Where each client's rows begin, and where the last one's end."""
    return np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)


def check_weights(weights: Any) -> None:
    """Refuse anything but "rows", "uniform" or weights by client name."""
    if not isinstance(weights, Mapping) and weights not in ("rows", "uniform"):
        raise InvalidInput(
            f"weights must be 'rows', 'uniform' or a dictionary from client to weight, got {weights!r}"
        )


def weights_of(weights: Weights, names: tuple[Label, ...], sizes: NDArray[np.int64]) -> Array:
    """One weight per client, not yet scaled."""
    if not isinstance(weights, Mapping):
        return sizes.astype(np.float64) if weights == "rows" else np.ones(len(names))
    for name in names:
        if name not in weights:
            raise InvalidInput(f"weights has none for client {name!r}")
    there = set(names)
    extra = [name for name in weights if name not in there]
    if extra:
        raise InvalidInput(f"weights names clients that the table does not have: {some(extra)}")
    return np.array([positive(f"the weight of client {name!r}", weights[name]) for name in names])
