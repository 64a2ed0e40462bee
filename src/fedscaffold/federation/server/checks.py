"""Checks of updates: some are rejected, and some shortened because they are far longer than the others."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from fedscaffold.core.types import Array
from fedscaffold.federation.messages import ClientUpdate, TrainRequest, place_of, shorten
from fedscaffold.federation.run_config import RunConfig
from fedscaffold.federation.server.ledger import Ledger, aggregate, stack_states

REFUSED_BEYOND = 1000.0  # times the usual distance: no data explain that
STATES_DIFFER = 1.75  # times as much as distances do: in control variates honest clients differ to the end
GRADIENTS_DIFFER = 2.0  # and so do exchanged gradients
LEAST_OF_FIRST = 1e-2  # the usual distance is at least this share of the first round's
LEAST_OF_THETA = 1e-3  # and at least this share of ‖θ‖
LEAST_OF_SPREAD = 0.15  # and at least this share of what a usual control variate does in a round
SUSPECTS = 16  # client states that are compared with the others in a round
NUMBERS_AT_ONCE = 1 << 20  # of copies of client states
PASSES = 3  # in which vectors are changed until no client state is too long
TINY = float(np.finfo(np.float64).tiny)


def malformed(request: TrainRequest, update: ClientUpdate) -> str | None:
    """Return the error of an update by itself, as the end of a sentence; None if it has none."""
    for name, asked in (*place_of(request).items(), ("phase", request.phase)):
        found = getattr(update, name)
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
    """The usual distance ‖sent − θ‖, the scales of shortened updates, and the reasons of rejected ones."""

    usual: float
    scales: dict[int, float]
    refused: dict[int, str]


def check_lengths(
    ledger: Ledger, sent: Mapping[int, Array], weights: Array, outlier_factor: float | None
) -> Lengths:
    """Compare ‖sent − θ‖ with the usual distance of this round, in time N log N for N updates.

    The usual distance is a weighted median, so that clients with less than half of the weight can neither raise it
    above nor push it below the others' distances. It counts as at least 1 % of that of the first round, when
    clients do not agree yet, and as at least ‖θ‖/1000, since small steps of a run that converges, and rounding
    errors of clients at their optimum, are not a measure. Nor are they if a client differs from the others and is
    the last to learn its control variate; so 15 % of the sum of a usual control variate over a round counts as
    usual too. An update that is too long (see `limits`) counts shortened; one of more than 1000 times the usual
    distance is rejected.
    """
    clients = sorted(sent)
    if not clients or outlier_factor is None:
        return Lengths(0.0, {}, {})
    theta, w = ledger.server.theta[0], weights[clients]
    distances = np.array([norm(sent[client] - theta) for client in clients])
    usual = weighted_median(distances, w)
    least = max(
        usual,
        LEAST_OF_FIRST * ledger.first_distance,
        LEAST_OF_THETA * norm(theta),
        LEAST_OF_SPREAD * ledger.spread,
    )
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


class States(NamedTuple):
    """The vectors that count instead of some clients' updates, the share of their states' distances from the
    others' that is left, and how far a usual control variate moves a client in a round.
    """

    vectors: dict[int, Array]
    shares: dict[int, float]
    spread: float


def check_states(
    config: RunConfig,
    ledger: Ledger,
    sent: Mapping[int, Array],
    states: Mapping[int, Any],
    weights: Array,
    outlier_factor: float | None,
) -> States:
    """Find clients whose states would be too far from the others', and the vectors that count instead.

    A client that pushes θ in one direction in every round, each time by a usual distance, is not found by
    `check_lengths`, and control variates add up its pushes. But the server knows the control variate that its
    updates imply, which for an honest client is minus the gradient of its loss. With a limited distance from the
    others' (see `excess`), a client has no more influence on the result than one whose data differ by that much.
    The vector that counts is the one that puts the client state at the limit. A shorter update
    alone would not do: a control variate that grew while all were long, as in a first round far from the optimum,
    would stay as it is once the others have come to terms with it.
    `sent` are the updates that `check_lengths` shortened, `states` the known client states before the round.
    """
    clients = [client for client in sorted(sent) if states.get(client) is not None]
    if outlier_factor is None or not config.has_client_state or not clients:
        return States({}, {}, 0.0)
    w, method = weights[clients], config.method
    counted = dict(sent)
    shares: dict[int, float] = {}
    spread = 0.0
    for _ in range(PASSES):  # each changes θ⁺, and with it the states of all
        after = aggregate(config, ledger, counted, weights)

        def implied(some: Sequence[int], more: float = 0.0, after: Any = after) -> Array:
            """Return states of some clients after a round that counts their vectors plus `more`."""
            messages = np.stack([counted[client] for client in some]) + more
            block = stack_states([states[client] for client in some])
            updated = method.update_clients(block, messages[None], ledger.server, after)
            return np.concatenate([values[0] for values in updated], axis=1)

        new = np.empty((len(clients), len(states[clients[0]]) * config.dim))
        slope = TINY  # by how much a state changes with what is counted
        for rows in few_rows(len(clients), config.dim):
            new[rows] = implied(clients[rows])
            slope = float(np.maximum(slope, np.abs(implied(clients[rows], 1.0) - new[rows]).max()))
        spread = weighted_quantile(distances(new, w @ new / w.sum()), w, 0.75) / slope
        least = LEAST_OF_FIRST * ledger.first_distance * slope
        long = excess(new, w, STATES_DIFFER * outlier_factor, least=least)
        if not long:
            break
        for k, (share, back) in long.items():
            client = clients[k]
            slopes = implied([client], 1.0)[0] - new[k]
            step = (slopes * back).reshape(-1, config.dim).sum(axis=0)
            square = (slopes**2).reshape(-1, config.dim).sum(axis=0)
            counted[client] = counted[client] + step / np.maximum(square, TINY)
            shares[client] = share * shares.get(client, 1.0)
    return States({client: counted[client] for client in shares}, shares, spread)


def few_rows(n_rows: int, numbers: int) -> list[slice]:
    """Return slices of few rows each, since copies of all rows of large models would not fit into memory."""
    at_once = max(1, NUMBERS_AT_ONCE // numbers)
    return [slice(begin, begin + at_once) for begin in range(0, n_rows, at_once)]


def excess(states: Array, weights: Array, factor: float, *, least: float) -> dict[int, tuple[float, Array]]:
    """Return rows of `states` that are too far from the others' mean: the allowed share of the distance, and the
    vector back to there.

    The usual distance is that of the others from their mean, without the row itself, which pulls the mean of all:
    a value such that at most a quarter of their weight is further away. Allowed is `factor` times that, and more
    if there are few others to judge by: 1 + 2/(n − 1) times for n of them, which is (Σ w)²/Σ w² for unequal
    weights. A row with a small weight may differ as much as moves the mean by `factor`·√(Σ w²/10), in proportion
    to the variation of the mean between draws of clients. A row with half of the weight or more is never too far.

    Only the rows that pull the mean most are compared with the others by themselves, so that the time is in
    proportion to the number of rows.
    """
    total, whole, squares = weights @ states, weights.sum(), weights @ weights
    pull = weights * distances(states, total / whole)
    found = {}
    for row in np.argsort(pull, kind="stable")[-SUSPECTS:].tolist():
        w = weights[row]
        n_others = (whole - w) ** 2 / max(squares - w**2, TINY)
        if w >= 0.5 * whole or n_others <= 1.0 + 1e-9:
            continue
        mean = (total - w * states[row]) / (whole - w)
        usual = weighted_quantile(np.delete(distances(states, mean), row), np.delete(weights, row), 0.75)
        few, light = 1.0 + 2.0 / (n_others - 1.0), max(1.0, float(np.sqrt(squares / 10.0) / w))
        limit = factor * few * light * max(usual, least)
        distance = norm(states[row] - mean)
        if distance > limit:
            share = float(limit / distance)
            found[row] = share, (1.0 - share) * (mean - states[row])
    return found


def distances(states: Array, mean: Array) -> Array:
    """Return ‖s − mean‖ of each row s."""
    with np.errstate(over="ignore", invalid="ignore"):
        parts = [np.linalg.norm(states[rows] - mean, axis=1) for rows in few_rows(len(states), mean.size)]
    return np.concatenate(parts)


def clip_gradients(
    gradients: Mapping[int, Array], weights: Array, outlier_factor: float | None
) -> tuple[dict[int, Array], dict[int, str]]:
    """Return exchanged gradients, shortened if they are too long, and reasons of rejected ones by client."""
    clients = sorted(gradients)
    if not clients or outlier_factor is None:
        return dict(gradients), {}
    w = weights[clients]
    norms = np.array([norm(gradients[client]) for client in clients])
    usual = weighted_median(norms, w)
    allowed = limits(norms, w, GRADIENTS_DIFFER * outlier_factor, least=usual)
    found, refused = {}, {}
    for client, length, limit in zip(clients, norms.tolist(), allowed.tolist(), strict=True):
        if usual > 0.0 and length > max(limit, REFUSED_BEYOND * usual):
            refused[client] = f"its gradient's norm is {length:.3g}, usual is {usual:.3g}"
        else:
            scale = limit / length if length > limit > 0.0 else 1.0
            found[client] = shorten(gradients[client], np.zeros_like(gradients[client]), scale)
    return found, refused


def limits(lengths: Array, weights: Array, outlier_factor: float, *, least: float) -> Array:
    """Return the greatest allowed length of each client's vector, given all lengths.

    That is `outlier_factor` times the usual length, or the length at which length times weight, by which the
    vector enters the mean, is `outlier_factor` times the usual one: a client with few rows may differ more than
    one with many, and one with many is not limited because there are many with few.
    """
    influence = weighted_median(weights * lengths, weights)
    return outlier_factor * np.maximum(least, influence / weights)


def weighted_median(values: Array, weights: Array) -> float:
    """Return the smallest value such that all values up to it have more than half of the weight."""
    return weighted_quantile(values, weights, 0.5)


def weighted_quantile(values: Array, weights: Array, share: float) -> float:
    """Return the smallest value such that all values up to it have more than this share of the weight."""
    order = np.argsort(values, kind="stable")
    shares = np.cumsum(weights[order]) / weights.sum()
    return float(values[order[min(int(np.searchsorted(shares, share + 1e-9, side="right")), values.size - 1)]])


def norm(vector: Array) -> float:
    """Return ‖v‖, infinite if it is beyond float64."""
    with np.errstate(over="ignore"):
        return float(np.linalg.norm(vector))
