"""The third phase: what each site tells about itself, from which the coordinator chooses settings of training."""

import time
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from fedscaffold.core.random.batches import Batches
from fedscaffold.core.storage.fields import Fields
from fedscaffold.data.encoded import EncodedProblem

TIMED_STEPS = 20
ROWS_FOR_NOISE = 500
NUMBERS_PER_SECOND = 2e8  # nominal: of a table that a local step reads, where results must not depend on the clock


@dataclass(frozen=True, kw_only=True)
class SiteMeasurement:
    """Scalars about a site's problem; none of them needs the optimum.

    Parameters
    ----------
    n_rows
        Number of rows, to which the site's weight is proportional.
    smoothness
        L_c, an upper bound on the curvature of the site's loss: λ_max(XᵀX/n) times the largest second derivative
        of the loss, plus the penalty.
    noise
        tr Cov of the gradients of single rows at θ = 0, from at most 500 rows.
    seconds_per_step
        How long a local step on all rows takes at the site.
    """

    n_rows: int
    smoothness: float
    noise: float
    seconds_per_step: float

    def to_json(self) -> dict[str, Any]:
        """The measurement as values that JSON can hold."""
        return vars(self).copy()

    @classmethod
    def from_json(cls, values: Any, site: str) -> Self:
        """The measurement that a site sent, validated field by field."""
        fields = Fields(values, f"the measurement of site {site}")
        return cls(
            n_rows=fields.integer("n_rows", least=1, most=2**53),
            smoothness=fields.number("smoothness", least=1e-300),
            noise=fields.number("noise", least=0.0),
            seconds_per_step=fields.number("seconds_per_step", least=0.0, most=1e6),
        )


def measure_site(problem: EncodedProblem, *, by_the_clock: bool) -> SiteMeasurement:
    """Measure the problem of one site; a nominal speed in place of the clock gives the same numbers every time."""
    zero = np.zeros(problem.dim)
    n = int(problem.sizes[0])
    rows = np.unique(np.linspace(0, n - 1, min(n, ROWS_FOR_NOISE)).astype(np.int64))
    gradients = np.stack([problem.batch_gradient(0, zero, row[None]) for row in rows])
    seconds = problem.x.size / NUMBERS_PER_SECOND
    if by_the_clock:
        begin = time.perf_counter()
        for _ in range(TIMED_STEPS):
            problem.gradient(zero)
        seconds = (time.perf_counter() - begin) / TIMED_STEPS
    return SiteMeasurement(
        n_rows=n,
        smoothness=float(problem.smoothness(Batches())),
        noise=float(gradients.var(axis=0).sum()),
        seconds_per_step=seconds,
    )
