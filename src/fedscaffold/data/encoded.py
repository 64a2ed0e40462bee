"""Problems made from a table, which keep their clients' names and the encoding of rows."""

from collections.abc import Mapping
from typing import Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedscaffold.core.checks import positive
from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.types import Array
from fedscaffold.data.arrow import Label
from fedscaffold.data.columns import some
from fedscaffold.data.encoding import Encoding
from fedscaffold.data.options import Weights
from fedscaffold.problems.log_link import Gamma, Poisson
from fedscaffold.problems.logistic import Logistic
from fedscaffold.problems.multinomial import Multinomial
from fedscaffold.problems.record_weights import OFFSET, TARGET
from fedscaffold.problems.ridge import Ridge
from fedscaffold.problems.tabular import TabularProblem


class FromTable(TabularProblem):
    """f = Σ_c w_c f_c over the clients of a table, with their names and the encoding of rows.

    `client_names[c]` is client c's name in the table, `encoding` how rows became numbers. An intercept is not
    penalised.
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
        self.client_names = client_names
        self.encoding = encoding
        self.vectors = encoding.n_vectors
        self._set_data(x, y, offsets, l2=l2, weights=weights, n_unpenalised=int(encoding.intercept))

    @property
    def classes(self) -> tuple[Label, ...] | None:
        """The target's classes: two are kept as −1 and +1 in this order, more as 0, 1, ...; None for numbers."""
        return self.encoding.classes

    @property
    def targets(self) -> Array:
        """The records' targets, without their offsets and weights, (records,)."""
        return self.y if self.y.ndim == 1 else self.y[:, TARGET]

    def record_margins(self, theta: Array) -> Array:
        """Margins xᵀθ_k of the records, with their offsets, (records, vectors)."""
        z = self.x @ theta.reshape(self.vectors, self.n_features).T
        return z if self.y.ndim == 1 else z + self.y[:, [OFFSET]]

    def subset(self, clients: ArrayLike) -> Self:
        """The same problem on some of the clients, their weights scaled to sum to one."""
        other = super().subset(clients)
        other.client_names = tuple(self.client_names[int(c)] for c in np.asarray(clients))
        return other


class EncodedRidge(FromTable, Ridge):
    """f_c(θ) = mean of ½(xᵀθ − y)² over client c's rows of a table, plus l2/2 ‖θ‖²."""


class EncodedLogistic(FromTable, Logistic):
    """f_c(θ) = mean of log(1 + exp(−y xᵀθ)) over client c's rows of a table, plus l2/2 ‖θ‖²."""


class EncodedMultinomial(FromTable, Multinomial):
    """f_c(θ) = mean of log Σ_k exp(xᵀθ_k) − xᵀθ_y over client c's rows of a table, plus l2/2 ‖θ‖²."""


class EncodedPoisson(FromTable, Poisson):
    """f_c(θ) = mean of exp(xᵀθ + o) − y (xᵀθ + o) over client c's rows of a table, plus l2/2 ‖θ‖²."""


class EncodedGamma(FromTable, Gamma):
    """f_c(θ) = mean of y exp(−xᵀθ − o) + xᵀθ + o over client c's rows of a table, plus l2/2 ‖θ‖²."""


EncodedProblem = EncodedRidge | EncodedLogistic | EncodedMultinomial | EncodedPoisson | EncodedGamma
OF_KIND: dict[str, type[EncodedProblem]] = {
    "ridge": EncodedRidge, "logistic": EncodedLogistic, "poisson": EncodedPoisson, "gamma": EncodedGamma,
}  # fmt: skip


def problem_class(encoding: Encoding) -> type[EncodedProblem]:
    """The class of problem for an encoding's kind of model, of which more than two classes have their own."""
    return EncodedMultinomial if encoding.n_vectors > 1 else OF_KIND[encoding.family.kind]


def weights_of(weights: Weights, names: tuple[Label, ...], sizes: NDArray[np.int64]) -> Array:
    """One weight per client, in the clients' order, not yet scaled to sum to one."""
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
