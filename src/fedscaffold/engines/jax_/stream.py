"""The counter-based index stream of `core.random.stream`, as JAX computes it, in 32-bit words throughout."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedscaffold.core.random.noise import MIXED, NEARLY_NORMAL, NOISE_GROUP, SIGNS
from fedscaffold.core.random.normals import LANES
from fedscaffold.core.random.stream import MULTIPLIERS, PHILOX_ROUNDS, WEYL

HALF = 0xFFFF


class Place(NamedTuple):
    """Where some clients' draws of a round come from."""

    key: Any  # (2,), the seed's halves
    round: Any
    clients: Any  # (p,)
    repetitions: Any  # (p,)


def high(a: Any, b: Any) -> Any:
    """Return floor(a · b / 2³²) of 32-bit words, by their halves."""
    a0, a1, b0, b1 = a & HALF, a >> 16, b & HALF, b >> 16
    middle = a1 * b0 + ((a0 * b0) >> 16)
    return a1 * b1 + (middle >> 16) + ((a0 * b1 + (middle & HALF)) >> 16)


def words(place: Place, first_block: Any, blocks: int) -> Any:
    """Return the four words of each of some consecutive blocks, (p, 4 · blocks)."""
    one = jnp.uint32
    shape = (place.clients.shape[0], blocks)
    a = jnp.broadcast_to(first_block + jnp.arange(blocks, dtype=one), shape)
    b = jnp.broadcast_to(place.round, shape)
    c = jnp.broadcast_to(place.clients.astype(one)[:, None], shape)
    d = jnp.broadcast_to(place.repetitions.astype(one)[:, None], shape)
    p, q = one(MULTIPLIERS[0]), one(MULTIPLIERS[1])

    def mix(_: Any, state: tuple[Any, ...]) -> tuple[Any, ...]:
        a, b, c, d, x, y = state
        mixed = high(q, c) ^ b ^ x, q * c, high(p, a) ^ d ^ y, p * a
        return *mixed, x + one(WEYL[0]), y + one(WEYL[1])

    # a loop, not ten copies: XLA would merge those into the stacking and compute each word's block four times
    a, b, c, d, _, _ = jax.lax.fori_loop(0, PHILOX_ROUNDS, mix, (a, b, c, d, *place.key))
    return jnp.stack([a, b, c, d], axis=-1).reshape(shape[0], -1)


def step_noise(place: Place, step: Any, dim: int, dtype: Any) -> Any:
    """Return numbers step·dim to step·dim + dim − 1 of `core.random.noise`, (p, dim)."""
    first = step * jnp.uint32(dim)
    groups = -(-dim // NOISE_GROUP) + 1
    word = words(place, first // NOISE_GROUP * LANES, groups * LANES).reshape(-1, groups, LANES, 4, 1)
    byte = (word >> jnp.arange(0, 32, 8, dtype=jnp.uint32)) & 0xFF
    u = (byte.reshape(-1, groups, LANES, MIXED).astype(dtype) + 0.5) / 2.0**7 - 1.0
    y = u * jnp.polyval(jnp.asarray(NEARLY_NORMAL[::-1], dtype), u * u)
    mixed = jnp.einsum("ij,pglj->pgil", jnp.asarray(SIGNS / 4.0, dtype), y, precision=jax.lax.Precision.HIGHEST)
    return jax.lax.dynamic_slice_in_dim(mixed.reshape(mixed.shape[0], -1), first % NOISE_GROUP, dim, axis=1)


def with_replacement(word: Any, n: Any) -> Any:
    """Return independent uniform indices below n (p,) from words (p, ...)."""
    return high(word, _spread(n, word)).astype(jnp.int32)


def without_replacement(word: Any, n: Any) -> Any:
    """Return distinct indices below n (p,) along the last axis: the first draws of a Fisher–Yates shuffle.

    Draw b takes what lies at position j_b = b + jump_b and puts there what lay at position b. Positions below b
    are never looked at again, so what lies at position i is what the last earlier draw with j = i put there, else
    i. That needs no array of n positions, and B² comparisons for a batch of B.
    """
    batch = word.shape[-1]
    order = jnp.arange(batch, dtype=jnp.uint32)
    jumps = (order + high(word, _spread(n, word) - order)).astype(jnp.int32)
    which = jnp.arange(batch, dtype=jnp.int32)

    def draw(b: Any, state: tuple[Any, Any]) -> tuple[Any, Any]:
        rows, put = state

        def lies_at(position: Any) -> Any:
            last = jnp.max(jnp.where((jumps == position) & (which < b), which, -1), axis=-1, keepdims=True)
            moved = jnp.take_along_axis(put, jnp.maximum(last, 0), axis=-1)
            return jnp.where(last >= 0, moved, position)

        at = jax.lax.dynamic_slice_in_dim(jumps, b, 1, axis=-1)
        drawn, left = lies_at(at), lies_at(jnp.full_like(at, b))
        rows = jax.lax.dynamic_update_slice_in_dim(rows, drawn, b, axis=-1)
        return rows, jax.lax.dynamic_update_slice_in_dim(put, left, b, axis=-1)

    return jax.lax.fori_loop(0, batch, draw, (jnp.zeros_like(jumps), jnp.zeros_like(jumps)))[0]


def _spread(n: Any, word: Any) -> Any:
    """Return n (p,) as words that go with (p, ...)."""
    return n.astype(jnp.uint32).reshape(-1, *([1] * (word.ndim - 1)))
