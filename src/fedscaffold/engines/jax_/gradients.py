"""Gradients of a batch, θ ↦ Σ_i share_i ∇ℓ(θ, record_i), as functions that JAX can trace and tell apart."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.protocols import HasBatchLoss, NonUniformSampling, Streamed


def _ridge(z: Any, y: Any) -> Any:
    return z - y


def _logistic(z: Any, y: Any) -> Any:
    return -y * jax.nn.sigmoid(-y * z)


def _poisson(z: Any, y: Any) -> Any:
    return jnp.exp(z) - y


def _gamma(z: Any, y: Any) -> Any:
    return 1.0 - y * jnp.exp(-z)


def _multinomial(z: Any, y: Any) -> Any:
    return jax.nn.softmax(z) - jax.nn.one_hot(y.astype(jnp.int32), z.shape[1], dtype=z.dtype)


# of (θ, batch, weights of its records, None for 1/B each); hashable, so that runs with the same one share code
Gradient = Callable[[Any, Any, Any], Any]
SLOPES = {  # ℓ'(z, y) of each record, by kind
    "ridge": _ridge,
    "logistic": _logistic,
    "poisson": _poisson,
    "gamma": _gamma,
    "multinomial": _multinomial,
}


@dataclass(frozen=True)
class OfLoss:
    """Gradient of a loss by reverse-mode differentiation; of each record alone if records are clipped."""

    loss: Any  # `problems.autodiff.FlatLoss`
    clip: float | None = None

    def __call__(self, theta: Any, batch: Any, share: Any) -> Any:
        """Gradient of the batch's loss at θ."""
        if self.clip is None:
            return jax.grad(self.loss)(theta, batch, share)

        def of_one(record: Any) -> Any:
            alone = jax.tree.map(lambda array: array[None], record)
            return jax.grad(self.loss.of_records)(theta, alone, None)

        each = jax.vmap(of_one)(batch)
        each = jnp.where(jnp.isfinite(each).all(axis=1, keepdims=True), each, 0)
        each = each * _shorter(jnp.linalg.norm(each, axis=1), self.clip)[:, None]
        mean = each.mean(axis=0) if share is None else share @ each
        return mean + jnp.asarray(self.loss.l2, theta.dtype) * theta


@dataclass(frozen=True)
class OfMargins:
    """Σ_i share_i ℓ'(xᵀθ, y) x + l2 θ, with one margin per class for multinomial regression.

    If y has three columns, target, offset o and weight s, the sum is of s ℓ'(xᵀθ + o, y) x.
    """

    kind: str  # a key of SLOPES
    vectors: int
    l2: float
    n_unpenalised: int
    clip: float | None = None

    def __call__(self, theta: Any, batch: Any, share: Any) -> Any:
        """Gradient at θ of a batch of records (x, y)."""
        x, y = batch
        d = x.shape[1]
        own = jnp.where(jnp.arange(d) < d - self.n_unpenalised, jnp.asarray(self.l2, theta.dtype), 0)
        penalty = jnp.tile(own, self.vectors) * theta
        margins = x @ theta.reshape(self.vectors, d).T if self.vectors > 1 else x @ theta
        slopes = self._slopes(margins, y)
        if self.clip is not None:
            slopes = _clipped(slopes, x, self.clip)
        if share is None:
            return (slopes.T @ x).ravel() / y.shape[0] + penalty
        return ((slopes * _column(share, slopes)).T @ x).ravel() + penalty

    def _slopes(self, z: Any, y: Any) -> Any:
        slopes = SLOPES[self.kind]
        if y.ndim == 1:
            return slopes(z, y)
        target, offset, weight = y.T
        return _column(weight, z) * slopes(z + _column(offset, z), target)


def _clipped(slopes: Any, x: Any, clip: float) -> Any:
    """`problems.base.clipped_slopes`, which says why nothing may be infinite or NaN."""
    finite = jnp.finfo(slopes.dtype).max
    limits = jnp.minimum(jnp.asarray(clip, slopes.dtype) / _norms(x), finite)
    if slopes.ndim == 1:
        return jnp.where(jnp.isnan(slopes), 0, jnp.clip(slopes, -limits, limits))
    slopes = jnp.where(jnp.isfinite(slopes).all(axis=1, keepdims=True), slopes, 0)
    return slopes * (limits / jnp.maximum(_norms(slopes), limits))[:, None]


def _norms(rows: Any) -> Any:
    """Return norms of rows, also if squares would be too large or too small."""
    largest = jnp.abs(rows).max(axis=1)
    unit = jnp.where(largest > 0, largest, 1)
    return largest * jnp.linalg.norm(rows / unit[:, None], axis=1)


def _shorter(norms: Any, clip: float) -> Any:
    """Return factors that shorten vectors of given norms to `clip`."""
    longest = jnp.asarray(clip, norms.dtype)
    return longest / jnp.maximum(norms, longest)


def _column(numbers: Any, like: Any) -> Any:
    """Return one number per record, as a column if `like` has one for each class."""
    return numbers.reshape(-1, *([1] * (like.ndim - 1)))


def gradient_and_records(problem: Any, clip: float | None = None) -> tuple[Gradient, Any]:
    """Return how to differentiate the problem's loss, and its records as a tree of NumPy arrays."""
    if isinstance(problem, HasBatchLoss):
        return OfLoss(problem.batch_loss, clip), problem.records
    if isinstance(problem, Streamed):
        raise InvalidInput("the jax engine takes tables of records, not streamed clients; use engine='native'")
    if isinstance(problem, NonUniformSampling) or problem.kind not in SLOPES:
        raise InvalidInput(
            f"the jax engine has no gradient for {problem.kind!r}; use engine='reference', or state the problem "
            "as problems.Differentiable"
        )
    gradient = OfMargins(problem.kind, int(problem.vectors), float(problem.l2), int(problem.n_unpenalised), clip)
    return gradient, (problem.x, problem.y)
