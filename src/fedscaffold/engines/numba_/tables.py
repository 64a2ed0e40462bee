"""What the kernel reads: a problem's records and how they are drawn, as flat arrays."""

from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.privacy import RecordLevel
from fedscaffold.core.protocols import (
    HasBatchLoss,
    HasMeanField,
    LinearSystems,
    NonUniformSampling,
    TabularRecords,
    Transitions,
)
from fedscaffold.core.random.batches import Batches
from fedscaffold.core.random.draws import Draws, check_drawable
from fedscaffold.core.random.noise import RECORD_KEY
from fedscaffold.core.storage.memmap import in_file
from fedscaffold.engines.clippable import check_clippable
from fedscaffold.engines.numba_ import stream
from fedscaffold.engines.numba_.clipped_steps import largest_slopes
from fedscaffold.engines.numba_.losses import DENSE, table_loss

Numbers = NDArray[np.floating[Any]]


class Tables(NamedTuple):
    """The kernel's first arguments, in its order."""

    loss: int
    x: Numbers
    margins: Numbers | None
    y: Numbers
    offsets: NDArray[np.int64]
    l2: float
    free: int
    sampling: int
    batch: int
    ends: NDArray[np.uint64]
    guide: NDArray[np.int32]
    chain_ends: NDArray[np.uint64]
    follows: NDArray[np.int32]
    branching: int
    limits: Numbers | None  # of slopes, by record; None where records are not clipped
    noise: float  # standard deviation in the sum of a batch's gradients
    noise_key: tuple[int, int]

    @property
    def width(self) -> int:
        """Numbers of x in one record."""
        return self.x.size // int(self.offsets[-1])


def tables(
    problem: TabularRecords | LinearSystems | Transitions,
    batches: Batches,
    dtype: str,
    *,
    seed: int = 0,
    privacy: RecordLevel | None = None,
) -> Tables:
    """Of any problem that there is a kernel for."""
    if privacy is not None:
        check_clippable(problem)
    if table_loss(problem) is None:
        other = "jax" if isinstance(problem, HasBatchLoss) else "reference"
        raise InvalidInput(f"the numba engine has no kernel for {problem.kind!r}; use engine='{other}'")
    if isinstance(problem, NonUniformSampling):
        check_drawable(batches)
    given: Any = problem
    if batches.size is None and isinstance(problem, HasMeanField):
        given = problem.mean_field()

    if dtype != "float64" and in_file(getattr(given, "x", None)):
        raise InvalidInput(
            f"these records lie in a file as float64, and engines.Numba(dtype={dtype!r}) would copy all of them "
            "into memory; use dtype='float64'"
        )

    def flat(array: Any) -> Numbers:
        return np.ascontiguousarray(array, dtype=dtype).reshape(-1)

    loss = table_loss(given)
    assert loss is not None  # as was seen above
    dense = loss == DENSE
    x, y = (flat(given.A), flat(given.b)) if dense else (flat(given.x), flat(given.y))
    draws = given.draws if isinstance(given, NonUniformSampling) else Draws(np.zeros(0, np.uint64))
    if batches.size is None:
        sampling = stream.FULL
    elif not isinstance(given, NonUniformSampling):
        with_ = batches.sampling == "with_replacement"
        sampling = stream.WITH_REPLACEMENT if with_ else stream.WITHOUT_REPLACEMENT
    else:
        sampling = stream.BY_CHANCE if draws.chain is None else stream.ALONG_CHAIN
    return Tables(
        loss=loss,
        x=x,
        margins=flat(given.margins) if hasattr(given, "margins") else None,
        y=y,
        offsets=given.offsets,
        l2=0.0 if dense else given.l2,
        free=getattr(given, "n_unpenalised", 0),
        sampling=sampling,
        batch=int(given.sizes.max()) if batches.size is None else batches.size,
        ends=draws.ends,
        guide=_guide(draws.ends, given.offsets),
        chain_ends=draws.ends if draws.chain is None else draws.chain.ends,
        follows=np.zeros(0, np.int32) if draws.chain is None else draws.chain.follows,
        branching=0 if draws.chain is None else draws.chain.branching,
        limits=None if privacy is None else largest_slopes(x.reshape(int(given.offsets[-1]), -1), privacy.clip),
        noise=0.0 if privacy is None else privacy.noise,
        noise_key=((seed ^ RECORD_KEY) & 0xFFFFFFFF, (seed ^ RECORD_KEY) >> 32),
    )


def _guide(ends: NDArray[np.uint64], offsets: NDArray[np.int64]) -> NDArray[np.int32]:
    """For each client and j below its number of records n, the first i with ends[i] > ⌊2³² j/n⌋."""
    guide = np.zeros(ends.size, np.int32)
    for begin, end in pairwise(offsets.tolist() if ends.size else []):
        least = (np.arange(end - begin, dtype=np.uint64) << np.uint64(32)) // np.uint64(end - begin)
        guide[begin:end] = np.searchsorted(ends[begin:end], least, side="right")
    return guide
