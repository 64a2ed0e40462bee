"""Lower bounds on ε by attack: how well an observer of a run's messages recognises the records that were in it.

Each of m canary records was in the run or not by the toss of a fair coin. The attacker has a score for each, which
is higher the more it believes that the record was in.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedscaffold.core.imports import load_optional
from fedscaffold.core.types import Array

LARGEST = 50.0  # of ε in the search; e⁻⁵⁰ is below the rounding errors of probabilities near 1


def guessing_bound(
    scores: Array, inside: NDArray[np.bool_], *, delta: float, guesses: int, confidence: float
) -> float:
    """Return a lower bound on ε for any mechanism (Steinke, Nasr & Jagielski 2023).

    The attacker guesses that the canaries with the highest scores were in and those with the lowest were not,
    `guesses` in all; (ε, δ) bounds how many of these can be right.

    Examples
    --------
    >>> import numpy as np
    >>> from fedscaffold.privacy.lower_bounds import guessing_bound
    >>> inside = np.arange(100) % 2 == 0
    >>> round(guessing_bound(1.0 * inside, inside, delta=1e-5, guesses=100, confidence=0.95), 2)
    3.49
    """
    stats = _stats()
    m, k = scores.size, guesses // 2
    order = np.argsort(scores, kind="stable")
    right = int((~inside[order[:k]]).sum() + inside[order[m - k :]].sum())

    def chance(epsilon: float) -> float:
        """Return the largest probability of this many right guesses."""
        p = 1.0 / (1.0 + math.exp(-epsilon))
        i = np.arange(1, right + 1)
        excess = float((np.cumsum(stats.binom.pmf(right - i, 2 * k, p)) / i).max()) if right else 0.0
        return float(stats.binom.sf(right - 1, 2 * k, p)) + 2.0 * m * delta * excess

    return _largest(lambda epsilon: chance(epsilon) < 1.0 - confidence)


def gaussian_bound(scores: Array, inside: NDArray[np.bool_], *, confidence: float) -> float:
    """Return a lower bound on μ for Gaussian noise (Nasr et al. 2023).

    If attacks do no better than telling N(0, 1) from N(μ, 1), their errors a and b of both kinds have
    Φ⁻¹(1 − a) − Φ⁻¹(b) ≤ μ. The threshold is the middle between the mean scores of one half of the canaries;
    errors are counted on the other half, with upper confidence limits (Clopper & Pearson).

    Examples
    --------
    >>> import numpy as np
    >>> from fedscaffold.privacy.lower_bounds import gaussian_bound
    >>> rng = np.random.default_rng(0)
    >>> inside = rng.random(4000) < 0.5
    >>> 0.8 < gaussian_bound(rng.normal(size=4000) + inside, inside, confidence=0.95) < 1.0
    True
    """
    stats = _stats()
    half = np.arange(scores.size) % 2 == 0
    middle = 0.5 * (scores[half & inside].mean() + scores[half & ~inside].mean())
    wrong_in, wrong_out = scores[~half & inside] <= middle, scores[~half & ~inside] > middle
    limit = 1.0 - (1.0 - confidence) / 2.0
    errors = [(one.sum() + 1, max(1, one.size - one.sum())) for one in (wrong_out, wrong_in)]
    a, b = (float(stats.beta.ppf(limit, *each)) for each in errors)
    return max(0.0, float(stats.norm.ppf(1.0 - a) - stats.norm.ppf(b)))


def _stats() -> Any:
    return load_optional("scipy.stats", "bounds by attack need SciPy", extra="privacy")


def _largest(rejected: Callable[[float], bool]) -> float:
    """Return the largest ε that is rejected, to 1e-6; 0 if none is."""
    low, high = 0.0, LARGEST
    if not rejected(low):
        return 0.0
    while high - low > 1e-6:
        middle = 0.5 * (low + high)
        low, high = (middle, high) if rejected(middle) else (low, middle)
    return low
