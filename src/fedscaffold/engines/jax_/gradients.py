"""Gradients of a batch, θ ↦ Σ_i share_i ∇ℓ(θ, record_i), as functions that JAX can trace and tell apart."""

from dataclasses import dataclass
from typing import Any, Literal, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.protocols import HasBatchLoss, NonUniformSampling, Streamed

KINDS = ("ridge", "logistic", "multinomial")


class Gradient(Protocol):
    """Hashable, so that runs with the same one share what was compiled."""

    def __call__(self, theta: Any, batch: Any, share: Any) -> Any:
        """Of a batch whose records count share (B,), or 1/B each where that is None."""


class BatchLoss(Protocol):
    """The same for a loss; hashable too."""

    def __call__(self, theta: Any, batch: Any, share: Any) -> Any: ...  # noqa: D102


@dataclass(frozen=True)
class OfLoss:
    """By reverse-mode differentiation."""

    loss: BatchLoss

    def __call__(self, theta: Any, batch: Any, share: Any) -> Any:
        """∇ of the batch's loss."""
        return jax.grad(self.loss)(theta, batch, share)


@dataclass(frozen=True)
class OfMargins:
    """Σ_i share_i ℓ'(xᵀθ, y) x + l2 θ, with one margin per class for multinomial regression."""

    kind: Literal["ridge", "logistic", "multinomial"]
    vectors: int
    l2: float
    n_unpenalised: int

    def __call__(self, theta: Any, batch: Any, share: Any) -> Any:
        """Of records (x, y)."""
        x, y = batch
        d = x.shape[1]
        own = jnp.where(jnp.arange(d) < d - self.n_unpenalised, jnp.asarray(self.l2, theta.dtype), 0)
        penalty = jnp.tile(own, self.vectors) * theta
        if self.kind == "multinomial":
            slopes = jax.nn.softmax(x @ theta.reshape(self.vectors, d).T)
            slopes = slopes - jax.nn.one_hot(y, self.vectors, dtype=theta.dtype)
        elif self.kind == "ridge":
            slopes = x @ theta - y
        else:
            slopes = -y * jax.nn.sigmoid(-y * (x @ theta))
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
    if isinstance(problem, NonUniformSampling) or problem.kind not in KINDS:
        raise InvalidInput(
            f"the jax engine has no gradient for {problem.kind!r}; use engine='reference', or state the problem "
            "as problems.Differentiable"
        )
    y = problem.y.astype(np.int32) if problem.kind == "multinomial" else problem.y
    gradient = OfMargins(problem.kind, int(problem.vectors), float(problem.l2), int(problem.n_unpenalised))
    return gradient, (problem.x, y)
