"""How training chooses its settings without knowing the optimum: from what sites measured and what rounds achieve.

The step size is one over the largest smoothness that a site told. The best number of local steps differs by a
factor of sixty between tables, so it is found while training: a stage of a few rounds is judged by how much it
shortened the full gradient, and the next stage takes four times as many local steps or a quarter, whichever
direction helps.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.types import Array
from fedscaffold.federation.study.measure import Measurements

FACTOR = 4  # between two numbers of local steps that are tried
FIRST_LOCAL_STEPS = 64
MAX_LOCAL_STEPS = 4096
ROUNDS_PER_STAGE = 3
STAGES_UNTIL_NEXT_TRIAL = 3
DRAWING = 5  # times the cost of a row that is read in order, for one that is drawn
MIN_BATCH = 32
PATIENCE = 12  # rounds of a stage on batches before its local steps are changed
KURTOSIS = 3.0
MUCH_WORSE = 0.5  # a stage with less than this share of the earlier rate starts a new trial at once


@dataclass(frozen=True, kw_only=True)
class LocalStepsSearch:
    """Search for the number of local steps with the fastest decrease of the gradient per second.

    Parameters
    ----------
    local_steps
        H of the next stage.
    seconds_per_round
        What a round costs by the clock apart from local steps.
    seconds_per_step
        What a local step takes at the slowest site.
    max_local_steps
        Largest H that the sites' policies allow.

    Examples
    --------
    >>> from fedscaffold.federation.study.training.autopilot import LocalStepsSearch
    >>> search = LocalStepsSearch(seconds_per_round=1.0, seconds_per_step=1e-4)
    >>> search.local_steps
    64
    >>> search = search.after_stage(1.0, 0.1)
    >>> search.local_steps
    256
    >>> search.after_stage(0.1, 0.09).local_steps
    64
    """

    local_steps: int = FIRST_LOCAL_STEPS
    seconds_per_round: float = 1.0
    seconds_per_step: float = 0.0
    max_local_steps: int = MAX_LOCAL_STEPS
    upwards: bool = True
    best_local_steps: int = 0  # of the stage to compare with; 0 before the first
    best_rate: float = -math.inf
    stages_left: int = 0  # until another number of local steps is tried again

    @classmethod
    def start(cls, seconds_per_round: float, seconds_per_step: float) -> "LocalStepsSearch":
        """The search before the first stage, from what rounds and local steps cost."""
        return cls(
            local_steps=_first_local_steps(seconds_per_round, seconds_per_step),
            seconds_per_round=seconds_per_round,
            seconds_per_step=seconds_per_step,
        )

    def after_stage(self, before: float, after: float) -> "LocalStepsSearch":
        """The search after a stage in which the norm of the gradient went from `before` to `after`."""
        seconds = self.seconds_per_round + self.local_steps * self.seconds_per_step
        rate = math.log(before / after) / seconds if after > 0.0 else math.inf
        if self.local_steps == self.best_local_steps:
            known = replace(self, best_rate=rate, stages_left=max(self.stages_left - 1, 0))
            if self.stages_left > 0 and rate >= MUCH_WORSE * self.best_rate:
                return known
            return known._try_next()
        if rate >= self.best_rate:
            return replace(self, best_local_steps=self.local_steps, best_rate=rate)._try_next()
        return replace(
            self,
            local_steps=self.best_local_steps,
            upwards=not self.upwards,
            stages_left=STAGES_UNTIL_NEXT_TRIAL,
        )

    def _try_next(self) -> "LocalStepsSearch":
        steps = self.local_steps * FACTOR if self.upwards else self.local_steps // FACTOR
        if 1 <= steps <= self.max_local_steps:
            return replace(self, local_steps=steps)
        return replace(self, upwards=not self.upwards)


def _first_local_steps(seconds_per_round: float, seconds_per_step: float) -> int:
    """H of the first stage: 64, or fewer where that many would take longer than ten rounds' overhead."""
    affordable = 10.0 * seconds_per_round / seconds_per_step if seconds_per_step > 0.0 else math.inf
    steps = FIRST_LOCAL_STEPS
    while steps > 1 and steps > affordable:
        steps //= FACTOR
    return steps


def safe_step_size(smoothness: float) -> float:
    """γ = 1/max_c L_c from the largest of the sites' smoothness constants."""
    if not 0.0 < smoothness < math.inf:
        raise InvalidInput(f"the sites' smoothness must be a positive number, got {smoothness!r}")
    return 1.0 / smoothness


@dataclass(frozen=True, kw_only=True)
class BatchSearch:
    """Local steps of stages on minibatches, which last until the run is stationary.

    A stage that does not become so in `PATIENCE` rounds, and still moves less and less, is followed by one with
    four times the local steps, as long as these take no longer than the rest of a round; one that moves more and
    more, by one with a quarter, and the number is not raised again.

    Parameters
    ----------
    local_steps
        H of the next stage.
    most
        Local steps that take as long as the rest of a round.
    may_grow
        Whether the number may still be raised.

    Examples
    --------
    >>> import numpy as np
    >>> from fedscaffold.federation.study.training.autopilot import BatchSearch
    >>> search = BatchSearch(most=1000)
    >>> approaching = [np.array([0.9**t]) for t in range(12)]
    >>> search.after(approaching).local_steps
    256
    """

    local_steps: int = FIRST_LOCAL_STEPS
    most: float = MAX_LOCAL_STEPS
    may_grow: bool = True

    @property
    def rounds(self) -> float:
        """Most rounds of the next stage; without limit once the number of local steps stays."""
        return PATIENCE if self.may_grow else math.inf

    @property
    def _can_grow(self) -> bool:
        return self.may_grow and FACTOR * self.local_steps <= min(self.most, MAX_LOCAL_STEPS)

    def after(self, models: Sequence[Array]) -> "BatchSearch":
        """The search after a stage that did not become stationary, from the models of its rounds."""
        half = len(models) // 2
        first = float(np.linalg.norm(models[half - 1] - models[0]))
        second = float(np.linalg.norm(models[-1] - models[half]))
        if second >= first and self.local_steps >= FACTOR:
            return replace(self, local_steps=self.local_steps // FACTOR, may_grow=False)
        if self._can_grow:
            return replace(self, local_steps=self.local_steps * FACTOR)
        return replace(self, may_grow=False)

    def settled(self) -> "BatchSearch":
        """The search after a stationary stage: with half the step size, twice the local steps."""
        return replace(self, local_steps=2 * self.local_steps, may_grow=False)


def choose_batch(asked: int | str, largest_site: float, per_round: float, per_step: float) -> int | None:
    """The batch size of local steps; None for all rows.

    By default batches are taken where the first stage's local steps on all rows would take longer than the rest of
    a round, and as large as they can be so that they do not.

    Parameters
    ----------
    asked
        What the study's settings say: a number, "all" or "auto".
    largest_site
        Rows of the largest site.
    per_round, per_step
        Seconds that a round takes apart from local steps, and a local step on all rows at the slowest site.
    """
    if isinstance(asked, int):
        return asked if asked < largest_site else None
    if asked == "all" or FIRST_LOCAL_STEPS * per_step <= per_round:
        return None
    share = per_round / (FIRST_LOCAL_STEPS * per_step * DRAWING)
    size = max(MIN_BATCH, int(share * largest_site))
    return size if DRAWING * size < largest_site else None


def batch_step_size(measured: Measurements, batch_size: int) -> float:
    """γ = 1/(L + 3 σ²/B) with the largest L and σ² of any site, for which steps on batches are stable too.

    σ² is the trace of the noise of single rows' gradients, which for standardised columns is about the mean
    curvature of a row; the factor 3 allows for rows that are larger than others.
    """
    return safe_step_size(measured.smoothness + KURTOSIS * measured.noise / batch_size)
