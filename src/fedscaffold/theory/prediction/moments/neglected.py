"""How much a prediction with skewed clouds leaves out, from what it found: fourth cumulants and beyond.

No formula for them is known that is cheaper than following them. What simulations show of the errors goes with
three products, which add up: how much the third cumulants changed the plateau, times how far margins spread, since
the next cumulants change it by a like share where losses bend; the same change times the root of the squared bias'
share in the plateau, since the bias feels every cumulant while the variance feels the second most; and where
margins spread, the square of how far a single record moves the model along itself, γ‖x‖²ℓ'' times the share of a
batch's noise in one record: beyond one the model jumps between records, and no cumulant says how. The three
weights were fitted to random problems of other seeds than those in `docs/measured/predictions.json`.
"""

import numpy as np

from fedscaffold.core.types import Array
from fedscaffold.theory.prediction.moments.local_round import LocalRound, RoundMap
from fedscaffold.theory.prediction.reliability import Reliability
from fedscaffold.theory.prediction.setting import Setting

SPREAD, BIAS, REACH = 27.0, 160.0, 2.8  # percent for each of the three products
MOST_CHANGE, MOST_REACH = 0.5, 3.0
MOST = 100.0  # percent


def neglected(
    s: Setting, local: LocalRound, map: RoundMap, gaussian: float | None, skewed: float, bias: float
) -> Reliability:
    """The reliability of a plateau E‖θ − θ*‖² = `skewed`, of which `bias` is ‖E θ − θ*‖².

    It is `gaussian` without third cumulants; None where there is no plateau without them.
    """
    size = max(skewed, 1e-300)
    change = MOST_CHANGE if gaussian is None else min(MOST_CHANGE, abs(skewed - gaussian) / size)
    reach, variance = records_at_the_end(s, local, map)
    reach, spread = min(MOST_REACH, reach * float(s.factors.max())), variance / (1.0 + variance)
    signs = {
        "third cumulants change it much, and fourth ones are left out": SPREAD * spread * change,
        "its bias feels the fourth cumulants of local models, which are left out": BIAS
        * (bias / size) ** 0.5
        * change,
        "single records move local models far, whose fourth cumulants are left out": REACH * spread * reach**2,
    }
    return Reliability(min(sum(signs.values()), MOST), max(signs, key=lambda name: signs[name]))


def records_at_the_end(s: Setting, local: LocalRound, map: RoundMap) -> tuple[float, float]:
    """γ‖x‖²ℓ'' at the end of a round, weighted by ‖x‖², and the variance of margins, weighted by noise; means."""
    assert local.skewed is not None
    problem, end = local.skewed.problem, map.end
    cov, reach, variance = end.cov(map.start), 0.0, 0.0
    for block in local.blocks:
        at, x = block.clients, block.x
        margins = np.einsum("kni,ki->kn", x, s.optimum + end.mean[at])
        first, second = problem.d1(margins, block.y), problem.d2(margins, block.y)
        squares, spreads = np.square(x).sum(axis=2), np.einsum("kni,kni->kn", x @ cov[at], x)
        noise = block.share * (first**2 + second**2 * spreads) * squares
        reach += _mean(s.problem.weights[at], squares, s.gamma * second * squares)
        variance += _mean(s.problem.weights[at], noise, spreads)
    return reach, variance


def _mean(clients: Array, records: Array, values: Array) -> float:
    """Σ_c w_c of the mean of a client's values, (k, n), weighted by `records`."""
    each = (records * values).sum(axis=1) / np.maximum(records.sum(axis=1), 1e-300)
    return float(clients @ each)
