"""Optional abilities of problems, one protocol each: theory asks for them with isinstance."""

from collections.abc import Iterator
from typing import Protocol, Self, runtime_checkable

from numpy.typing import ArrayLike

from fedscaffold.core.protocols import Problem
from fedscaffold.core.random.stream import Sampling
from fedscaffold.core.types import Array, IntArray


class SmoothProblem(Problem, Protocol):
    """A problem that gives the gradient and the Hessian of every client's f_c; what theory asks of a problem."""

    def client_gradients(self, theta: Array) -> Array:
        """∇f_c(θ) of every client, shape (n_clients, dim)."""

    def client_hessians(self, theta: Array) -> Array:
        """∇²f_c(θ) of every client, shape (n_clients, dim, dim)."""

    def subset(self, clients: ArrayLike) -> Self:
        """Return the problem of some of the clients, in the given order, with weights scaled to sum to one."""


@runtime_checkable
class MarginLoss(Protocol):
    """A problem whose records have losses ℓ(z, y) of their margin z = xᵀθ, with bounded derivatives in z."""

    @property
    def curvature(self) -> float:
        """The largest second derivative ℓ'' of a record's loss, at any margin and target."""

    @property
    def margin_derivative_bounds(self) -> tuple[float, float]:
        """The largest |ℓ'''| and |ℓ''''|; both are 0 where the loss is quadratic."""


@runtime_checkable
class GeneralisedLinear(SmoothProblem, MarginLoss, Protocol):
    """f_c(θ) = mean of ℓ(xᵀθ, y) over client c's table of records, plus ½ Σ_j penalty_j θ_j²."""

    x: Array  # (records, dim), client after client
    y: Array  # (records,)
    offsets: IntArray  # client c's records are rows offsets[c] to offsets[c + 1] - 1
    l2: float
    penalty: Array  # (dim,): l2, or 0 where a coordinate is not penalised

    def d1(self, z: Array, y: Array) -> Array:
        """ℓ'(z, y), the derivative in z, of the broadcast shape of z and y."""

    def d2(self, z: Array, y: Array) -> Array:
        """ℓ''(z, y), the second derivative in z."""


@runtime_checkable
class HasRecordHessians(SmoothProblem, Protocol):
    """A problem that gives gradients and Hessians of single records, and bounds on higher derivatives."""

    l2: float

    def record_gradients(self, client: int, points: Array) -> Array:
        """Gradient of each of a client's n records, penalty included, at p points: (p, dim) → (p, n, dim)."""

    def record_hessians(self, client: int, theta: Array) -> Iterator[Array]:
        """Hessians of a client's records at θ, penalty included, in pieces of shape (k, dim, dim)."""

    def client_derivative_norms(self, theta: Array) -> tuple[Array, Array]:
        """Norms of the third and of the fourth derivative of every f_c at θ, each of shape (n_clients,)."""


@runtime_checkable
class HasNoiseAlong(SmoothProblem, Protocol):
    """A problem that gives ∇²f and the noise of minibatch gradients along given directions."""

    def hessian(self, theta: Array) -> Array:
        """∇²f(θ), shape (dim, dim)."""

    def client_noise_along(
        self, theta: Array, directions: Array, *, batch_size: int | None, sampling: Sampling = "with_replacement"
    ) -> Array:
        """Variance of a minibatch gradient along each column of (dim, m) directions, shape (n_clients, m)."""


@runtime_checkable
class HasNoiseCovariances(Protocol):
    """A problem that gives the covariance of minibatch gradients, and third derivatives."""

    def client_noise_covariances(
        self, theta: Array, *, batch_size: int | None, sampling: Sampling = "with_replacement"
    ) -> Array:
        """Covariance of a minibatch gradient of every client at θ, shape (n_clients, dim, dim)."""

    def client_third_derivatives(self, theta: Array, matrix: Array) -> Array:
        """∇³f_c(θ)[M], shape (n_clients, dim), for symmetric M of shape (dim, dim) or (n_clients, dim, dim)."""


@runtime_checkable
class PopulationMoments(SmoothProblem, MarginLoss, Protocol):
    """A problem whose clients are distributions x ~ N(0, s_c diag(spectrum)) with known means and covariances."""

    l2: float
    spectrum: Array
    largest_scale: float  # the largest s_c

    def law(self, clients: IntArray) -> tuple[Array, Array]:
        """s_c and w_c of some clients, shapes (k,) and (k, dim)."""

    def derivatives(self, clients: IntArray, theta: Array) -> tuple[Array, Array, Array]:
        """∇f_c, ∇²f_c and the covariance of one record's gradient at θ: (k, dim), (k, dim, dim), (k, dim, dim)."""


@runtime_checkable
class HasResidualVariances(Protocol):
    """A problem of linear regression whose residuals xᵀθ − y are normal."""

    def residual_variances(self, theta: Array, clients: IntArray) -> Array:
        """Variance of xᵀθ − y of some clients, shape (k,)."""
