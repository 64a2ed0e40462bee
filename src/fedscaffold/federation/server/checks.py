"""Which updates are refused, and which are shortened because they are far longer than those of the others."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from fedscaffold.core.types import Array
from fedscaffold.federation.clipping import shorten
from fedscaffold.federation.messages import ClientUpdate, TrainRequest
from fedscaffold.federation.run_config import RunConfig
from fedscaffold.federation.server.ledger import Ledger, aggregate, stack_states

REFUSED_BEYOND = 1000.0  # times the usual distance: no data explain that
STATES_DIFFER = 2.0  # times as much as distances do: in control variates honest clients differ to the end
LEAST_OF_FIRST = 1e-2  # the usual distance is at least this share of the first round's
LEAST_OF_THETA = 1e-3  # and at least this share of ‖θ‖


def malformed(request: TrainRequest, update: ClientUpdate) -> str | None:
    """What is wrong with an update taken by itself, as the end of a sentence; None if nothing is."""
    for name in ("client", "run", "history", "resets", "round", "phase"):
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


class Lengths(NamedTuple):
    """The usual distance ‖sent − θ‖, the clients whose updates are shortened to what, and those refused and
    why.
    """

    usual: float
    scales: dict[int, float]
    refused: dict[int, str]


def check_lengths(
    ledger: Ledger, sent: Mapping[int, Array], weights: Array, outlier_factor: float | None
) -> Lengths:
    """Compare ‖sent − θ‖ with what is usual in this round, in time N log N for N updates.

    The usual distance is a weighted median, so that clients with less than half of the weight can neither raise it
    above nor push it below what the others do. It counts as at least 1 % of that of the first round, where clients
    do not agree yet, and as at least ‖θ‖/1000: small steps of a run that converges, and rounding errors of clients
    that are at their own optimum, do not say what is usual. An update that is too long (see `limits`) counts
    shortened; one of more than 1000 times the usual distance is refused.
    """
    clients = sorted(sent)
    if not clients or outlier_factor is None:
        return Lengths(0.0, {}, {})
    theta, w = ledger.server.theta[0], weights[clients]
    distances = np.array([norm(sent[client] - theta) for client in clients])
    usual = weighted_median(distances, w)
    least = max(usual, LEAST_OF_FIRST * ledger.first_distance, LEAST_OF_THETA * norm(theta))
    if least == 0.0:
        return Lengths(usual, {}, {})
    allowed = limits(distances, w, outlier_factor, least=least)
    beyond = max(REFUSED_BEYOND, outlier_factor) * max(least, ledger.first_distance)
    scales, refused = {}, {}
    for client, distance, limit in zip(clients, distances.tolist(), allowed.tolist(), strict=True):
        if distance > max(beyond, limit):
            refused[client] = f"its distance from θ is {distance:.3g}, usual is {least:.3g}"
        elif distance > limit:
            scales[client] = limit / distance
    return Lengths(usual, scales, refused)


def check_states(
    config: RunConfig,
    ledger: Ledger,
    sent: Mapping[int, Array],
    states: Mapping[int, Any],
    weights: Array,
    outlier_factor: float | None,
) -> dict[int, float]:
    """How much of its update counts for each client whose client state would become too long otherwise.

    A client that pushes θ in one direction in every round, each time by a usual distance, is not found by
    `check_lengths`, and control variates add up what it does. But the server knows the control variate that its
    updates imply, and that of a client is minus the gradient of its own loss: with its norm limited to
    2·outlier_factor times the usual one, a client has no more influence on where the run ends than one whose data
    differ so much from the others'.

    Parameters
    ----------
    config, ledger, weights, outlier_factor
        As in `run_round`.
    sent
        The updates, by client, shortened by `check_lengths` already.
    states
        The client states before the round; clients whose state is not known are left out.
    """
    clients = [client for client in sorted(sent) if states.get(client) is not None]
    if outlier_factor is None or not config.has_client_state or not clients:
        return {}
    after = aggregate(config, ledger, sent, weights)
    vectors, w = np.stack([sent[client] for client in clients]), weights[clients]
    block = stack_states([states[client] for client in clients])

    def implied(messages: Array) -> Array:
        updated = config.method_at(ledger.round).update_clients(block, messages[None], ledger.server, after)
        return np.concatenate([values[0] for values in updated], axis=1)

    new = implied(vectors)
    with np.errstate(over="ignore"):
        lengths = np.linalg.norm(new, axis=1)
    allowed = limits(lengths, w, STATES_DIFFER * outlier_factor, least=weighted_median(lengths, w))
    long = np.flatnonzero(lengths > allowed)
    if not long.size:
        return {}
    still = implied(np.broadcast_to(ledger.server.theta, vectors.shape))[long]
    found = _largest_share(still, new[long] - still, allowed[long])
    return {clients[k]: share for k, share in zip(long.tolist(), found.tolist(), strict=True)}


def clip_gradients(
    gradients: Mapping[int, Array], weights: Array, outlier_factor: float | None
) -> tuple[dict[int, Array], dict[int, str]]:
    """Exchanged gradients, shortened where they are too long, and the clients whose are refused, and why."""
    clients = sorted(gradients)
    if not clients or outlier_factor is None:
        return dict(gradients), {}
    w = weights[clients]
    norms = np.array([norm(gradients[client]) for client in clients])
    usual = weighted_median(norms, w)
    allowed = limits(norms, w, STATES_DIFFER * outlier_factor, least=usual)
    found, refused = {}, {}
    for client, length, limit in zip(clients, norms.tolist(), allowed.tolist(), strict=True):
        if usual > 0.0 and length > max(limit, REFUSED_BEYOND * usual):
            refused[client] = f"its gradient's norm is {length:.3g}, usual is {usual:.3g}"
        else:
            scale = limit / length if length > limit > 0.0 else 1.0
            found[client] = shorten(gradients[client], np.zeros_like(gradients[client]), scale)
    return found, refused


def limits(lengths: Array, weights: Array, outlier_factor: float, *, least: float) -> Array:
    """How long each client's vector may be, of which `lengths` are given.

    That is `outlier_factor` times the usual length, or whatever makes length times weight, by which the vector
    enters the mean, `outlier_factor` times as large as usual: a client with few rows may differ more than one with
    many, and one with many need not be silent because there are many with few.
    """
    influence = weighted_median(weights * lengths, weights)
    return outlier_factor * np.maximum(least, influence / weights)


def _largest_share(begin: Array, change: Array, allowed: Array) -> Array:
    """The largest s in [0, 1] with ‖begin + s·change‖ ≤ allowed, row by row; where there is none, the s with the
    shortest sum.
    """
    square = np.sum(change**2, axis=1)
    slope = np.sum(begin * change, axis=1)
    excess = np.sum(begin**2, axis=1) - allowed**2
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        found = (-slope + np.sqrt(np.maximum(slope**2 - square * excess, 0.0))) / square
    return np.clip(np.nan_to_num(found, nan=0.0, posinf=1.0, neginf=0.0), 0.0, 1.0)


def weighted_median(values: Array, weights: Array) -> float:
    """The smallest value such that those up to it have more than half of the weight."""
    order = np.argsort(values, kind="stable")
    shares = np.cumsum(weights[order]) / weights.sum()
    return float(values[order[min(int(np.searchsorted(shares, 0.5 + 1e-9, side="right")), values.size - 1)]])


def norm(vector: Array) -> float:
    """‖v‖, infinite where it is beyond float64."""
    with np.errstate(over="ignore"):
        return float(np.linalg.norm(vector))
