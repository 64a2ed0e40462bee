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

from fedscaffold.core.files import Fields
from fedscaffold.core.types import Array
from fedscaffold.data.encoded import problem_class
from fedscaffold.federation.agreement import Agreement
from fedscaffold.federation.study.prepare import OTHER
from fedscaffold.inference import ClosingSums, newton_step
from fedscaffold.inference.coordinates import slope_mask
from fedscaffold.inference.covariance import covariance
from fedscaffold.inference.families import family_of

ROUNDING = 1e-12  # relative error below which nothing is certified
SCALARS = ("loss", "pearson")  # of a site, which depend on the model
FIXED_SCALARS = ("rows", "clients", "intercepts", "weight", "saturated", "constant")
FIXED_VECTORS = ("null", "squares", "varying")
COUNTS = ("rows", "clients", "intercepts")
MATRICES = ("hessian", "score_products", "cluster_products", "information")


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


def penalty_of(agreement: Agreement, sums: ClosingSums) -> Array:
    """Second derivatives of the penalty on the sum of losses over all rows, shape (dim,).

    Sites may have merged rare values of a category into "(other)" that other sites named, so that it is the value
    of no row. Without a penalty its coefficient would not be determined; one of its own then holds it at 0.
    """
    encoding = agreement.encoding
    empty = [name.endswith(f"={OTHER}") for name in encoding.names] & (sums.squares == 0.0)
    least = np.tile(np.where(empty, sums.rows, 0.0), encoding.n_vectors)
    return np.maximum(np.where(slopes_of(agreement), sums.rows * agreement.l2, 0.0), least)


def certify(sums: ClosingSums, agreement: Agreement) -> Certificate:
    """The certificate of the model at which sums were taken; refused, by column, if the optimum is not unique."""
    penalty = penalty_of(agreement, sums)
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


@dataclass(frozen=True, kw_only=True)
class SumsAsked:
    """Which sums at a model the coordinator asks for; all of them add up over sites.

    Parameters
    ----------
    hessian
        Whether second derivatives are asked for, and what standard errors need besides.
    scores
        Whether products of scores are, for robust standard errors.
    fixed
        Whether sums that do not depend on the model are; they are told once.

    Examples
    --------
    >>> from fedscaffold.federation.study.certificate import SumsAsked
    >>> SumsAsked.from_json(SumsAsked(hessian=True).to_json()).scores
    False
    """

    hessian: bool
    scores: bool = False
    fixed: bool = False

    def to_json(self) -> dict[str, bool]:
        """The request as values that JSON can hold."""
        return vars(self).copy()

    @classmethod
    def from_json(cls, values: Any) -> "SumsAsked":
        """The request that `to_json` gave."""
        fields = Fields(values, "the request")
        return cls(hessian=fields.flag("hessian"), scores=fields.flag("scores"), fixed=fields.flag("fixed"))

    @property
    def scalars(self) -> tuple[str, ...]:
        """Names of the sums that are single numbers."""
        return (*SCALARS, *FIXED_SCALARS * self.fixed) if self.hessian else ("rows", "loss")

    def lengths(self, agreement: Agreement) -> dict[str, int]:
        """Names of the sums that are vectors, and their lengths; of symmetric matrices the upper triangle."""
        dim, features = agreement.dim, agreement.encoding.dim
        if not self.hessian:
            return {"gradient": dim}
        triangle, family = dim * (dim + 1) // 2, family_of(problem_class(agreement.encoding).kind)
        names = ["hessian", *["information"] * (family.expected is not None), *["score_products"] * self.scores]
        found = {"gradient": dim, **dict.fromkeys(names, triangle)}
        if self.fixed:
            found |= {"null": _null_size(agreement), "squares": features, "varying": features}
        return found


def _null_size(agreement: Agreement) -> int:
    """Number of sums for the model with a constant alone."""
    if agreement.encoding.n_vectors > 1:
        return agreement.encoding.n_vectors
    none = np.zeros(0)
    return int(family_of(problem_class(agreement.encoding).kind).null_sums(none, none, none).size)


def pack_sums(sums: ClosingSums, asked: SumsAsked) -> tuple[dict[str, Any], dict[str, Array]]:
    """A site's sums as numbers and vectors.

    Of symmetric matrices only the upper triangle travels. With scores it is d² + 2d numbers in vectors, and two
    beside them.
    """
    upper = np.triu_indices(sums.dim)
    arrays = {"gradient": sums.gradient, "hessian": sums.hessian[upper]}
    if sums.information is not None:
        arrays["information"] = sums.information[upper]
    if asked.scores:
        arrays["score_products"] = sums.score_products[upper]
    if asked.fixed:
        arrays |= {name: getattr(sums, name) for name in FIXED_VECTORS}
    return {name: getattr(sums, name) for name in asked.scalars}, arrays


def read_sums(
    values: Any, arrays: Mapping[str, Any], site: str, agreement: Agreement, asked: SumsAsked
) -> dict[str, Any]:
    """The sums that a site sent, by name, validated field by field."""
    fields, vectors = Fields(values, f"the sums of site {site}"), Fields(arrays, f"the sums of site {site}")
    found: dict[str, Any] = {
        name: vectors.array(name, (length,)) for name, length in asked.lengths(agreement).items()
    }
    for name in asked.scalars:
        found[name] = fields.integer(name, least=0, most=2**53) if name in COUNTS else fields.number(name)
    if asked.scores:
        found["cluster_products"] = np.outer(found["gradient"], found["gradient"])[np.triu_indices(agreement.dim)]
    return found


def closing_sums_of(
    total: Mapping[str, Any], fixed: Mapping[str, Any], agreement: Agreement, theta: Array
) -> ClosingSums:
    """The closing sums over all sites, from sums by name; those that do not depend on the model are in `fixed`."""
    found = {name: fixed[name] for name in (*FIXED_SCALARS, *FIXED_VECTORS)}
    found |= {name: total[name] for name in (*SCALARS, "gradient")}
    found |= {name: round(found[name]) for name in COUNTS}
    empty = np.zeros((theta.size, theta.size))
    for name in MATRICES:
        absent = None if name == "information" else empty
        found[name] = _symmetric(total[name], theta.size) if name in total else absent
    return ClosingSums(kind=problem_class(agreement.encoding).kind, theta=theta, **found)


def _symmetric(triangle: Array, dim: int) -> Array:
    found = np.zeros((dim, dim))
    found[np.triu_indices(dim)] = triangle
    return found + np.triu(found, 1).T
