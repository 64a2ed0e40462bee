"""The PyTorch engine: local steps of modules, many clients side by side, on processors and accelerators."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedscaffold.core.checks import choice, given, set_fields, whole_number
from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.imports import load_optional
from fedscaffold.core.privacy import RecordLevel
from fedscaffold.core.protocols import LocalSgd
from fedscaffold.core.random.noise import dropout_numbers, step_noises
from fedscaffold.core.random.normals import client_words
from fedscaffold.core.random.stream import Batches, Stream, scaled, shuffled
from fedscaffold.core.types import Array, IntArray
from fedscaffold.engines.clippable import check_clippable, reject_anchor
from fedscaffold.engines.pairs import client_pairs

NUMBERS_AT_ONCE = {"cpu": 1 << 19}  # of models and records; with more, less of them is in the cache
NUMBERS_AT_ONCE_ELSEWHERE = 1 << 26
WORDS_AT_ONCE = 1 << 20  # of draws, 8 MB of indices


@dataclass(frozen=True, kw_only=True)
class TorchEngine:
    """Local steps of `problems.Torch`, with chunks of clients side by side (`torch.func.vmap`).

    It draws the same records as the other engines and gives their numbers to rounding. Modules that vmap cannot
    run take their clients one by one. The same device and number of threads of PyTorch give the same bits.

    Parameters
    ----------
    dtype
        Precision of the local steps, "float64" or "float32"; None for that of the module. The server's sums are
        always float64.
    device
        "cpu", "cuda", or another device that PyTorch knows.
    clients_at_once
        Number of clients that take their steps side by side; None for as many as suit the device.

    Examples
    --------
    >>> from fedscaffold.engines import Torch
    >>> Torch(dtype="float64", clients_at_once=20).name
    'torch-float64-cpu-20-at-once'
    """

    dtype: Literal["float64", "float32"] | None = None
    device: str = "cpu"
    clients_at_once: int | None = None

    def __post_init__(self) -> None:
        if self.clients_at_once is not None:
            set_fields(self, clients_at_once=whole_number("clients_at_once", self.clients_at_once, least=1))
        choice("dtype", self.dtype, ("float64", "float32", None))
        if not isinstance(self.device, str):
            raise InvalidInput(f"device must be text such as 'cpu', got {given(self.device)}")

    @property
    def name(self) -> str:
        """Name in provenance and checkpoints; device and clients at once change the order of additions."""
        together = "" if self.clients_at_once is None else f"-{self.clients_at_once}-at-once"
        return f"torch{'' if self.dtype is None else f'-{self.dtype}'}-{self.device}{together}"

    @contextmanager
    def open(
        self,
        problem: Any,
        batches: Batches,
        *,
        seed: int,
        first_client: int = 0,
        privacy: RecordLevel | None = None,
    ) -> Iterator[LocalSgd]:
        """Copy the records to the device and yield the local steps."""
        torch = load_optional("torch", "the torch engine needs PyTorch", extra="torch")
        if getattr(problem, "engine", None) != "torch":
            raise InvalidInput(f"the torch engine runs problems.Torch, not {problem.kind!r}; use engine='auto'")
        if privacy is not None:
            check_clippable(problem)
        dtype, device = getattr(torch, self.dtype or problem.dtype), self._device(torch)
        flat = problem.batch_loss.like(dtype, device)
        table = tuple(flat.there(column) for column in problem.records)
        sizes, begins = problem.sizes, problem.offsets[:-1]
        equal = bool((sizes == sizes[0]).all())
        batch = batches.size or int(sizes.max())
        # records that fill up smaller clients would change the means of averaged buffers
        side_by_side = flat.side_by_side and (batches.size is not None or equal or not flat.averaged)
        width = sum(column[0].numel() for column in table)
        most = NUMBERS_AT_ONCE.get(device.type, NUMBERS_AT_ONCE_ELSEWHERE)
        at_once = self.clients_at_once or max(1, most // (batch * width + problem.dim))

        def there(values: Any) -> Any:
            return torch.as_tensor(values).to(device, dtype)

        def gradient(theta: Any, records: Any, share: Any, uniform: Any) -> Any:
            if privacy is None:
                return flat.step_gradient(theta, records, share, uniform)
            return flat.clipped_gradient(theta, records, share, uniform, privacy.clip)

        def gradients(theta: Any, records: Any, counts: IntArray, uniform: Any) -> Any:
            """Return the gradient of each of several models, on as many of their records as count."""
            if not side_by_side:
                each = []
                for i, n in enumerate(counts.tolist()):
                    own = None if uniform is None else uniform[i, :n]
                    each.append(gradient(theta[i], tuple(column[i, :n] for column in records), None, own))
                return torch.stack(each)
            share = None
            if batches.size is None and not equal:
                share = there((np.arange(counts.max()) < counts[:, None]) / counts[:, None])
            axes = (0, 0, None if share is None else 0, None if uniform is None else 0)
            return flat.map(gradient, axes)(theta, records, share, uniform)

        def local_sgd(
            theta: Array, correction: Array, *, step_size: float, local_steps: int | IntArray, round: int,
            clients: IntArray | None = None, first_step: int = 0, pull: float = 0.0, anchor: Array | None = None,
        ) -> Array:  # fmt: skip
            reject_anchor(privacy, anchor)
            pairs = client_pairs(theta, correction, clients, n_clients=problem.n_clients, local_steps=local_steps)
            out = np.empty(pairs.begun.shape)
            for first in range(0, pairs.who.size, at_once):
                r, k, who, steps = (values[first : first + at_once] for values in pairs[2:])
                draws = PairDraws(seed, round, r, first_client + who)
                begun, xi = there(pairs.begun[r, k]), there(pairs.xi[r, k])
                reference = None if anchor is None else there(anchor[r])
                left = torch.as_tensor(steps).to(device)[:, None]
                local, uniform, most_steps = begun.clone(), None, int(steps.max(initial=0))
                counts = sizes[who] if batches.size is None else np.full(who.size, batch)
                rows_of_steps = draws.rows(batches, sizes[who], first_step, most_steps)
                for h, rows in zip(range(most_steps), rows_of_steps, strict=True):
                    at = torch.as_tensor(begins[who, None] + rows).to(device)
                    records = tuple(column[at] for column in table)
                    if flat.dropped:
                        uniform = torch.as_tensor(draws.dropout(first_step + h, counts, flat.dropped)).to(device)
                    slope = gradients(local, records, counts, uniform) + xi
                    if privacy is not None:
                        scale = privacy.noise / counts
                        slope += there(scale[:, None] * draws.noise(first_step + h, problem.dim))
                    if reference is not None:
                        slope -= gradients(reference, records, counts, uniform)
                    if pull:
                        slope += pull * (local - begun)
                    local = torch.where(h < left, local - step_size * slope, local)
                out[r, k] = local.cpu().double().numpy()
            return out

        yield local_sgd

    def _device(self, torch: Any) -> Any:
        try:
            torch.zeros(1, device=self.device)
        except (RuntimeError, AssertionError) as error:  # PyTorch raises both
            why = str(error).strip().split("\n")[0][:200]
            raise InvalidInput(f"PyTorch has no device {self.device!r} here: {why}") from None
        return torch.device(self.device)


Torch = TorchEngine  # as users name it, in `fedscaffold.engines`


class PairDraws(NamedTuple):
    """Where some pairs of client and repetition draw from, in one round."""

    seed: int
    round: int
    repetition: IntArray
    client: IntArray

    def rows(self, batches: Batches, sizes: IntArray, first_step: int, steps: int) -> Iterator[IntArray]:
        """Yield the records of each step, (pairs, B); of full gradients all, the last one repeated to fill up."""
        if batches.size is None:
            every = np.minimum(np.arange(int(sizes.max())), sizes[:, None] - 1)
            yield from (every for _ in range(steps))
            return
        B, n = batches.size, sizes[:, None, None]
        together = max(1, WORDS_AT_ONCE // (B * sizes.size))
        for begin in range(0, steps, together):
            count, first = min(together, steps - begin), (first_step + begin) * B
            words = self._each(partial(client_words, first=first, count=count * B)).reshape(-1, count, B)
            if batches.sampling == "with_replacement":
                rows = scaled(words, n)
            else:
                jumps = scaled(words, n - np.arange(B))
                rows = np.array([[shuffled(step) for step in client] for client in jumps])
            yield from rows.swapaxes(0, 1)

    def dropout(self, step: int, counts: IntArray, numbers: int) -> Array:
        """Return the numbers of dropout in a step, (pairs, records, numbers); 1 to fill up smaller clients."""
        out = np.ones((counts.size, int(counts.max()), numbers))
        for count in np.unique(counts):
            at = counts == count
            own = self._replace(repetition=self.repetition[at], client=self.client[at])
            out[at, :count] = own._each(partial(dropout_numbers, step=step, records=int(count), numbers=numbers))
        return out

    def noise(self, step: int, dim: int) -> Array:
        """Return the noise of record-level privacy in a step, (pairs, dim)."""
        return self._each(partial(step_noises, step=step, dim=dim))

    def _each(self, draw: Callable[[Stream, IntArray], NDArray[Any]]) -> NDArray[Any]:
        """Return the draws of all pairs, (pairs, ...), made for the clients of one repetition at a time."""
        which = [np.flatnonzero(self.repetition == r) for r in np.unique(self.repetition)]
        parts = [
            draw(Stream(self.seed, int(self.repetition[at[0]]), self.round, 0), self.client[at]) for at in which
        ]
        return np.concatenate(parts)[np.argsort(np.concatenate(which), kind="stable")]
