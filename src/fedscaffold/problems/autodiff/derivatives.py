"""A loss of trees of parameters and records as a function of one vector, and its derivatives, compiled by JAX."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

Tree = Any
POWER_STEPS = 30
STARTS, ASCENT_STEPS = 8, 60
COLUMNS_AT_ONCE = 32
NUMBERS_AT_ONCE = 1 << 20


@dataclass(frozen=True)
class FlatLoss:
    """θ ↦ loss(tree of θ, batch) + l2/2 ‖θ‖². Hashable, without data: what is compiled serves all data."""

    loss: Callable[[Tree, Tree], Any]
    structure: Any
    shapes: tuple[tuple[int, ...], ...]
    l2: float

    def unravel(self, theta: Any) -> Tree:
        """The tree of parameters that a vector stands for."""
        ends = np.cumsum([prod(shape) for shape in self.shapes])
        parts = [
            theta[end - prod(shape) : end].reshape(shape) for end, shape in zip(ends, self.shapes, strict=True)
        ]
        return jax.tree.unflatten(self.structure, parts)

    def of_records(self, theta: Any, batch: Tree, share: Any) -> Any:
        """Σ_i share_i loss(θ, record_i), or the loss of the whole batch where share is None; without penalty."""
        params = self.unravel(theta)
        if share is None:
            return self.loss(params, batch)
        return share @ jax.vmap(lambda record: self.loss(params, alone(record)))(batch)

    def __call__(self, theta: Any, batch: Tree, share: Any) -> Any:
        """Penalty included; shares sum to one."""
        value = self.of_records(theta, batch, share)
        return value + 0.5 * self.l2 * (theta @ theta) if self.l2 else value


def alone(record: Tree) -> Tree:
    """One record as a batch: every array gets a leading axis of length one."""
    return jax.tree.map(lambda array: array[None], record)


compiled = partial(jax.jit, static_argnums=0)


@compiled
def value(flat: FlatLoss, theta: Any, batch: Tree, share: Any) -> Any:
    """Weighted loss Σ_i share_i ℓ_i(θ) of the records i of a batch."""
    return flat.of_records(theta, batch, share)


@compiled
def gradient(flat: FlatLoss, theta: Any, batch: Tree, share: Any) -> Any:
    """Gradient Σ_i share_i ∇ℓ_i(θ) of the weighted loss of a batch, (d,)."""
    return jax.grad(flat.of_records)(theta, batch, share)


@compiled
def record_gradients(flat: FlatLoss, theta: Any, batch: Tree) -> Any:
    """Gradient ∇ℓ_i(θ) of each record i of a batch, (records, d)."""
    return jax.vmap(lambda record: jax.grad(flat.of_records)(theta, alone(record), None))(batch)


@compiled
def record_gradients_at(flat: FlatLoss, points: Any, batch: Tree) -> Any:
    """The same at several points, one after another, (points, records, d)."""
    return lax.map(lambda theta: record_gradients(flat, theta, batch), points)


@compiled
def hessian(flat: FlatLoss, theta: Any, batch: Tree, share: Any) -> Any:
    """Σ_i share_i ∇²ℓ_i(θ), some columns at a time."""
    slope = jax.grad(lambda point: flat.of_records(point, batch, share))
    columns = lax.map(
        lambda unit: jax.jvp(slope, (theta,), (unit,))[1], jnp.eye(theta.size), batch_size=COLUMNS_AT_ONCE
    )
    return 0.5 * (columns + columns.T)


@compiled
def record_hessians(flat: FlatLoss, theta: Any, batch: Tree) -> Any:
    """∇²ℓ_i(θ), (records, d, d), one record after another."""

    def of_one(record: Tree) -> Any:
        return jax.hessian(lambda point: flat.of_records(point, alone(record), None))(theta)

    return lax.map(of_one, batch)


@compiled
def third(flat: FlatLoss, theta: Any, batch: Tree, share: Any, matrix: Any) -> Any:
    """Σ_jk ∂³/∂i∂j∂k M_jk of Σ share ℓ: twice along e_j and the rows of M, summed."""
    slope = jax.grad(lambda point: flat.of_records(point, batch, share))

    def along(pair: tuple[Any, Any]) -> Any:
        unit, row = pair
        return jax.jvp(lambda point: jax.jvp(slope, (point,), (unit,))[1], (theta,), (row,))[1]

    return lax.map(along, (jnp.eye(theta.size), matrix), batch_size=COLUMNS_AT_ONCE).sum(axis=0)


@compiled
def curvature(flat: FlatLoss, theta: Any, batch: Tree, share: Any) -> Any:
    """The largest |eigenvalue| of Σ_i share_i ∇²ℓ_i(θ), by the power method, from below."""
    return _largest(lambda point: flat.of_records(point, batch, share), theta)


@compiled
def largest_record_curvature(flat: FlatLoss, theta: Any, batch: Tree) -> Any:
    """The same of single records: the largest over the batch."""

    def of_one(record: Tree) -> Any:
        return _largest(lambda point: flat.of_records(point, alone(record), None), theta)

    together = max(1, NUMBERS_AT_ONCE // theta.size)
    return lax.map(of_one, batch, batch_size=together).max()


@partial(jax.jit, static_argnums=(0, 4))
def derivative_norm(flat: FlatLoss, theta: Any, batch: Tree, share: Any, order: int) -> Any:
    """Max ‖∇³f u⊗u‖ or ‖∇⁴f u⊗u⊗u‖ over ‖u‖ = 1, f = Σ share ℓ: the largest found from several starts."""
    return _ascended(lambda point: flat.of_records(point, batch, share), theta, order)


def _ascended(f: Callable[[Any], Any], theta: Any, order: int) -> Any:
    """The largest ‖T[u, v, ...]‖ of a symmetric tensor T, f's derivative of an order, over unit vectors.

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
        return lax.fori_loop(0, ASCENT_STEPS, step, first)[1]

    starts = np.random.default_rng(0).normal(size=(STARTS, theta.size))
    starts /= np.linalg.norm(starts, axis=1, keepdims=True)
    return lax.map(from_start, jnp.asarray(starts, theta.dtype), batch_size=STARTS).max()


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
    return lax.fori_loop(0, POWER_STEPS, step, first)[1]
