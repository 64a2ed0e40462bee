"""The phase that ends training: sums over all sites that say how far a model is from the pooled one.

With g the gradient and A the Hessian of the penalised loss of all sites together, the distance to the optimum is
A⁻¹g up to its square, and θ − A⁻¹g is far closer to it than θ. So the sums are a certificate and a step of
Newton's method at once; with products of scores they give standard errors too (`fedscaffold.inference`).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.storage.fields import Fields
from fedscaffold.core.types import Array
from fedscaffold.data.encoded import problem_class
from fedscaffold.federation.agreement import Agreement
from fedscaffold.inference import ClosingSums, newton_step
from fedscaffold.inference.coordinates import slope_mask
from fedscaffold.inference.covariance import covariance

ROUNDING = 1e-12  # relative error below which nothing is certified
SCALARS = ("loss", "pearson", "extreme")  # of a site, which depend on the model
FIXED_SCALARS = ("rows", "clients", "intercepts", "weight", "saturated", "constant")
FIXED_VECTORS = ("null", "squares", "varying")
LONGEST_NULL = 10_000


@dataclass(frozen=True, kw_only=True, eq=False)
class Certificate:
    """What sums over all sites say about a model.

    Parameters
    ----------
    theta
        The model, shape (dim,).
    loss
        The penalised loss per row, f(θ).
    step
        A⁻¹g, shape (dim,): the distance to the optimum, coefficient by coefficient, up to its square.
    decrement
        ½ gᵀA⁻¹g: how far f(θ) is above its minimum, up to higher order.
    slopes
        Whether each entry of θ is a slope, and not an intercept, shape (dim,).
    standard_errors
        Standard error of each entry of θ, shape (dim,); None where the Hessian is not known.
    sums
        The sums over all sites; None where sites add up gradients alone.
    unsolved
        Bound on the length of what is missing in `step`, where that was found step by step.
    """

    theta: Array
    loss: float
    step: Array
    decrement: float
    slopes: NDArray[np.bool_]
    standard_errors: Array | None = None
    sums: ClosingSums | None = None
    unsolved: float = 0.0

    @property
    def error_in_standard_errors(self) -> float | None:
        """The largest distance of a coefficient to the optimum, in its standard errors; None if not known."""
        return None if self.standard_errors is None else float((np.abs(self.step) / self.standard_errors).max())

    @property
    def relative_error(self) -> float:
        """‖A⁻¹g‖ / ‖θ − A⁻¹g‖ over the slopes; never below what rounding allows to say."""
        norm = float(np.linalg.norm((self.theta - self.step)[self.slopes]))
        length = float(np.linalg.norm(self.step[self.slopes])) + self.unsolved
        return max(length / norm, ROUNDING) if norm else np.inf


def slopes_of(agreement: Agreement) -> NDArray[np.bool_]:
    """Whether each entry of θ is a slope, and not an intercept, shape (dim,)."""
    encoding = agreement.encoding
    return slope_mask(encoding.n_vectors, encoding.dim, int(encoding.intercept))


def penalty_of(agreement: Agreement, n_rows: int) -> Array:
    """Second derivatives of the penalty on the sum of losses over all rows, shape (dim,)."""
    return np.where(slopes_of(agreement), n_rows * agreement.l2, 0.0)


def certify(sums: ClosingSums, agreement: Agreement) -> Certificate:
    """The certificate of the model at which sums were taken; refused, by column, if the optimum is not unique."""
    penalty = penalty_of(agreement, sums.rows)
    found = newton_step(sums, penalty, agreement.encoding.names)
    gradient = sums.gradient + penalty * sums.theta
    variances = np.diagonal(covariance(sums, penalty))
    return Certificate(
        theta=sums.theta,
        loss=(sums.loss + 0.5 * float(penalty @ sums.theta**2)) / sums.rows,
        step=found.step,
        decrement=0.5 * float(gradient @ found.step) / sums.rows,
        slopes=slopes_of(agreement),
        standard_errors=np.sqrt(np.maximum(variances, np.finfo(np.float64).tiny)),
        sums=sums,
    )


def pack_sums(sums: ClosingSums, *, scores: bool, fixed: bool) -> tuple[dict[str, Any], dict[str, Array]]:
    """A site's sums as numbers and vectors.

    Of symmetric matrices only the upper triangle travels; sums that do not depend on the model travel if `fixed`.
    With scores and without them it is d² + 2d numbers in vectors, and three beside them.
    """
    upper = np.triu_indices(sums.dim)
    arrays = {"gradient": sums.gradient, "hessian": sums.hessian[upper]}
    if sums.information is not None:
        arrays["information"] = sums.information[upper]
    if scores:
        arrays["score_products"] = sums.score_products[upper]
    if fixed:
        arrays |= {name: getattr(sums, name) for name in FIXED_VECTORS}
    return {name: getattr(sums, name) for name in (*SCALARS, *FIXED_SCALARS * fixed)}, arrays


def unpack_sums(
    values: Any, arrays: Mapping[str, Any], site: str, agreement: Agreement, theta: Array, *, scores: bool,
    fixed: ClosingSums | None,
) -> ClosingSums:  # fmt: skip
    """The sums that a site sent, validated field by field; what is the same at every model comes from `fixed`."""
    fields = Fields(values, f"the sums of site {site}")
    vectors = Fields(arrays, f"the sums of site {site}")
    dim, features = theta.size, agreement.encoding.dim
    found: dict[str, Any] = {"gradient": vectors.array("gradient", (dim,))}
    if fixed is not None:
        found |= {name: getattr(fixed, name) for name in (*FIXED_VECTORS, *FIXED_SCALARS)}
    else:
        lengths = {"null": None, "squares": features, "varying": features}
        found |= {name: vectors.array(name, (length,)) for name, length in lengths.items()}
        if found["null"].size > LONGEST_NULL:
            raise InvalidInput(
                f"the sums of site {site} have too many numbers for the model with a constant alone"
            )
    for name in (*SCALARS, *FIXED_SCALARS * (fixed is None)):
        whole = name in ("rows", "clients", "intercepts", "extreme")
        found[name] = fields.integer(name, least=0, most=2**53) if whole else fields.number(name)
    found |= {"information": None, "score_products": np.zeros((dim, dim))}
    wanted = {"hessian": True, "information": "information" in vectors, "score_products": scores}
    for name in (name for name, is_wanted in wanted.items() if is_wanted):
        found[name] = _symmetric(vectors.array(name, (dim * (dim + 1) // 2,)), dim)
    gradient = found["gradient"]
    kind = problem_class(agreement.encoding).kind
    return ClosingSums(kind=kind, theta=theta, cluster_products=np.outer(gradient, gradient), **found)


def _symmetric(triangle: Array, dim: int) -> Array:
    found = np.zeros((dim, dim))
    found[np.triu_indices(dim)] = triangle
    return found + np.triu(found, 1).T


def add_sums(each: list[ClosingSums]) -> ClosingSums:
    """Sums over all sites, in their order."""
    total = each[0]
    for one in each[1:]:
        if one.null.shape != total.null.shape or (one.information is None) != (total.information is None):
            raise InvalidInput(
                "the sites' sums are of different kinds; do all have the same version of fedscaffold?"
            )
        total = total + one
    return total
