"""How curved a mean of clipped losses can be, from public facts: what step sizes must not exceed one over.

A record's slope ℓ' counts up to C/‖x‖; beyond, the clipped loss is a straight line. For counts ℓ'' = ℓ' + y and
for amounts ℓ'' = 1 − ℓ', so that their clipped losses have bounded curvature although e^z has none: y + C/‖x‖ and
1 + C/‖x‖ at most, wherever the model is.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from fedscaffold.core.types import Array
from fedscaffold.data.public import LIMIT, PublicTarget


def bounded_curvature(target: PublicTarget, clip: float, square: float) -> float:
    """The largest curvature of a mean of clipped losses whose records have ‖x‖² = `square` on average."""
    if target.kind == "poisson":
        return target.ends[1] * square + clip * math.sqrt(square)
    if target.kind == "gamma":
        return square + clip * math.sqrt(square)
    return _of_margins(target) * square


def simulated_curvature(target: PublicTarget, problem: Any, clip: float) -> float:
    """The same of a problem on simulated records, penalty included."""
    x = problem.x
    norms = np.linalg.norm(x, axis=1)
    if target.kind == "poisson":
        each: Array = problem.y[:, 0] + clip / norms
    elif target.kind == "gamma":
        each = 1.0 + clip / norms
    else:
        each = np.full(len(x), _of_margins(target))
    return float(np.linalg.eigvalsh(x.T @ (each[:, None] * x) / len(x))[-1]) + float(problem.l2)


def mean_squares(levels: Sequence[int], *, intercept: bool) -> tuple[float, float]:
    """‖x‖² of encoded rows on average: with columns of mean square 1, as is assumed, and at most."""
    numbers = sum(count == 0 for count in levels)
    rest = len(levels) - numbers + int(intercept)
    return float(numbers + rest), LIMIT**2 * numbers + rest


def _of_margins(target: PublicTarget) -> float:
    """The largest eigenvalue of the loss's Hessian in the margins."""
    if target.vectors > 1:
        return 0.5
    return 0.25 if target.kind == "logistic" else 1.0
