"""How much a prediction with skewed clouds leaves out, from what it found: fourth cumulants and beyond.

No formula for them is known that is cheaper than following them. Three signs go with the errors that simulations
show: how much the third cumulants changed the plateau; the share of the squared bias in it, which feels every
cumulant, while the variance feels the second most; and how far a single record moves the model along itself,
γ‖x‖²ℓ'' times the share of a batch's noise in one record. The weights of their logarithms were fitted, by logistic
regression, to random problems of other seeds than those in `docs/measured/predictions.json`.
"""

import numpy as np

from fedscaffold.theory.prediction.moments.local_round import LocalRound, RoundMap
from fedscaffold.theory.prediction.reliability import UNRELIABLE, Reliability
from fedscaffold.theory.prediction.setting import Setting

CHANGE, BIAS, REACH = 0.70, 1.01, 0.89  # weights of the logarithms of the three signs
TYPICAL = 6.2  # of their sum, with the other sign: that of a prediction at the border of being trusted
LEAST = 1e-3  # added to each sign
MOST = 100.0  # percent


def neglected(
    s: Setting, local: LocalRound, map: RoundMap, gaussian: float | None, skewed: float, bias: float
) -> Reliability:
    """The reliability of a plateau E‖θ − θ*‖² = `skewed`, of which `bias` is ‖E θ − θ*‖².

    It is `gaussian` without third cumulants; None where there is no plateau without them.
    """
    change = 0.5 if gaussian is None else min(0.5, abs(skewed - gaussian) / max(skewed, 1e-300))
    share = bias / max(skewed, 1e-300)
    reach = record_reach(s, local, map) * float(s.factors.max())
    signs = {
        "third cumulants change it much, and fourth ones are left out": CHANGE * np.log(change + LEAST),
        "its bias feels the fourth cumulants of local models, which are left out": BIAS * np.log(share + LEAST),
        "single records move local models far, whose fourth cumulants are left out": REACH * np.log(reach + LEAST),
    }
    percent = UNRELIABLE * float(np.exp(0.5 * (sum(signs.values()) + TYPICAL)))
    return Reliability(min(percent, MOST), max(signs, key=lambda name: signs[name]))


def record_reach(s: Setting, local: LocalRound, map: RoundMap) -> float:
    """γ‖x‖²ℓ'' at the end of a round, averaged over records by their squared lengths and over clients."""
    problem, end = s.problem, map.end
    assert local.skewed is not None
    reach = 0.0
    for block in local.blocks:
        at, x = block.clients, block.x
        margins = np.einsum("kni,ki->kn", x, s.optimum + end.mean[at])
        squares = np.square(x).sum(axis=2)
        record = s.gamma * local.skewed.problem.d2(margins, block.y) * squares
        by_size = squares * problem.weights[at][:, None] / np.maximum(squares.sum(axis=1, keepdims=True), 1e-300)
        reach += float((by_size * record).sum())
    return reach
