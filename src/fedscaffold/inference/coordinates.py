"""Reported coefficients as linear functions of θ: units of the table, and classes against a reference."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.types import Array


def slope_mask(vectors: int, n_features: int, n_intercepts: int) -> NDArray[np.bool_]:
    """Return whether each coordinate of θ is a slope, (vectors · n_features,), not at the end of its vector."""
    return np.tile(np.arange(n_features) < n_features - n_intercepts, vectors)


def slope_length(problem: Any, theta: Array) -> float:
    """Return ‖β‖ of the coefficients β of θ, without unpenalised intercepts.

    An intercept follows from how frequent an outcome is; in the norm of θ it would hide errors of slopes.
    """
    slopes = slope_mask(problem.vectors, problem.n_features, problem.n_unpenalised)
    return float(np.linalg.norm(theta[slopes]))


@dataclass(frozen=True, eq=False)
class Coordinates:
    """Reported coefficients β = matrix θ + shift, with names.

    Attributes
    ----------
    names
        Of the reported coefficients.
    matrix
        (coefficients, dim).
    shift
        (coefficients,).
    intercepts
        Which of the coefficients are intercepts, left out of tests of all coefficients, (coefficients,).

    Examples
    --------
    >>> import numpy as np
    >>> from fedscaffold.inference import Coordinates
    >>> Coordinates.of_features(("age", "intercept"), n_intercepts=1).names
    ('age', 'intercept')
    """

    names: tuple[str, ...]
    matrix: Array
    shift: Array
    intercepts: NDArray[np.bool_]

    @classmethod
    def of_features(
        cls, names: Sequence[str], *, n_intercepts: int = 0, classes: Sequence[Any] | None = None
    ) -> "Coordinates":
        """Return θ as it is; with more than two classes, each class's coefficients minus the first's.

        Parameters
        ----------
        names
            Of the features.
        n_intercepts
            How many of the last features are intercepts.
        classes
            The classes of a multinomial problem.
        """
        d = len(names)
        last = np.arange(d) >= d - n_intercepts
        if classes is None:
            return cls(tuple(names), np.eye(d), np.zeros(d), last)
        K = len(classes)
        contrasts = np.column_stack([-np.ones(K - 1), np.eye(K - 1)])
        labels = tuple(f"{label}: {name}" for label in classes[1:] for name in names)
        return cls(
            labels, np.kron(contrasts, np.eye(d)).astype(np.float64), np.zeros((K - 1) * d), np.tile(last, K - 1)
        )

    def then(self, matrix: Array, shift: Array) -> "Coordinates":
        """Return matrix β + shift of these coefficients, with the same names."""
        return Coordinates(self.names, matrix @ self.matrix, matrix @ self.shift + shift, self.intercepts)

    def only(self, kept: NDArray[np.bool_]) -> "Coordinates":
        """Return some of these coefficients."""
        names = tuple(name for name, there in zip(self.names, kept.tolist(), strict=True) if there)
        return Coordinates(names, self.matrix[kept], self.shift[kept], self.intercepts[kept])

    def check(self, dim: int) -> None:
        """Raise if there is another number of coefficients."""
        if self.matrix.shape[1] != dim:
            raise InvalidInput(f"names for {self.matrix.shape[1]} coefficients were given, but there are {dim}")
