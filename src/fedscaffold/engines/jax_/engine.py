"""The JAX engine: compiled by XLA for processors and accelerators, for any differentiable loss."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np

from fedscaffold.core.checks import choice, given, set_fields, whole_number
from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.imports import load_optional
from fedscaffold.core.machine import in_file
from fedscaffold.core.privacy import RecordLevel
from fedscaffold.core.protocols import LocalSgd, Problem
from fedscaffold.core.random.noise import RECORD_KEY
from fedscaffold.core.random.stream import Batches
from fedscaffold.core.types import Array, IntArray, offsets_of
from fedscaffold.engines.clippable import check_clippable, reject_anchor
from fedscaffold.engines.pairs import client_pairs

Dtype = Literal["float64", "float32"]
NUMBERS_PER_CHUNK = {"cpu": 1 << 13}  # of records and models; what suits a cache
NUMBERS_PER_CHUNK_ELSEWHERE = 1 << 24
NUMBERS_PER_CALL = 1 << 24  # of models on the device at once


@dataclass(frozen=True, kw_only=True)
class Jax:
    """Local steps compiled by XLA, with chunks of clients side by side (`jax.vmap`).

    It draws the same records as the other engines and gives their numbers to rounding. It runs ridge, logistic
    and multinomial regression and `fedscaffold.problems.Differentiable`.

    Parameters
    ----------
    dtype
        Precision of the local steps, "float64" or "float32". The server's sums are always float64.
    clients_at_once
        Number of clients that take their steps side by side; None for as many as suit the device.
    device
        "cpu", "gpu" or "tpu"; None for what JAX prefers.

    Examples
    --------
    >>> from fedscaffold.engines import Jax
    >>> Jax(dtype="float32", clients_at_once=8, device="cpu").name
    'jax-float32-cpu-8-at-once'
    """

    dtype: Dtype = "float64"
    clients_at_once: int | None = None
    device: str | None = None

    def __post_init__(self) -> None:
        if self.clients_at_once is not None:
            set_fields(self, clients_at_once=whole_number("clients_at_once", self.clients_at_once, least=1))
        choice("dtype", self.dtype, get_args(Dtype))
        if self.device is not None and not isinstance(self.device, str):
            raise InvalidInput(f"device must be text such as 'cpu', or None, got {given(self.device)}")

    @property
    def name(self) -> str:
        """Name in provenance and checkpoints; device and clients at once change the order of additions."""
        together = "" if self.clients_at_once is None else f"-{self.clients_at_once}-at-once"
        return f"jax-{self.dtype}-{self._device().platform}{together}"

    def _device(self) -> Any:
        jax = _jax()
        try:
            return jax.devices(self.device)[0]
        except RuntimeError as error:
            raise InvalidInput(f"JAX has no device {self.device!r} here: {error}") from None

    @contextmanager
    def open(
        self,
        problem: Problem,
        batches: Batches,
        *,
        seed: int,
        first_client: int = 0,
        privacy: RecordLevel | None = None,
    ) -> Iterator[LocalSgd]:
        """Copy the records to the device and yield the local steps, which are compiled by the first call."""
        if privacy is not None:
            check_clippable(problem)
        if in_file(getattr(problem, "x", None)):
            raise InvalidInput("the jax engine holds all records in memory, but these lie in a file; use 'native'")
        jax, device = _jax(), self._device()
        from fedscaffold.engines.jax_ import steps as hot_loop

        gradient, records = hot_loop.gradient_and_records(problem, None if privacy is None else privacy.clip)
        wide = self.dtype == "float64"
        sizes = np.asarray(problem.sizes)
        begins = offsets_of(sizes)
        if begins[-1] >= 2**31:
            raise InvalidInput(f"the jax engine takes fewer than 2**31 records, got {begins[-1]:,}")
        batch = int(sizes.max()) if batches.size is None else batches.size
        config = hot_loop.StepsConfig(
            gradient=gradient,
            batch=batch,
            sampling=None if batches.size is None else batches.sampling,
            equal=bool((sizes == sizes[0]).all()),
            noise=None if privacy is None else privacy.noise,
        )
        width = sum(leaf.size for leaf in jax.tree.leaves(records)) // int(begins[-1])
        at_once = self.clients_at_once or _suitable(device.platform, batch * width + problem.dim)
        key, noise_key = (
            np.array([number & 0xFFFFFFFF, number >> 32], dtype=np.uint32) for number in (seed, seed ^ RECORD_KEY)
        )

        def there(tree: Any) -> Any:
            return jax.device_put(jax.tree.map(self._converted, tree), device)

        with jax.enable_x64(wide):
            table = hot_loop.Table(
                there(records), there(begins[:-1].astype(np.int32)), there(sizes.astype(np.int32))
            )

        def local_sgd(
            theta: Array, correction: Array, *, step_size: float, local_steps: int | IntArray, round: int,
            clients: IntArray | None = None, first_step: int = 0, pull: float = 0.0, anchor: Array | None = None,
        ) -> Array:  # fmt: skip
            reject_anchor(privacy, anchor)
            begun, xi, repetition, place, who, steps = client_pairs(
                theta, correction, clients, n_clients=problem.n_clients, local_steps=local_steps
            )
            if pull:  # the compiled steps add λθ_c
                xi = xi - pull * begun
            number = np.dtype(self.dtype).type
            first = first_step * batch if batches.size is not None else 0
            block = np.uint32(first // 4 & 0xFFFFFFFF)
            draw = hot_loop.Draw(
                key, np.uint32(round), block, np.int32(first % 4), np.int32(first_client), noise_key,
                np.uint32(first_step),
            )  # fmt: skip
            p = min(at_once, who.size)
            chunks = min(-(-who.size // p), max(1, NUMBERS_PER_CALL // (p * problem.dim)))
            out = np.empty(begun.shape)
            with jax.enable_x64(wide):
                reference = None if anchor is None else there(anchor)
                for begin in range(0, who.size, chunks * p):
                    part = slice(begin, begin + chunks * p)
                    r, k = repetition[part], place[part]
                    filled = np.zeros((2, chunks * p, problem.dim), dtype=self.dtype)
                    filled[0, : r.size], filled[1, : r.size] = begun[r, k], xi[r, k]
                    model, added = (there(values.reshape(chunks, p, -1)) for values in filled)
                    pairs = hot_loop.Pairs(*(_filled(v[part], (chunks, p)) for v in (who, repetition, steps)))
                    local = hot_loop.local_models(
                        config=config, table=table, theta=model, xi=added, anchor=reference, pairs=there(pairs),
                        step_size=number(step_size), pull=number(pull) if pull else None, draw=draw,
                    )  # fmt: skip
                    out[r, k] = np.asarray(local).reshape(chunks * p, -1)[: r.size]
            return out

        yield local_sgd

    def _converted(self, leaf: Any) -> Any:
        """Convert floating-point numbers to the engine's precision, and leave others as they are."""
        return np.asarray(leaf, dtype=self.dtype) if np.issubdtype(leaf.dtype, np.floating) else leaf


def _jax() -> Any:
    return load_optional("jax", "the jax engine needs JAX", extra="jax")


def _suitable(platform: str, numbers_per_client: int) -> int:
    """Return how many clients run side by side."""
    most = NUMBERS_PER_CHUNK.get(platform, NUMBERS_PER_CHUNK_ELSEWHERE)
    return max(1, most // numbers_per_client)


def _filled(values: Any, shape: tuple[int, int]) -> Any:
    """Return values as 32-bit numbers, with zeros at the end."""
    out = np.zeros(shape, dtype=np.int32)
    out.reshape(-1)[: values.size] = values
    return out
