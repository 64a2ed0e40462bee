"""Certificates where sites add up gradients alone: A⁻¹g by conjugate gradients, one exchange for each product.

Products of A with directions come from differences of gradients. They are kept: near the optimum A hardly changes,
so those of an earlier model precondition the search for the next one's certificate. What the search leaves open is
at most the residual over the least curvature, which is the penalty or more. So a search ends when that is small
beside what was found, or when both together are within the tolerance; with a small penalty, when the residual is a
hundredth of the gradient, and half of the least Rayleigh quotient that was seen stands in for the least curvature.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from scipy.linalg import eigh

from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.types import Array
from fedscaffold.federation.agreement import Agreement
from fedscaffold.federation.study.certificate import Certificate, slopes_of

UNSOLVED = 0.1  # of the step's length, at which the search for it ends
RESIDUAL = 0.01  # relative to the gradient, at which it ends too
MOST_PRODUCTS = 200  # of one search
DIFFERENCE = 1e-6  # relative length of the step between two gradients
SAFETY = 0.5  # of the least Rayleigh quotient, which comes down to the least curvature from above
DEPENDENT = 1e-10  # relative curvature below which a direction is a combination of others

GradientAndLoss = Callable[[Array], tuple[Array, float]]


@dataclass(kw_only=True)
class Products:
    """Conjugate directions p and the products Ap.

    Parameters
    ----------
    directions, images
        p and Ap, one row each.
    """

    directions: list[Array] = field(default_factory=list)
    images: list[Array] = field(default_factory=list)

    def add(self, direction: Array, image: Array) -> None:
        """Keep a direction that is conjugate to those before."""
        self.directions.append(direction)
        self.images.append(image)

    def conjugate(self, vector: Array) -> Array:
        """The vector without its parts along the directions, in the sense of A."""
        for direction, image in zip(self.directions, self.images, strict=True):
            vector = vector - float(vector @ image) / float(direction @ image) * direction
        return vector

    def precondition(self, residual: Array) -> Array:
        """An approximate A⁻¹r: exact along the directions, and r itself across them."""
        across, along = residual, np.zeros_like(residual)
        for direction, image in zip(self.directions, self.images, strict=True):
            share = float(direction @ residual) / float(direction @ image)
            along = along + share * direction
            across = across - share * image
        return along + self.conjugate(across)

    def least_curvature(self) -> float:
        """The least Rayleigh quotient vᵀAv/vᵀv over combinations v of the directions; infinite without any."""
        if not self.directions:
            return np.inf
        p, ap = np.array(self.directions), np.array(self.images)
        lengths = np.linalg.norm(p, axis=1, keepdims=True)
        p, ap = p / lengths, ap / lengths
        curvature = p @ ap.T
        gram, curvature = p @ p.T, 0.5 * (curvature + curvature.T)
        values, vectors = eigh(gram)
        kept = values > DEPENDENT * values[-1]
        basis = vectors[:, kept] / np.sqrt(values[kept])
        return float(eigh(basis.T @ curvature @ basis, eigvals_only=True)[0])


def certify_by_gradients(
    theta: Array,
    gradient_and_loss: GradientAndLoss,
    agreement: Agreement,
    *,
    tolerance: float = 0.0,
    known: Products | None = None,
) -> tuple[Certificate, Products]:
    """The certificate of θ without Hessians, and products for the next one; standard errors are not known.

    Parameters
    ----------
    theta
        The model, shape (dim,).
    gradient_and_loss
        gradient_and_loss(θ) → ∇f(θ) and f(θ), from sums over all sites.
    agreement
        The encoding.
    tolerance
        Relative error that is small enough: the search ends when it is certified.
    known
        Products of an earlier model near by.
    """
    gradient, loss = gradient_and_loss(theta)
    earlier, products, slopes = known or Products(), Products(), slopes_of(agreement)
    step, residual = np.zeros_like(theta), gradient.copy()
    found = Certificate(theta=theta, loss=loss, step=step, decrement=0.0, slopes=slopes)
    for _ in range(min(theta.size, MOST_PRODUCTS)):
        if not residual.any():
            break
        direction = products.conjugate(earlier.precondition(residual))
        length = DIFFERENCE * (1.0 + float(np.linalg.norm(theta))) / float(np.linalg.norm(direction))
        image = (gradient_and_loss(theta + length * direction)[0] - gradient) / length
        curvature = float(direction @ image)
        if curvature <= 0.0:
            raise InvalidInput(
                "the loss of all sites together has directions without curvature; take a positive l2"
            )
        products.add(direction, image)
        share = float(direction @ residual) / curvature
        step, residual = step + share * direction, residual - share * image
        left, least = float(np.linalg.norm(residual)), agreement.l2
        ended = left <= RESIDUAL * float(np.linalg.norm(gradient))
        if ended:
            least = max(least, SAFETY * min(products.least_curvature(), earlier.least_curvature()))
        found = Certificate(
            theta=theta,
            loss=loss,
            step=step,
            decrement=0.5 * float(gradient @ step),
            slopes=slopes,
            unsolved=left / least if least > 0.0 else np.inf,
        )
        solved = found.unsolved <= UNSOLVED * float(np.linalg.norm(step[slopes]))
        if ended or solved or found.relative_error <= tolerance:
            break
    return found, products if len(products.directions) >= len(earlier.directions) else earlier
