"""The third phase: what each site tells about itself, from which the coordinator chooses settings of training.

Sizes are told as the next of sixteen steps between powers of two: settings need no more, and the largest of all
sites is then one of few numbers, which secure sums can find.
"""

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np

from fedscaffold.core.files import Fields
from fedscaffold.core.random.stream import Batches
from fedscaffold.data.encoded import EncodedProblem

TIMED_STEPS = 20
ROWS_FOR_NOISE = 500
STEPS_PER_OCTAVE = 16  # of the sizes that are told
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
        of the loss, plus the penalty; rounded up.
    noise
        tr Cov of the gradients of single rows at θ = 0, from at most 500 rows; rounded up.
    seconds_per_step
        How long a local step on all rows takes at the site; rounded up.
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


def step_up(value: float) -> float:
    """The least of sixteen steps per octave that is not below the number: at most 4.5 % above it; 0 for 0."""
    if value <= 0.0:
        return 0.0
    return float(2.0 ** (math.ceil(round(STEPS_PER_OCTAVE * math.log2(value), 9)) / STEPS_PER_OCTAVE))


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
        smoothness=step_up(float(problem.smoothness(Batches()))),
        noise=step_up(float(gradients.var(axis=0).sum())),
        seconds_per_step=step_up(seconds),
    )


@dataclass(frozen=True, kw_only=True)
class Measurements:
    """What the sites of a study told about themselves, together.

    Parameters
    ----------
    sites
        Their names.
    n_rows
        Number of rows of all sites.
    largest_site
        Rows of the largest site, or a little more.
    smoothness, noise, seconds_per_step
        The largest of any site.
    each
        What each site told; empty where the coordinator learns only sums.
    """

    sites: tuple[str, ...]
    n_rows: int
    largest_site: float
    smoothness: float
    noise: float
    seconds_per_step: float
    each: Mapping[str, SiteMeasurement] = field(default_factory=dict)

    @classmethod
    def of(cls, each: Mapping[str, SiteMeasurement]) -> Self:
        """The measurements that sites told openly."""
        told = list(each.values())
        return cls(
            sites=tuple(each),
            n_rows=sum(one.n_rows for one in told),
            largest_site=step_up(max(one.n_rows for one in told)),
            smoothness=max(one.smoothness for one in told),
            noise=max(one.noise for one in told),
            seconds_per_step=max(one.seconds_per_step for one in told),
            each=each,
        )
