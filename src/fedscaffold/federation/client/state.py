"""A client's state, together with its last update, which the server may have counted or not."""

from typing import Any, NamedTuple

from fedscaffold.core.types import Array
from fedscaffold.federation.history import extend_history
from fedscaffold.federation.messages import NEVER, RESTATED, LossReason, TrainRequest, shorten
from fedscaffold.federation.run_config import RunConfig


class PendingUpdate(NamedTuple):
    """An update that was computed, of which the client does not know yet whether the server counted it."""

    round: int
    history: str  # up to the beginning of that round
    mean_gradient: str  # digest of the request's, or "" if it had none
    sent: Array  # (1, 1, dim)
    remembered: Array  # the same, or the part that the client knows if a share of a sum's noise was added
    server: Any  # the server state from which the local steps started


class SentGradient(NamedTuple):
    """A gradient that was sent, from which the correction of the same round is made."""

    round: int
    history: str
    theta: Array  # (dim,)
    gradient: Array  # (1, 1, dim)


class StoredClientState(NamedTuple):
    """A client's memory between two requests."""

    resets: int  # how often all client states of the run were reset before this one
    last_counted: int  # the last round that `client_state` includes, or NEVER
    history: str | None  # after that round
    client_state: Any  # the method's, a named tuple of arrays (1, 1, dim)
    pending: PendingUpdate | None
    gradient: SentGradient | None
    answers: int  # how many different requests of the run were answered
    data: str  # fingerprint of the data from which the first was answered


class LostState(Exception):
    """The client does not have the state that the server counts on."""

    def __init__(self, reason: LossReason) -> None:
        super().__init__(reason)
        self.reason: LossReason = reason


def initial_stored_state(config: RunConfig, resets: int, data: str) -> StoredClientState:
    """Return a client's memory before its first round, or after a reset of all client states."""
    return StoredClientState(resets, NEVER, None, config.initial_client_state, None, None, 0, data)


def reconcile(stored: StoredClientState, request: TrainRequest) -> StoredClientState:
    """Return the stored state as of the round that the server counted last, or raise `LostState`.

    If the server counted the pending update, the method's rule enters it into the client state, shortened as the
    server shortened it. If the server did not, the update stays pending, and is sent again only when the same
    round is requested again. A state of another history of the run, such as an older copy of the client's file, is
    lost, and so is one that the server has limited, in place of which the server sends another.
    """
    if not request.config.has_client_state:
        return stored._replace(resets=request.resets)
    if request.client_state is not None:
        return stored._replace(
            resets=request.resets, last_counted=request.last_counted, history=request.counted_history,
            client_state=request.client_state, pending=None,
        )  # fmt: skip
    if request.last_counted == NEVER:
        if (stored.resets, stored.last_counted) == (request.resets, NEVER):
            return stored
        initial = initial_stored_state(request.config, request.resets, stored.data)
        return initial._replace(answers=stored.answers)
    if stored.resets != request.resets:
        raise LostState("missing" if stored.answers == 0 else "other-history")
    if stored.last_counted == request.last_counted:
        if stored.history != request.counted_history:
            raise LostState("other-history")
        return stored
    pending = stored.pending
    if pending is None or pending.round != request.last_counted or request.counted_scale == RESTATED:
        raise LostState("missing" if stored.answers == 0 else "other-history")
    after = request.server if request.server_after is None else request.server_after
    if extend_history(pending.history, pending.round, after) != request.counted_history:
        raise LostState("other-history")
    counted = shorten(pending.remembered, pending.server.theta, request.counted_scale)
    method = request.config.method_at(pending.round)
    updated = method.update_clients(stored.client_state, counted, pending.server, after)
    return stored._replace(
        last_counted=request.last_counted, history=request.counted_history, client_state=updated, pending=None
    )
