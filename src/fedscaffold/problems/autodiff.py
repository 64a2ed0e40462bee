"""A loss of trees of parameters and records as a function of one vector, with its derivatives by JAX."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.types import Array

Tree = Any


def ravelled(params: Tree) -> tuple[Array, Any, tuple[tuple[int, ...], ...]]:
    """Return all parameters as one vector in the order of `jax.tree.leaves`, the tree's structure and shapes."""
    leaves, structure = jax.tree.flatten(params)
    arrays = [np.asarray(leaf) for leaf in leaves]
    for array in arrays:
        if array.dtype.kind != "f":
            raise InvalidInput(
                f"params must hold floating-point numbers only, got {array.dtype}; bind the rest into the loss"
            )
        if not np.isfinite(array).all():
            raise InvalidInput("params hold NaN or infinity")
    if sum(array.size for array in arrays) == 0:
        raise InvalidInput("params hold no numbers")
    vector = np.concatenate([np.asarray(array, dtype=np.float64).ravel() for array in arrays])
    return vector, structure, tuple(array.shape for array in arrays)


def check_loss(loss: Callable[[Tree, Tree], Any], params: Tree, batch: Tree) -> None:
    """Raise if a loss is not one finite number, the mean over a batch of each record's loss."""
    count = len(jax.tree.leaves(batch)[0])

    def record(i: int) -> Tree:
        return jax.tree.map(lambda array: array[i : i + 1], batch)

    whole, ones = _value(loss, params, batch), [_value(loss, params, record(i)) for i in range(count)]
    mean = float(np.mean(ones))
    if not np.isfinite([whole, *ones]).all():
        raise InvalidInput(f"loss(params, batch) is {whole} on the first records; start from other params")
    if abs(whole - mean) > 1e-5 * max(abs(whole), *np.abs(ones)):
        raise InvalidInput(
            f"loss(params, batch) must be the mean over the batch of each record's own loss, but on {count} "
            f"records it is {whole:.6g} and the mean of their losses {mean:.6g}; take jnp.mean, and nothing that "
            "mixes records such as batch normalisation"
        )


def _value(loss: Callable[[Tree, Tree], Any], params: Tree, batch: Tree) -> float:
    try:
        value = loss(params, batch)
    except Exception as error:
        raise InvalidInput(f"loss(params, batch) failed on the first records: {error}") from error
    leaves = jax.tree.leaves(value)
    if len(leaves) != 1 or leaves[0] is not value or np.ndim(value) or np.asarray(value).dtype.kind != "f":
        raise InvalidInput(
            "loss(params, batch) must return one floating-point number and nothing else, no buffers such as "
            "running means"
        )
    return float(value)


COLUMNS_AT_ONCE = 32  # of a Hessian: more take memory, fewer take time


@dataclass(frozen=True)
class FlatLoss:
    """θ ↦ loss(tree of θ, batch) + l2/2 ‖θ‖². Hashable, without data: what is compiled serves all data."""

    loss: Callable[[Tree, Tree], Any]
    structure: Any
    shapes: tuple[tuple[int, ...], ...]
    l2: float

    def unravel(self, theta: Any) -> Tree:
        """Return the tree of parameters that a vector stands for."""
        ends = np.cumsum([prod(shape) for shape in self.shapes])
        parts = [
            theta[end - prod(shape) : end].reshape(shape) for end, shape in zip(ends, self.shapes, strict=True)
        ]
        return jax.tree.unflatten(self.structure, parts)

    def of_records(self, theta: Any, batch: Tree, share: Any) -> Any:
        """Return Σ_i share_i loss(θ, record_i), or the batch's loss if share is None; without penalty."""
        params = self.unravel(theta)
        if share is None:
            return self.loss(params, batch)
        return share @ jax.vmap(lambda record: self.loss(params, alone(record)))(batch)

    def __call__(self, theta: Any, batch: Tree, share: Any) -> Any:
        """Return the loss with the penalty; shares sum to one."""
        value = self.of_records(theta, batch, share)
        return value + 0.5 * self.l2 * (theta @ theta) if self.l2 else value


def alone(record: Tree) -> Tree:
    """Return one record as a batch: every array gets a leading axis of length one."""
    return jax.tree.map(lambda array: array[None], record)


compiled = partial(jax.jit, static_argnums=0)


@compiled
def value(flat: FlatLoss, theta: Any, batch: Tree, share: Any) -> Any:
    """Return the weighted loss Σ_i share_i ℓ_i(θ) of the records i of a batch."""
    return flat.of_records(theta, batch, share)


@compiled
def gradient(flat: FlatLoss, theta: Any, batch: Tree, share: Any) -> Any:
    """Return the gradient Σ_i share_i ∇ℓ_i(θ) of the weighted loss of a batch, (d,)."""
    return jax.grad(flat.of_records)(theta, batch, share)


@compiled
def record_gradients(flat: FlatLoss, theta: Any, batch: Tree) -> Any:
    """Return the gradient ∇ℓ_i(θ) of each record i of a batch, (records, d)."""
    return jax.vmap(lambda record: jax.grad(flat.of_records)(theta, alone(record), None))(batch)


@compiled
def record_gradients_at(flat: FlatLoss, points: Any, batch: Tree) -> Any:
    """Return the same at several points, one after another, (points, records, d)."""
    return lax.map(lambda theta: record_gradients(flat, theta, batch), points)


@compiled
def hessian(flat: FlatLoss, theta: Any, batch: Tree, share: Any) -> Any:
    """Return Σ_i share_i ∇²ℓ_i(θ), some columns at a time."""
    slope = jax.grad(lambda point: flat.of_records(point, batch, share))
    columns = lax.map(
        lambda unit: jax.jvp(slope, (theta,), (unit,))[1], jnp.eye(theta.size), batch_size=COLUMNS_AT_ONCE
    )
    return 0.5 * (columns + columns.T)


@compiled
def record_hessians(flat: FlatLoss, theta: Any, batch: Tree) -> Any:
    """Return ∇²ℓ_i(θ), (records, d, d), one record after another."""

    def of_one(record: Tree) -> Any:
        return jax.hessian(lambda point: flat.of_records(point, alone(record), None))(theta)

    return lax.map(of_one, batch)


@compiled
def third(flat: FlatLoss, theta: Any, batch: Tree, share: Any, matrix: Any) -> Any:
    """Return Σ_jk ∂³/∂i∂j∂k M_jk of Σ share ℓ: twice along e_j and the rows of M, summed."""
    slope = jax.grad(lambda point: flat.of_records(point, batch, share))

    def along(pair: tuple[Any, Any]) -> Any:
        unit, row = pair
        return jax.jvp(lambda point: jax.jvp(slope, (point,), (unit,))[1], (theta,), (row,))[1]

    return lax.map(along, (jnp.eye(theta.size), matrix), batch_size=COLUMNS_AT_ONCE).sum(axis=0)


@compiled
def curvature(flat: FlatLoss, theta: Any, batch: Tree, share: Any) -> Any:
    """Return the largest |eigenvalue| of Σ_i share_i ∇²ℓ_i(θ), by the power method, from below."""
    return _largest(lambda point: flat.of_records(point, batch, share), theta)


@compiled
def largest_record_curvature(flat: FlatLoss, theta: Any, batch: Tree) -> Any:
    """Return the same of single records: the largest over the batch."""

    def of_one(record: Tree) -> Any:
        return _largest(lambda point: flat.of_records(point, alone(record), None), theta)

    together = max(1, (1 << 20) // theta.size)  # 8 MB of directions, one per record
    return lax.map(of_one, batch, batch_size=together).max()


@partial(jax.jit, static_argnums=(0, 4))
def derivative_norm(flat: FlatLoss, theta: Any, batch: Tree, share: Any, order: int) -> Any:
    """Return max ‖∇³f u⊗u‖ or ‖∇⁴f u⊗u⊗u‖ over ‖u‖ = 1, f = Σ share ℓ: the largest from several starts."""
    return _ascended(lambda point: flat.of_records(point, batch, share), theta, order)


def _ascended(f: Callable[[Any], Any], theta: Any, order: int) -> Any:
    """Return the largest ‖T[u, v, ...]‖ of a symmetric tensor T, f's derivative of an order, over unit vectors.

    T applied to the last order − 1 directions gives the next one: the norm can only grow on the way. At its
    largest the directions may be taken equal, since T is symmetric (Banach 1938).
    """

    def applied(directions: Any) -> Any:
        derivative = jax.grad(f)
        for k in range(order - 1):
            derivative = partial(_along, derivative, directions[k])
        return derivative(theta)

    def step(_: Any, state: tuple[Any, Any]) -> tuple[Any, Any]:
        ahead = applied(state[0])
        norm = jnp.linalg.norm(ahead)
        unit = jnp.where(norm > 0, ahead / jnp.where(norm > 0, norm, 1.0), state[0][-1])
        return jnp.concatenate([state[0][1:], unit[None]]), norm

    def from_start(start: Any) -> Any:
        first = jnp.broadcast_to(start, (order - 1, theta.size)), jnp.zeros((), theta.dtype)
        return lax.fori_loop(0, 60, step, first)[1]  # it settles in tens of steps

    starts = np.random.default_rng(0).normal(size=(8, theta.size))  # most of them find the largest
    starts /= np.linalg.norm(starts, axis=1, keepdims=True)
    return lax.map(from_start, jnp.asarray(starts, theta.dtype), batch_size=len(starts)).max()


def _along(f: Callable[[Any], Any], direction: Any, point: Any) -> Any:
    return jax.jvp(f, (point,), (direction,))[1]


def _largest(f: Callable[[Any], Any], theta: Any) -> Any:
    slope = jax.grad(f)
    start = np.random.default_rng(0).normal(size=theta.size)

    def step(_: Any, state: tuple[Any, Any]) -> tuple[Any, Any]:
        ahead = jax.jvp(slope, (theta,), (state[0],))[1]
        norm = jnp.linalg.norm(ahead)
        return ahead / jnp.where(norm > 0, norm, 1.0), norm

    first = jnp.asarray(start / np.linalg.norm(start), theta.dtype), jnp.zeros((), theta.dtype)
    return lax.fori_loop(0, 30, step, first)[1]
