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
    """Gradient of a loss by reverse-mode differentiation."""

    loss: Callable[[Any, Any, Any], Any]

    def __call__(self, theta: Any, batch: Any, share: Any) -> Any:
        """Gradient of the batch's loss at θ."""
        return jax.grad(self.loss)(theta, batch, share)


@dataclass(frozen=True)
class OfMargins:
    """Σ_i share_i ℓ'(xᵀθ, y) x + l2 θ, with one margin per class for multinomial regression.

    Where y has three columns, target, offset o and weight s, the sum is of s ℓ'(xᵀθ + o, y) x.
    """

    kind: str  # a key of SLOPES
    vectors: int
    l2: float
    n_unpenalised: int

    def __call__(self, theta: Any, batch: Any, share: Any) -> Any:
        """Gradient at θ of a batch of records (x, y)."""
        x, y = batch
        d = x.shape[1]
        own = jnp.where(jnp.arange(d) < d - self.n_unpenalised, jnp.asarray(self.l2, theta.dtype), 0)
        penalty = jnp.tile(own, self.vectors) * theta
        margins = x @ theta.reshape(self.vectors, d).T if self.vectors > 1 else x @ theta
        slopes = self._slopes(margins, y)
        if share is None:
            return (slopes.T @ x).ravel() / y.shape[0] + penalty
        return ((slopes * _column(share, slopes)).T @ x).ravel() + penalty

    def _slopes(self, z: Any, y: Any) -> Any:
        slopes = SLOPES[self.kind]
        if y.ndim == 1:
            return slopes(z, y)
        target, offset, weight = y.T
        return _column(weight, z) * slopes(z + _column(offset, z), target)


def _column(numbers: Any, like: Any) -> Any:
    """One number per record, as a column where `like` has one for each class."""
    return numbers.reshape(-1, *([1] * (like.ndim - 1)))


def gradient_and_records(problem: Any) -> tuple[Gradient, Any]:
    """How to differentiate the problem's loss, and its records as a tree of NumPy arrays."""
    if isinstance(problem, HasBatchLoss):
        return OfLoss(problem.batch_loss), problem.records
    if isinstance(problem, Streamed):
        raise InvalidInput("the jax engine takes tables of records, not streamed clients; use engine='numba'")
    if isinstance(problem, NonUniformSampling) or problem.kind not in SLOPES:
        raise InvalidInput(
            f"the jax engine has no gradient for {problem.kind!r}; use engine='reference', or state the problem "
            "as problems.Differentiable"
        )
    gradient = OfMargins(problem.kind, int(problem.vectors), float(problem.l2), int(problem.n_unpenalised))
    return gradient, (problem.x, problem.y)
