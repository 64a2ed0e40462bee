"""The closing sums: all that standard errors, tests and the distance to the optimum are computed from."""

from dataclasses import dataclass, fields
from typing import Any, Self

import numpy as np

from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.types import Array

SCALARS = ("rows", "clients", "intercepts", "weight", "loss", "saturated", "constant", "pearson", "extreme")
MATRICES = ("hessian", "score_products", "cluster_products")


@dataclass(frozen=True, kw_only=True, eq=False)
class ClosingSums:
    """Sums over the records of one client, or of several, at one θ; those of several clients are added with +.

    Records have weights a: their sample weight, times what clients count for where that is not their number of
    rows.

    Attributes
    ----------
    kind
        The problem's kind, such as "logistic".
    theta
        Where the sums were taken, (dim,).
    rows, clients
        Numbers of records with a positive weight, and of clients that have some.
    intercepts
        Number of clients whose own intercept was fitted.
    weight
        Σ a.
    loss
        Σ a ℓ, without penalty.
    saturated, constant, pearson
        Σ a ℓ of a perfect fit, what the log-likelihood has besides the loss, and Pearson's statistic.
    extreme
        Number of records whose fitted probability is 0 or 1, or whose fitted mean count is 0, to eight digits.
    null
        Sums for the model with a constant alone; which ones depends on the family.
    gradient
        Σ a ∇ℓ, (dim,).
    squares
        Σ a x², (features,).
    varying
        For each feature, the number of clients in which it is not constant, (features,).
    hessian
        Σ a ∇²ℓ, (dim, dim).
    information
        The expected Hessian, (dim, dim), where that is another than `hessian`; else None.
    score_products
        Σ a² ∇ℓ ∇ℓᵀ over records, (dim, dim); zeros where they were not asked for.
    cluster_products
        Σ g gᵀ over clients, with g the client's own gradient, (dim, dim).

    Examples
    --------
    >>> import numpy as np
    >>> import fedscaffold as fs
    >>> rng = np.random.default_rng(0)
    >>> X, y = rng.normal(size=(3, 20, 2)), rng.normal(size=(3, 20))
    >>> problem = fs.problems.Ridge(X, y)
    >>> one, two, three = (fs.inference.client_sums(problem, c, np.zeros(2)) for c in range(3))
    >>> (one + two + three).rows
    60
    >>> (one + two + three).vector().size  # numbers that a client would send
    26
    """

    kind: str
    theta: Array
    rows: int
    clients: int
    intercepts: int
    weight: float
    loss: float
    saturated: float
    constant: float
    pearson: float
    extreme: int
    null: Array
    gradient: Array
    squares: Array
    varying: Array
    hessian: Array
    information: Array | None
    score_products: Array
    cluster_products: Array

    def __add__(self, other: "ClosingSums") -> "ClosingSums":
        """Sums over the records of both; they must have been taken at the same θ."""
        if self.kind != other.kind or not np.array_equal(self.theta, other.theta):
            raise InvalidInput("closing sums can be added only if they were taken at the same θ of the same kind")
        added = {
            field.name: _sum(getattr(self, field.name), getattr(other, field.name))
            for field in fields(self)
            if field.name not in ("kind", "theta")
        }
        return ClosingSums(kind=self.kind, theta=self.theta, **added)

    @property
    def dim(self) -> int:
        """Number of coefficients, own intercepts of clients not counted."""
        return self.theta.size

    def vector(self) -> Array:
        """All sums as one vector, whose sum over clients is the vector of their sum.

        Of symmetric matrices it holds the upper triangle: d² + 2d + … numbers in all for d coefficients.
        """
        upper = np.triu_indices(self.dim)
        matrices = [getattr(self, name)[upper] for name in MATRICES]
        if self.information is not None:
            matrices.append(self.information[upper])
        scalars = np.array([float(getattr(self, name)) for name in SCALARS])
        return np.concatenate([scalars, self.null, self.gradient, self.squares, self.varying, *matrices])

    def with_vector(self, vector: Array) -> Self:
        """Sums of the same kind at the same θ from such a vector, for example a sum that a server received."""
        if vector.shape != self.vector().shape:
            raise InvalidInput(
                f"a vector of {self.vector().size} closing sums is needed, got shape {vector.shape}"
            )
        upper, n = np.triu_indices(self.dim), self.dim * (self.dim + 1) // 2
        sizes = [len(SCALARS), self.null.size, self.dim, self.squares.size, self.varying.size, n, n, n]
        scalars, null, gradient, squares, varying, *triangles = np.split(vector, np.cumsum(sizes))
        found: dict[str, Any] = dict(zip(SCALARS, scalars.tolist(), strict=True))
        for name in ("rows", "clients", "intercepts", "extreme"):
            found[name] = round(found[name])
        matrices: dict[str, Any] = dict.fromkeys(("information", *MATRICES))
        for name, triangle in zip((*MATRICES, "information"), triangles, strict=True):
            if triangle.size:
                matrices[name] = np.zeros((self.dim, self.dim))
                matrices[name][upper] = triangle
                matrices[name] += np.triu(matrices[name], 1).T
        return type(self)(
            kind=self.kind, theta=self.theta, null=null, gradient=gradient, squares=squares, varying=varying,
            **found, **matrices,
        )  # fmt: skip


def _sum(one: Any, other: Any) -> Any:
    return None if one is None else one + other
