"""How training chooses its settings without knowing the optimum: from what sites measured and what rounds achieve.

The step size is one over the largest smoothness that a site told. The best number of local steps differs by a
factor of sixty between tables, so it is found while training: a stage of a few rounds is judged by how much it
shortened the full gradient, and the next stage takes four times as many local steps or a quarter, whichever
direction helps.
"""

import math
from dataclasses import dataclass, replace

from fedscaffold.core.errors import InvalidInput

FACTOR = 4  # between two numbers of local steps that are tried
FIRST_LOCAL_STEPS = 64
MAX_LOCAL_STEPS = 4096
ROUNDS_PER_STAGE = 3
STAGES_UNTIL_NEXT_TRIAL = 3
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


def safe_step_size(smoothness: list[float]) -> float:
    """γ = 1/max_c L_c from the smoothness constants that the sites told."""
    largest = max(smoothness)
    if not 0.0 < largest < math.inf:
        raise InvalidInput(f"the sites' smoothness must be a positive number, got {largest!r}")
    return 1.0 / largest
