"""A problem as the kernel reads it: flat arrays, checked before any address is taken."""

from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.machine import in_file
from fedscaffold.core.privacy import RecordLevel
from fedscaffold.core.protocols import HasBatchLoss, HasMeanField, NonUniformSampling, Streamed
from fedscaffold.core.random.draws import check_drawable
from fedscaffold.core.random.noise import RECORD_KEY
from fedscaffold.core.random.normals import check_streamed
from fedscaffold.core.random.stream import Batches
from fedscaffold.engines.clippable import check_clippable
from fedscaffold.engines.native.library import Job, address

RIDGE, LOGISTIC, POISSON, GAMMA, SOFTMAX, LINEAR_SYSTEM = range(6)  # as in job.h
FULL, WITH_REPLACEMENT, WITHOUT_REPLACEMENT, BY_PROBABILITY, ALONG_CHAIN = range(5)
LOSSES = {
    "ridge": RIDGE, "td": RIDGE, "ridge_stream": RIDGE, "logistic": LOGISTIC, "logistic_stream": LOGISTIC,
    "poisson": POISSON, "gamma": GAMMA, "multinomial": SOFTMAX, "linear_sa": LINEAR_SYSTEM,
}  # fmt: skip
VECTOR_BYTES = 32  # of the kernel's vectors: vectors.h

Numbers = NDArray[np.floating[Any]]


class NativeRecords:
    """A problem's part of a job, with the arrays that its addresses point to.

    Parameters
    ----------
    problem
        A problem whose loss the kernel knows.
    batches
        How local steps draw records.
    dtype
        "float64" or "float32".
    seed
        Seed of the run, from which the noise of record-level privacy follows.
    privacy
        Clipping and noise of single records; None for none.
    """

    def __init__(
        self, problem: Any, batches: Batches, dtype: str, *, seed: int, privacy: RecordLevel | None = None
    ) -> None:
        if privacy is not None:
            check_clippable(problem)
        if problem.kind not in LOSSES:
            other = problem.engine if isinstance(problem, HasBatchLoss) else "reference"
            raise InvalidInput(
                f"the native engine does not know the loss of {problem.kind!r}; use engine={other!r}"
            )
        self.kept: list[NDArray[Any]] = []  # arrays whose addresses are in the job
        self.tables: list[Numbers] = []  # those that lie in files, a row for each record
        self.offsets: NDArray[np.int64] | None = None  # of clients in the table; None for distributions
        self.job = Job(
            loss=LOSSES[problem.kind], single_precision=dtype == "float32", features=problem.dim, classes=1,
            columns=1, batch=batches.size or 0, l2=getattr(problem, "l2", 0.0),
        )  # fmt: skip
        if isinstance(problem, Streamed):
            check_streamed(batches)
            self._add_law(problem)
        else:
            if isinstance(problem, NonUniformSampling):
                check_drawable(batches)
            by_field = batches.size is None and isinstance(problem, HasMeanField)
            self._add_table(problem.mean_field() if by_field else problem, batches, dtype)
            if privacy is not None:
                self._add_privacy(privacy, seed)

    def _keep(self, array: Any, dtype: Any) -> int | None:
        """Keep an array and return its address."""
        self.kept.append(np.ascontiguousarray(array, dtype=dtype))
        return address(self.kept[-1])

    def _add_law(self, problem: Any) -> None:
        """Add what clients that are distributions are drawn from."""
        _check(len(problem.client_ids) == problem.n_clients)
        _check(all(a.shape == (problem.dim,) for a in (problem.spectrum, problem.centre, problem.tilt)))
        job = self.job
        job.sampling, job.law_seed = WITH_REPLACEMENT, problem.seed
        job.ids = self._keep(problem.client_ids, np.int64)
        job.scale_spread, job.heterogeneity = problem.scale_spread, problem.heterogeneity
        job.target_noise = getattr(problem, "noise", 0.0)
        job.roots = self._keep(np.sqrt(problem.spectrum), np.float64)
        job.centre, job.tilt = self._keep(problem.centre, np.float64), self._keep(problem.tilt, np.float64)
        self.numbers_per_step = job.batch * problem.dim

    def _add_table(self, problem: Any, batches: Batches, dtype: str) -> None:
        """Add records and how they are drawn."""
        job, loss = self.job, LOSSES[problem.kind]  # the mean field of TD is a linear system
        linear = loss == LINEAR_SYSTEM
        x, y, m = (
            (problem.A, problem.b, None) if linear else (problem.x, problem.y, getattr(problem, "margins", None))
        )
        if dtype != "float64" and in_file(x):
            raise InvalidInput(
                f"these records lie in a file as float64, and dtype={dtype!r} would copy all of them into memory; "
                "use dtype='float64'"
            )
        job.loss, job.classes = loss, problem.n_classes if loss == SOFTMAX else 1
        job.features, job.columns = problem.dim // job.classes, 3 if not linear and y.ndim == 2 else 1
        job.unpenalised, job.l2 = getattr(problem, "n_unpenalised", 0), 0.0 if linear else problem.l2
        self.offsets = np.ascontiguousarray(problem.offsets, dtype=np.int64)
        sizes, records = np.diff(self.offsets), int(self.offsets[-1])
        width = job.features * (job.features if linear else 1)
        _check(self.offsets[0] == 0 and sizes.min() >= 1 and x.size == records * width)
        _check(y.size == records * (job.features if linear else job.columns) and (m is None or m.size == x.size))
        if loss == SOFTMAX:
            labels = y.reshape(records, job.columns)[:, 0]
            _check(labels.min() >= 0 and labels.max() < job.classes)
        self.tables = [a.reshape(records, -1) for a in (x, y, m) if a is not None and in_file(a)]
        short = job.features * np.dtype(dtype).itemsize < VECTOR_BYTES  # such rows are read past the table's end
        room = np.zeros(VECTOR_BYTES if short else 0)
        x, m = (None if a is None else np.concatenate([a.ravel(), room]) if short else a for a in (x, m))
        job.x, job.y, job.offsets = self._keep(x, dtype), self._keep(y, dtype), self._keep(self.offsets, np.int64)
        job.m = None if m is None else self._keep(m, dtype)
        self.numbers_per_step = (int(sizes.max()) if batches.size is None else batches.size) * width
        self._add_draws(problem, batches, sizes, records)

    def _add_draws(self, problem: Any, batches: Batches, sizes: NDArray[np.int64], records: int) -> None:
        """Add how a step's records are found."""
        job, offsets = self.job, self.offsets
        if batches.size is None:
            job.sampling = FULL
            return
        if not isinstance(problem, NonUniformSampling):
            job.sampling = WITH_REPLACEMENT if batches.sampling == "with_replacement" else WITHOUT_REPLACEMENT
            return
        assert offsets is not None
        ends, chain = np.asarray(problem.draws.ends, np.uint64), problem.draws.chain
        _check(ends.shape == (records,) and bool((ends[offsets[1:] - 1] == 2**32).all()))
        guide = np.zeros(records, np.int32)  # for each j below a client's n, the first i with ends[i] > ⌊2³² j/n⌋
        for begin, end in pairwise(offsets.tolist()):
            least = (np.arange(end - begin, dtype=np.uint64) << np.uint64(32)) // np.uint64(end - begin)
            guide[begin:end] = np.searchsorted(ends[begin:end], least, side="right")
        job.sampling = BY_PROBABILITY
        job.ends, job.guide = self._keep(ends, np.uint64), self._keep(guide, np.int32)
        if chain is not None:
            room = np.repeat(sizes, sizes) - chain.branching  # all that may follow are the client's records
            _check(chain.ends.shape == chain.follows.shape == (records,) and chain.branching >= 1)
            _check(chain.follows.min() >= 0 and bool((chain.follows <= room).all()))
            job.sampling, job.branching = ALONG_CHAIN, chain.branching
            job.chain_ends, job.follows = self._keep(chain.ends, np.uint64), self._keep(chain.follows, np.int32)

    def _add_privacy(self, privacy: RecordLevel, seed: int) -> None:
        """Add the largest slope |ℓ'| of a record that leaves its gradient unclipped, clip/‖x‖, and the noise."""
        assert self.offsets is not None
        records, width = int(self.offsets[-1]), self.job.features
        x: Numbers = self.kept[0].ravel()[: records * width].reshape(records, width)
        norms = np.sqrt(np.einsum("ij,ij->i", x, x, dtype=np.float64))
        with np.errstate(divide="ignore"):
            self.job.limits = self._keep(np.minimum(privacy.clip / norms, np.finfo(x.dtype).max), x.dtype)
        self.job.noise, self.job.noise_seed = privacy.noise, seed ^ RECORD_KEY


def _check(fits: Any) -> None:
    """Raise if a problem's arrays do not fit each other: the kernel would read beyond them."""
    if not fits:
        raise InvalidInput("the problem's arrays do not fit each other: check shapes, offsets, labels and draws")
