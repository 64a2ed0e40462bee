"""The hot loop in JAX: H local steps of chunks of clients, one chunk after another, in one compiled function."""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from fedscaffold.core.random.stream import Sampling
from fedscaffold.engines.jax_.gradients import Gradient
from fedscaffold.engines.jax_.stream import Place, step_noise, with_replacement, without_replacement, words

DRAWN_AT_ONCE = 256  # words per client, about; fewer are slow to make, more are wasted on short rounds


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
