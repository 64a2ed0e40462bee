"""Which contributions count: none that is NaN, infinite, absurdly large, or of another shape or round."""

from collections.abc import Mapping

import numpy as np

from fedscaffold.core.types import Array
from fedscaffold.federation.ledger import Ledger, distance, norm, typical
from fedscaffold.federation.messages import Sent, TrainRequest


def fault(order: TrainRequest, reply: Sent) -> str | None:
    """What is wrong with a reply taken by itself; None if nothing is."""
    for name in ("client", "epoch", "round", "phase"):
        asked, told = getattr(order, name), getattr(reply, name)
        if asked != told:
            return f"it is for {name} {told}, asked was {name} {asked}"
    vector = reply.vector
    if vector.shape != (order.terms.dim,):
        return f"its shape is {vector.shape}, not ({order.terms.dim},)"
    if vector.dtype != np.float64:
        return f"it holds {vector.dtype}, not float64"
    if not np.isfinite(vector).all():
        return f"{np.count_nonzero(~np.isfinite(vector))} of its {vector.size} numbers are NaN or infinite"
    return None


def too_far(ledger: Ledger, sent: Mapping[int, Array], outlier_factor: float) -> dict[int, str]:
    """Who went absurdly far: ‖sent − θ‖ > outlier_factor · max(median over the others, largest median of a round).

    The median is what a minority cannot move. The largest of all rounds, mostly the first one's, is as far as
    clients go that do not agree: near the optimum those who agree hardly move, and one that was away for long must
    be let in again. Where there is neither, nothing is known and nobody is refused.
    """
    lengths = {c: distance(ledger, vector) for c, vector in sent.items()}
    return _outliers(lengths, ledger.reach, outlier_factor)


def too_steep(gradients: Mapping[int, Array], outlier_factor: float) -> dict[int, str]:
    """The same for exchanged gradients, of which only those of the others are known."""
    return _outliers({c: norm(g) for c, g in gradients.items()}, 0.0, outlier_factor)


def _outliers(lengths: Mapping[int, float], reach: float, largest: float) -> dict[int, str]:
    found = {}
    for c, length in lengths.items():
        others = [other for name, other in lengths.items() if name != c]
        usual = max(reach, typical(others) if others else 0.0)
        if usual > 0.0 and length > largest * usual:
            found[c] = (
                f"its norm is {length:.3g}, usual is {usual:.3g} and at most {largest:g} times that is accepted"
            )
    return found
