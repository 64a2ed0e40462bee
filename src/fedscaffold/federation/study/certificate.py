"""The phase that ends training: sums over all sites that say how far a model is from the pooled one.

With g = Σ w_c ∇f_c(θ) and A = Σ w_c ∇²f_c(θ), the distance to the optimum is A⁻¹g up to its square, and θ − A⁻¹g
is far closer to it than θ. So the sums are a certificate and a step of Newton's method at once.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.storage.fields import Fields
from fedscaffold.core.types import Array
from fedscaffold.data.columns import some
from fedscaffold.data.encoded import EncodedProblem

SINGULAR = 1e-11  # smallest eigenvalue of the Hessian, relative to the largest, that counts as positive
VANISHING = 1e-10  # the same, absolute: curvature vanishes where classes are separated
RESIDUAL = 0.01  # of conjugate gradients, relative to the gradient
MOST_PRODUCTS = 200  # steps of conjugate gradients
DIFFERENCE = 1e-6  # relative length of the step between two gradients


@dataclass(frozen=True, kw_only=True, eq=False)
class ObjectiveSums:
    """Sums over sites of n_c f_c(θ), its gradient, and where asked for its Hessian.

    Parameters
    ----------
    n_rows
        Σ n_c, the number of rows behind the sums.
    loss
        Σ n_c f_c(θ), with the penalty.
    gradient
        Σ n_c ∇f_c(θ), shape (dim,).
    hessian
        Σ n_c ∇²f_c(θ), shape (dim, dim); None if it was not asked for.
    """

    n_rows: int
    loss: float
    gradient: Array
    hessian: Array | None = None

    def __add__(self, other: "ObjectiveSums") -> "ObjectiveSums":
        both = self.hessian is not None and other.hessian is not None
        return ObjectiveSums(
            n_rows=self.n_rows + other.n_rows,
            loss=self.loss + other.loss,
            gradient=self.gradient + other.gradient,
            hessian=self.hessian + other.hessian if both else None,  # type: ignore[operator]
        )

    def to_values(self) -> tuple[dict[str, Any], dict[str, Array]]:
        """Numbers, and vectors by name; of the Hessian only the upper triangle travels."""
        arrays = {"gradient": self.gradient}
        if self.hessian is not None:
            arrays["hessian"] = self.hessian[np.triu_indices(self.gradient.size)]
        return {"n_rows": self.n_rows, "loss": self.loss}, arrays

    @classmethod
    def from_values(
        cls, values: Any, arrays: Mapping[str, Any], site: str, *, dim: int, with_hessian: bool
    ) -> Self:
        """The sums that a site sent, validated field by field."""
        fields = Fields(values, f"the sums of site {site}")
        vectors = Fields(arrays, f"the sums of site {site}")
        hessian = None
        if with_hessian:
            triangle = vectors.array("hessian", (dim * (dim + 1) // 2,))
            hessian = np.empty((dim, dim))
            rows, columns = np.triu_indices(dim)
            hessian[rows, columns] = hessian[columns, rows] = triangle
        return cls(
            n_rows=fields.integer("n_rows", least=1, most=2**53),
            loss=fields.number("loss"),
            gradient=vectors.array("gradient", (dim,)),
            hessian=hessian,
        )


def objective_sums(problem: EncodedProblem, theta: Array, *, with_hessian: bool) -> ObjectiveSums:
    """The sums of one site at θ, shape (dim,)."""
    n = int(problem.sizes[0])
    return ObjectiveSums(
        n_rows=n,
        loss=n * float(problem.loss(theta)),
        gradient=n * problem.gradient(theta),
        hessian=n * problem.hessian(theta) if with_hessian else None,
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class Certificate:
    """What the sums over all sites say about a model.

    Parameters
    ----------
    theta
        The model, shape (dim,).
    loss
        f(θ).
    step
        A⁻¹g, shape (dim,): the distance to the optimum, coefficient by coefficient, up to its square.
    decrement
        ½ gᵀA⁻¹g: how far f(θ) is above its minimum, up to higher order.
    standard_errors
        Standard error of each coefficient under the model, sqrt(diag A⁻¹/n), scaled by the residual deviation
        where the target is a number.
    slopes
        Whether each entry of θ is a slope, and not an intercept, shape (dim,).
    """

    theta: Array
    loss: float
    step: Array
    decrement: float
    standard_errors: Array | None
    slopes: Array

    @property
    def error_in_standard_errors(self) -> float:
        """The largest distance of a coefficient to the optimum, in its standard errors."""
        assert self.standard_errors is not None
        return float((np.abs(self.step) / self.standard_errors).max())

    @property
    def relative_error(self) -> float:
        """‖A⁻¹g‖ / ‖θ − A⁻¹g‖ over the slopes."""
        norm = float(np.linalg.norm((self.theta - self.step)[self.slopes]))
        return float(np.linalg.norm(self.step[self.slopes])) / norm if norm else np.inf


def certify(
    theta: Array, sums: ObjectiveSums, names: tuple[str, ...], *, numeric_target: bool, n_unpenalised: int
) -> Certificate:
    """The certificate of θ from the sums over all sites; refused if the optimum is not unique.

    Parameters
    ----------
    theta
        The model, shape (dim,).
    sums
        Sums over all sites at θ, with the Hessian.
    names
        Names of the features of an encoded row, "intercept" last.
    numeric_target
        Whether the loss is half the squared error of a number, whose variance is estimated from the residuals.
    n_unpenalised
        Number of last features without penalty.
    """
    if sums.hessian is None:
        raise InvalidInput("a certificate needs the sum of the Hessians")
    n, dim = sums.n_rows, theta.size
    hessian, gradient = sums.hessian / n, sums.gradient / n
    n_classes = dim // len(names)
    if n_classes > 1:  # the same vector added to all classes changes nothing where there is no penalty
        free = np.diag((np.arange(len(names)) >= len(names) - n_unpenalised).astype(np.float64))
        hessian = hessian + np.kron(np.ones((n_classes, n_classes)), free)
    values, vectors = np.linalg.eigh(hessian)
    if values[0] <= max(SINGULAR * values[-1], VANISHING):
        involved = np.flatnonzero(np.abs(vectors[:, 0]) > 0.1 * np.abs(vectors[:, 0]).max())
        columns = sorted({names[k % len(names)] for k in involved.tolist()})
        raise InvalidInput(
            f"the coefficients of {some(columns)} are not determined by the rows of all sites together: columns "
            "depend on each other, or classes can be separated; leave one of them out, or take a positive l2"
        )
    inverse = (vectors / values) @ vectors.T
    step = inverse @ gradient
    spread = np.sqrt(np.diag(inverse) / n)
    if numeric_target:
        spread *= np.sqrt(2.0 * sums.loss / max(n - dim, 1))
    slopes = np.tile(np.array([name != "intercept" for name in names]), n_classes)
    return Certificate(
        theta=theta,
        loss=sums.loss / n,
        step=step,
        decrement=0.5 * float(gradient @ step),
        standard_errors=np.maximum(spread, np.finfo(float).tiny),
        slopes=slopes,
    )


def certify_by_gradients(
    theta: Array, gradient_and_loss: Callable[[Array], tuple[Array, float]], names: tuple[str, ...]
) -> Certificate:
    """The certificate of θ without Hessians: A⁻¹g by conjugate gradients, with Av from differences of gradients.

    Each step of conjugate gradients is one exchange. It stops at a residual of a hundredth of the gradient;
    standard errors are not known.

    Parameters
    ----------
    theta
        The model, shape (dim,).
    gradient_and_loss
        gradient_and_loss(θ) → ∇f(θ) and f(θ), from sums over all sites.
    names
        Names of the features of an encoded row, "intercept" last.
    """
    gradient, loss = gradient_and_loss(theta)
    step, residual = np.zeros_like(theta), gradient.copy()
    direction, square = residual.copy(), float(residual @ residual)
    enough = (RESIDUAL * float(np.linalg.norm(gradient))) ** 2
    for _ in range(min(theta.size, MOST_PRODUCTS)):
        if square <= enough:
            break
        length = DIFFERENCE * (1.0 + float(np.linalg.norm(theta))) / float(np.linalg.norm(direction))
        ahead, _ = gradient_and_loss(theta + length * direction)
        product = (ahead - gradient) / length
        curvature = float(direction @ product)
        if curvature <= 0.0:
            raise InvalidInput(
                "the loss of all sites together has directions without curvature; take a positive l2"
            )
        share = square / curvature
        step = step + share * direction
        residual = residual - share * product
        before, square = square, float(residual @ residual)
        direction = residual + square / before * direction
    slopes = np.tile(np.array([name != "intercept" for name in names]), theta.size // len(names))
    return Certificate(
        theta=theta,
        loss=loss,
        step=step,
        decrement=0.5 * float(gradient @ step),
        standard_errors=None,
        slopes=slopes,
    )
