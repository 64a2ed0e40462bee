"""Which updates are refused: those that are NaN, infinite, of another shape or round, or far too long."""

from collections.abc import Mapping

import numpy as np

from fedscaffold.core.types import Array
from fedscaffold.federation.ledger import Ledger, distance, lower_median, norm
from fedscaffold.federation.messages import ClientUpdate, TrainRequest


def malformed(request: TrainRequest, update: ClientUpdate) -> str | None:
    """What is wrong with an update taken by itself, as the end of a sentence; None if nothing is."""
    for name in ("client", "resets", "round", "phase"):
        asked, found = getattr(request, name), getattr(update, name)
        if asked != found:
            return f"it is for {name} {found}, but the request was for {name} {asked}"
    vector, dim = update.vector, request.config.dim
    if vector.shape != (dim,):
        return f"its shape is {vector.shape}, not ({dim},)"
    if vector.dtype != np.float64:
        return f"it holds {vector.dtype}, not float64"
    if not np.isfinite(vector).all():
        return f"{np.count_nonzero(~np.isfinite(vector))} of its {vector.size} numbers are NaN or infinite"
    return None


def distant_updates(ledger: Ledger, sent: Mapping[int, Array], outlier_factor: float) -> dict[int, str]:
    """Clients with ‖sent − θ‖ > outlier_factor · max(lower median of the others', ledger.distance_scale), and why.

    A minority of clients cannot move the median. `distance_scale` is the largest median of all rounds, mostly that
    of the first, and so how far clients go that do not agree yet: near the optimum those that agree hardly move,
    and one that was offline for many rounds must be let in again. Where neither is known, no update is refused.
    """
    lengths = {client: distance(ledger, vector) for client, vector in sent.items()}
    return _outliers(lengths, ledger.distance_scale, outlier_factor)


def large_gradients(gradients: Mapping[int, Array], outlier_factor: float) -> dict[int, str]:
    """Clients whose exchanged gradient is outlier_factor times longer than the others' lower median, and why."""
    return _outliers({client: norm(gradient) for client, gradient in gradients.items()}, 0.0, outlier_factor)


def _outliers(lengths: Mapping[int, float], scale: float, outlier_factor: float) -> dict[int, str]:
    found = {}
    for client, length in lengths.items():
        others = [other for key, other in lengths.items() if key != client]
        usual = max(scale, lower_median(others) if others else 0.0)
        if usual > 0.0 and length > outlier_factor * usual:
            found[client] = (
                f"its norm is {length:.3g}, usual is {usual:.3g}, "
                f"and at most {outlier_factor:g} times that is accepted"
            )
    return found
