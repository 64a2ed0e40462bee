"""What the kernels read: a problem's records and how they are drawn, as flat arrays; or what clients draw from."""

from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.machine import in_file
from fedscaffold.core.privacy import RecordLevel
from fedscaffold.core.protocols import (
    HasBatchLoss,
    HasMeanField,
    LinearSystems,
    NonUniformSampling,
    Streamed,
    TabularRecords,
    Transitions,
)
from fedscaffold.core.random.draws import Draws, check_drawable
from fedscaffold.core.random.noise import RECORD_KEY
from fedscaffold.core.random.normals import check_streamed
from fedscaffold.core.random.stream import Batches
from fedscaffold.engines.clippable import check_clippable
from fedscaffold.engines.numba_.losses import (
    ALONG_CHAIN,
    BY_CHANCE,
    DENSE,
    FULL,
    STREAM_LOSSES,
    WITH_REPLACEMENT,
    WITHOUT_REPLACEMENT,
    table_loss,
)

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
        sampling = FULL
    elif not isinstance(given, NonUniformSampling):
        with_ = batches.sampling == "with_replacement"
        sampling = WITH_REPLACEMENT if with_ else WITHOUT_REPLACEMENT
    else:
        sampling = BY_CHANCE if draws.chain is None else ALONG_CHAIN
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


def largest_slopes(x: NDArray[np.floating[Any]], clip: float) -> NDArray[np.floating[Any]]:
    """clip/‖x‖ of each record (records, features), up to which |ℓ'| leaves its gradient as it is."""
    norms = np.sqrt(np.einsum("ij,ij->i", x, x, dtype=np.float64))
    with np.errstate(divide="ignore"):
        return np.minimum(clip / norms, np.finfo(x.dtype).max).astype(x.dtype)


class Sources(NamedTuple):
    """The kernel's first arguments, in its order."""

    loss: int
    ids: NDArray[np.int64]
    own_key: tuple[int, int]
    scale_spread: float
    heterogeneity: float
    roots: NDArray[np.float64]  # √spectrum
    centre: NDArray[np.float64]
    tilt: NDArray[np.float64]
    noise: float
    l2: float
    batch: int
    like: NDArray[np.floating[Any]]  # empty, of the type to compute in

    @property
    def width(self) -> int:
        """Number of features of a record."""
        return self.roots.size


def sources(problem: Streamed, batches: Batches, dtype: str) -> Sources:
    """Of any problem with streamed clients that there is a kernel for."""
    kind = getattr(problem, "kind", type(problem).__name__)
    if kind not in STREAM_LOSSES:
        raise InvalidInput(f"the numba engine has no kernel for {kind!r}; use engine='reference'")
    check_streamed(batches)
    return Sources(
        loss=STREAM_LOSSES[kind],
        ids=problem.client_ids,
        own_key=(problem.seed & 0xFFFFFFFF, problem.seed >> 32),
        scale_spread=problem.scale_spread,
        heterogeneity=problem.heterogeneity,
        roots=np.sqrt(problem.spectrum),
        centre=problem.centre,
        tilt=problem.tilt,
        noise=getattr(problem, "noise", 0.0),
        l2=problem.l2,
        batch=batches.size or 0,
        like=np.zeros(0, dtype),
    )
