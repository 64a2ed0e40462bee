"""Closing sums, from which standard errors, tests and the distance to the optimum are computed."""

from dataclasses import dataclass, fields
from typing import Any, Self

import numpy as np

from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.types import Array

SCALARS = ("rows", "clients", "intercepts", "weight", "loss", "saturated", "constant", "pearson")
MATRICES = ("hessian", "score_products", "cluster_products")


@dataclass(frozen=True, kw_only=True, eq=False)
class ClosingSums:
    """Sums over the records of one client, or of several, at one θ; sums of several clients are added with +.

    Records have weights a: the sample weight, times a factor of the client unless clients count by their rows.

    Attributes
    ----------
    kind
        The problem's kind, such as "logistic".
    theta
        The model at which the sums were taken, (dim,).
    rows, clients
        Numbers of records with a positive weight, and of clients that have some.
    intercepts
        Number of clients with an intercept that was fitted.
    weight
        Σ a.
    loss
        Σ a ℓ, without penalty.
    saturated, constant, pearson
        Σ a ℓ of a perfect fit, terms of the log-likelihood without θ, and Pearson's statistic.
    null
        Sums for the model with a constant alone; they depend on the family.
    gradient
        Σ a ∇ℓ, (dim,).
    squares
        Σ a x², (features,).
    varying
        For each feature, the number of clients in which it is not constant, (features,).
    hessian
        Σ a ∇²ℓ, (dim, dim).
    information
        The expected Hessian, (dim, dim), if it differs from `hessian`; else None.
    score_products
        Σ a² ∇ℓ ∇ℓᵀ over records, (dim, dim); zeros unless asked for.
    cluster_products
        Σ g gᵀ over clients with gradients g, (dim, dim); zeros unless products of scores were asked for.

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
    25
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
    null: Array
    gradient: Array
    squares: Array
    varying: Array
    hessian: Array
    information: Array | None
    score_products: Array
    cluster_products: Array

    def __add__(self, other: "ClosingSums") -> "ClosingSums":
        """Return the sums over the records of both, which must have been taken at the same θ."""
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
        """Number of coefficients, intercepts of clients not counted."""
        return self.theta.size

    def vector(self) -> Array:
        """Return all sums as one vector; the sum of clients' vectors is the vector of their sum.

        Of symmetric matrices it holds the upper triangle.
        """
        upper = np.triu_indices(self.dim)
        matrices = [getattr(self, name)[upper] for name in MATRICES]
        if self.information is not None:
            matrices.append(self.information[upper])
        scalars = np.array([float(getattr(self, name)) for name in SCALARS])
        return np.concatenate([scalars, self.null, self.gradient, self.squares, self.varying, *matrices])

    def with_vector(self, vector: Array) -> Self:
        """Return sums of the same kind at the same θ from such a vector, for example from a server's sum."""
        if vector.shape != self.vector().shape:
            raise InvalidInput(
                f"a vector of {self.vector().size} closing sums is needed, got shape {vector.shape}"
            )
        upper, n = np.triu_indices(self.dim), self.dim * (self.dim + 1) // 2
        sizes = [len(SCALARS), self.null.size, self.dim, self.squares.size, self.varying.size, n, n, n]
        scalars, null, gradient, squares, varying, *triangles = np.split(vector, np.cumsum(sizes))
        found: dict[str, Any] = dict(zip(SCALARS, scalars.tolist(), strict=True))
        for name in ("rows", "clients", "intercepts"):
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


def symmetric(matrix: Array) -> Array:
    """Return the symmetric part of a matrix."""
    return 0.5 * (matrix + matrix.T)


def _sum(one: Any, other: Any) -> Any:
    return None if one is None else one + other
