"""A search over step size and local steps for any method whose error can be predicted: moves, ever smaller."""

import math
from collections.abc import Callable
from dataclasses import dataclass

RATIOS = (3.0, 1.6, 1.25)
MOST_TRIES = 30


@dataclass(frozen=True)
class Outcome:
    """What γ and H lead to: rounds and cost where the aim is reached, and else how near to it the error came."""

    gamma: float
    H: int
    rounds: int | None  # None where the aim is not reached
    cost: float
    error: float  # after the last round, or the least
    after: int | None = None  # first rounds that an average leaves out

    @property
    def rank(self) -> tuple[bool, float]:
        """What is to be made small: the cost, or the error where the aim is not reached."""
        return (True, self.error) if self.rounds is None else (False, self.cost)


def pattern_search(
    ask: Callable[[float, int, float], Outcome], gamma: float, H: int, most_local_steps: int
) -> Outcome:
    """The outcome of the least cost that moves from γ and H lead to.

    Parameters
    ----------
    ask
        Outcome of γ and H, given what it may cost at most.
    gamma, H
        Where to begin.
    most_local_steps
        Limit on H.
    """
    best = ask(gamma, H, math.inf)
    seen, left = {(round(math.log(gamma), 2), H)}, MOST_TRIES
    for ratio in RATIOS:
        moved = True
        while moved and left > 0:
            moved = False
            for up, more in ((1, 0), (-1, 0), (0, 1), (0, -1), (1, -1), (-1, 1)):
                tried = best.gamma * ratio**up
                steps = max(1, min(most_local_steps, round(best.H * ratio**more)))
                key = (round(math.log(tried), 2), steps)
                if key in seen or left == 0:
                    continue
                seen.add(key)
                left -= 1
                found = ask(tried, steps, math.inf if best.rounds is None else best.cost)
                if found.rank < best.rank:
                    best, moved = found, True
                    break
    return best
