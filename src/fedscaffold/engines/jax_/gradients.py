"""Gradients of a batch, θ ↦ Σ_i share_i ∇ℓ(θ, record_i), as functions that JAX can trace and tell apart."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.protocols import HasBatchLoss, NonUniformSampling, Streamed


def _ridge(x: Any, y: Any, theta: Any, vectors: int) -> Any:
    return x @ theta - y


def _logistic(x: Any, y: Any, theta: Any, vectors: int) -> Any:
    return -y * jax.nn.sigmoid(-y * (x @ theta))


def _multinomial(x: Any, y: Any, theta: Any, vectors: int) -> Any:
    slopes = jax.nn.softmax(x @ theta.reshape(vectors, x.shape[1]).T)
    return slopes - jax.nn.one_hot(y.astype(jnp.int32), vectors, dtype=theta.dtype)


# of (θ, batch, weights of its records, None for 1/B each); hashable, so that runs with the same one share code
Gradient = Callable[[Any, Any, Any], Any]
SLOPES = {"ridge": _ridge, "logistic": _logistic, "multinomial": _multinomial}  # ℓ' of each record, by kind


@dataclass(frozen=True)
class OfLoss:
    """Gradient of a loss by reverse-mode differentiation."""

    loss: Callable[[Any, Any, Any], Any]

    def __call__(self, theta: Any, batch: Any, share: Any) -> Any:
        """Gradient of the batch's loss at θ."""
        return jax.grad(self.loss)(theta, batch, share)


@dataclass(frozen=True)
class OfMargins:
    """Σ_i share_i ℓ'(xᵀθ, y) x + l2 θ, with one margin per class for multinomial regression."""

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
        slopes = SLOPES[self.kind](x, y, theta, self.vectors)
        if share is None:
            return (slopes.T @ x).ravel() / y.shape[0] + penalty
        weighted = slopes * share.reshape(-1, *([1] * (slopes.ndim - 1)))
        return (weighted.T @ x).ravel() + penalty


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
