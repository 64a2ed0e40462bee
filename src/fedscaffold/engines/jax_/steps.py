"""The hot loop in JAX: gradients of a batch, and H local steps of chunks of clients in one compiled function.

A gradient is θ ↦ Σ_i share_i ∇ℓ(θ, record_i), as a function that JAX can trace and tell apart from others.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.protocols import HasBatchLoss, NonUniformSampling, Streamed
from fedscaffold.core.random.noise import MIXED, NEARLY_NORMAL, NOISE_GROUP, SIGNS
from fedscaffold.core.random.normals import LANES
from fedscaffold.core.random.stream import MULTIPLIERS, PHILOX_ROUNDS, WEYL, Sampling

DRAWN_AT_ONCE = 256  # words per client, about; fewer are slow to make, more are wasted on short rounds
HALF = 0xFFFF


def _multinomial(z: Any, y: Any) -> Any:
    return jax.nn.softmax(z) - jax.nn.one_hot(y.astype(jnp.int32), z.shape[1], dtype=z.dtype)


# of (θ, batch, weights of its records, None for 1/B each); hashable, so that runs with the same one share code
Gradient = Callable[[Any, Any, Any], Any]
SLOPES: dict[str, Callable[[Any, Any], Any]] = {  # ℓ'(z, y) of each record, by kind
    "ridge": lambda z, y: z - y,
    "logistic": lambda z, y: -y * jax.nn.sigmoid(-y * z),
    "poisson": lambda z, y: jnp.exp(z) - y,
    "gamma": lambda z, y: 1.0 - y * jnp.exp(-z),
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
    if isinstance(problem, HasBatchLoss) and problem.engine == "jax":
        return OfLoss(problem.batch_loss, clip), problem.records
    if isinstance(problem, Streamed):
        raise InvalidInput("the jax engine takes tables of records, not streamed clients; use engine='native'")
    if isinstance(problem, NonUniformSampling) or problem.kind not in SLOPES:
        raise InvalidInput(
            f"the jax engine has no gradient for {problem.kind!r}; use engine='auto', or state the problem "
            "as problems.Differentiable"
        )
    gradient = OfMargins(problem.kind, int(problem.vectors), float(problem.l2), int(problem.n_unpenalised), clip)
    return gradient, (problem.x, problem.y)


# The counter-based stream of `core.random.stream`, in 32-bit words throughout.


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


# Local steps.


class StepsConfig(NamedTuple):
    """Settings that the local steps are compiled for: runs with the same ones share compiled code."""

    gradient: Gradient
    batch: int  # records in a step; with full gradients, of the largest client
    sampling: Sampling | None  # None for full gradients
    equal: bool  # whether all clients hold equally many records
    noise: float | None = None  # standard deviation in the sum of a batch's gradients; None without privacy

    @property
    def group(self) -> int:
        """Steps whose draws are made together; times the batch it is whole blocks of four words."""
        return 4 * max(1, DRAWN_AT_ONCE // (4 * self.batch))


class Table(NamedTuple):
    """All clients' records, on the device."""

    records: Any  # a tree of arrays, their first axis the records, client after client
    begins: Any  # (clients,)
    sizes: Any  # (clients,)


class Pairs(NamedTuple):
    """Chunks of pairs of client and repetition, each (chunks, p)."""

    clients: Any
    repetitions: Any
    steps: Any  # 0 for filling


class Draw(NamedTuple):
    """Where in the random stream the draws of a round begin."""

    key: Any  # (2,) words
    round: Any
    block: Any  # the block of four words that the first step's draws begin in
    skip: Any  # and the position in it
    first_client: Any  # as whom the first client draws
    noise_key: Any  # (2,) words
    first_step: Any  # whose noise the first step takes


@partial(jax.jit, static_argnames="config", donate_argnames="xi")
def local_models(
    *, config: StepsConfig, table: Table, theta: Any, xi: Any, anchor: Any, pairs: Pairs, step_size: Any,
    pull: Any, draw: Draw,
) -> Any:  # fmt: skip
    """θ_c ← θ_c − γ(g_c(θ_c) − g_c(a) + ξ_c + λθ_c) for all pairs: models (chunks, p, d).

    θ and ξ are (chunks, p, d), the anchor a is (repetitions, d) or None, λ is None if nothing pulls.
    """

    def chunk(arguments: tuple[Any, Any, Pairs]) -> Any:
        return _chunk(config, table, *arguments, anchor, step_size, pull, draw)

    return lax.map(chunk, (theta, xi, pairs))


def _chunk(
    config: StepsConfig, table: Table, theta: Any, xi: Any, pairs: Pairs, anchor: Any, step_size: Any, pull: Any,
    draw: Draw,
) -> Any:  # fmt: skip
    begins, sizes = table.begins[pairs.clients][:, None], table.sizes[pairs.clients]
    longest = pairs.steps.max()

    def stepped(h: Any, local: Any, batch: Any, share: Any) -> Any:
        gradients = jax.vmap(config.gradient, in_axes=(0, 0, None if share is None else 0))
        slope = gradients(local, batch, share) + xi
        if config.noise is not None:
            slope += noise(h)
        if anchor is not None:
            slope -= gradients(anchor[pairs.repetitions], batch, share)
        if pull is not None:
            slope += pull * local
        return jnp.where((h < pairs.steps)[:, None], local - step_size * slope, local)

    def of(rows: Any) -> Any:
        return jax.tree.map(lambda array: array.at[begins + rows].get(mode="promise_in_bounds"), table.records)

    def noise(h: Any) -> Any:
        place = Place(draw.noise_key, draw.round, draw.first_client + pairs.clients, pairs.repetitions)
        count = sizes if config.sampling is None else jnp.full_like(sizes, config.batch)
        scale = jnp.asarray(config.noise, theta.dtype) / count.astype(theta.dtype)
        return scale[:, None] * step_noise(
            place, draw.first_step + h.astype(jnp.uint32), theta.shape[-1], theta.dtype
        )

    local = theta
    if config.sampling is None:
        which = jnp.arange(config.batch, dtype=jnp.int32)
        batch = of(jnp.minimum(which, sizes[:, None] - 1))
        real = which < sizes[:, None]
        share = None if config.equal else real / sizes[:, None].astype(theta.dtype)
        return lax.fori_loop(0, longest, lambda h, local: stepped(h, local, batch, share), local)

    place = Place(draw.key, draw.round, draw.first_client + pairs.clients, pairs.repetitions)
    S, B = config.group, config.batch
    drawn = with_replacement if config.sampling == "with_replacement" else without_replacement

    def some_steps(state: tuple[Any, Any]) -> tuple[Any, Any]:
        begin, local = state
        block = draw.block + (begin // 4).astype(jnp.uint32) * jnp.uint32(B)
        word = lax.dynamic_slice_in_dim(words(place, block, S * B // 4 + 1), draw.skip, S * B, axis=1)
        rows = drawn(word.reshape(-1, S, B), sizes)

        def step(h: Any, local: Any) -> Any:
            return stepped(begin + h, local, of(lax.dynamic_index_in_dim(rows, h, 1, keepdims=False)), None)

        return begin + S, lax.fori_loop(0, jnp.minimum(S, longest - begin), step, local)

    return lax.while_loop(lambda state: state[0] < longest, some_steps, (jnp.int32(0), local))[1]
