"""How much a prediction with skewed clouds leaves out, from what it found: fourth cumulants and beyond.

No formula for them is known that is cheaper than following them. Three signs go with the errors that
simulations show: how much the third cumulants changed the plateau; how skewed the margins of records are and
how far a single record moves the model along itself, γ‖x‖²ℓ'' times the share of a batch's noise in one record;
and how wide the clouds are on the scale on which losses bend. Their weights were fitted to random problems, see
`benchmarks/predictions.py`.
"""

import numpy as np

from fedscaffold.theory.prediction.moments.local_round import LocalRound, RoundMap
from fedscaffold.theory.prediction.moments.third_order import cloud_skewness
from fedscaffold.theory.prediction.reliability import Reliability
from fedscaffold.theory.prediction.setting import Setting

CHANGE, SKEWED, WIDE = 35.0, 10.0, 1.5  # percent for each of the signs
MOST_SPREAD = 3.0


def neglected(s: Setting, local: LocalRound, map: RoundMap, gaussian: float | None, skewed: float) -> Reliability:
    """The reliability of a plateau E‖θ − θ*‖² = `skewed`, which is `gaussian` without third cumulants.

    `gaussian` is None where there is no plateau without them.
    """
    change = 0.5 if gaussian is None else min(0.5, abs(skewed - gaussian) / max(skewed, 1e-300))
    spread, skewness, reach = margin_signs(s, local, map)
    reach *= float(s.factors.max())
    percent = CHANGE * change + SKEWED * skewness * reach + WIDE * min(spread, MOST_SPREAD) * reach
    parts = {
        "third cumulants change it much, and fourth ones are left out": CHANGE * change,
        "local models are skewed, and their fourth cumulants are left out": SKEWED * skewness * reach,
        "losses bend within the spread of local models, whose fourth cumulants are left out": percent,
    }
    reason = max(list(parts)[:2], key=lambda name: parts[name])
    if CHANGE * change + SKEWED * skewness * reach < 0.5 * percent:
        reason = list(parts)[2]
    return Reliability(percent, reason)


def margin_signs(s: Setting, local: LocalRound, map: RoundMap) -> tuple[float, float, float]:
    """Spread and skewness of the margins of records at the end of a round, and γ‖x‖²ℓ'', averaged over records."""
    problem, end = s.problem, map.end
    cov = end.cov(map.start)
    assert end.third is not None
    assert local.skewed is not None
    third = cloud_skewness(end.B, map.start.cov, map.start.skew, end.third)
    spread = skewness = reach = 0.0
    for block in local.blocks:
        at, x = block.clients, block.x
        variance = np.maximum(np.einsum("kni,kij,knj->kn", x, cov[at], x), 0.0)
        cube = np.einsum("kni,knj,knl,kijl->kn", x, x, x, third[at], optimize=True)
        skew = np.minimum(np.abs(cube) / np.maximum(variance, 1e-100) ** 1.5, 1.0)
        margins = np.einsum("kni,ki->kn", x, s.optimum + end.mean[at])
        squares = np.square(x).sum(axis=2)
        record = s.gamma * local.skewed.problem.d2(margins, block.y) * squares
        share = problem.weights[at][:, None] * block.share
        by_size = squares * problem.weights[at][:, None] / np.maximum(squares.sum(axis=1, keepdims=True), 1e-300)
        spread += float((share * variance).sum())
        skewness += float((share * skew).sum())
        reach += float((by_size * record).sum())
    return spread**0.5, skewness, reach
