"""The client's side of a round, over any transport: compute the update, store it, and only then send it."""

import hashlib
import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial

import numpy as np

from fedscaffold.core.privacy import RecordLevel
from fedscaffold.core.types import Array, ExchangedGradients
from fedscaffold.federation.client.policy import SitePolicy
from fedscaffold.federation.client.protection import check_protection, message_protection, pay
from fedscaffold.federation.client.store import (
    ClientStateFile,
    LostState,
    PendingUpdate,
    SentGradient,
    SiteFolder,
    StoredClientState,
    initial_stored_state,
    reconcile,
)
from fedscaffold.federation.client.task import HasFingerprint, LocalTask, OpensPrivately
from fedscaffold.federation.log import LOG
from fedscaffold.federation.messages import ClientUpdate, StateLost, TrainRequest, place_of
from fedscaffold.federation.refusals import Refusal, RefusalCode
from fedscaffold.simulation.block import Block, open_block

DEFAULT_POLICY = SitePolicy()


def handle_request(
    request: TrainRequest,
    task: LocalTask,
    state_dir: str | os.PathLike[str] | SiteFolder,
    policy: SitePolicy = DEFAULT_POLICY,
) -> ClientUpdate | StateLost:
    """Compute the answer to a request if the site's policy allows it, and store it before it is sent.

    An update enters the client state only when a later request of the server says that it was counted. So a
    reply that is lost, late or rejected, and a client that is killed at any moment, leave Σ w_c ξ_c as it was. The
    same request again gives the same reply, from disk.

    Parameters
    ----------
    request
        The server's request.
    task
        The client's task.
    state_dir
        The site's folder, on a disk that outlives the node.
    policy
        The site's policy.

    Returns
    -------
    ClientUpdate or StateLost
        `StateLost` if the folder does not have the client state that the server counts on.

    Raises
    ------
    Refusal
        If the request breaks the policy, does not fit the run, or the data have changed.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> import fedscaffold as fs
    >>> from fedscaffold import federation as fed
    >>> method = fs.Scaffold(step_size=0.5, local_steps=1)
    >>> config = fed.RunConfig(name="demo", method=method, n_clients=2, dim=1)
    >>> request = fed.train_request(config, fed.initial_ledger(config, np.zeros(1)), client=0)
    >>> task = fed.ProblemTask(fs.problems.Ridge([np.ones((20, 1))], [np.ones(20)], l2=0.0), engine="reference")
    >>> with tempfile.TemporaryDirectory() as state_dir:
    ...     fed.handle_request(request, task, state_dir).vector
    array([0.5])
    """
    policy.check_request(request)
    check_protection(request, policy)
    config = request.config
    if request.client not in config.cohort(request.round):
        raise Refusal(
            RefusalCode.BAD_REQUEST,
            f"client {request.client} does not take part in round {request.round} of {config.name}",
        )
    site = state_dir if isinstance(state_dir, SiteFolder) else SiteFolder(state_dir)
    task = policy.usable(task, site.secret if policy.keep_back else b"")
    if task.dim != config.dim:
        raise Refusal(
            RefusalCode.OTHER_MODEL,
            f"client {request.client}'s model has {task.dim} parameters, the server's {config.dim}; do they have "
            "the same columns or layers?",
        )
    policy.check_task(request, task)
    seed = policy.seed_of(request, site.secret if policy.draws == "secret" else b"")
    with site.open_run(request, policy) as file:
        data = task.fingerprint() if isinstance(task, HasFingerprint) else f"{task.n_rows} rows"
        stored = file.load() or initial_stored_state(config, request.resets, data)
        _check_data(stored, data, policy, site)
        if request.phase == "gradient":
            vector = _gradient(request, task, seed, stored, file, policy)
        else:
            try:
                stored = reconcile(stored, request)
            except LostState as lost:
                site.audit.write("state-lost", reason=lost.reason, **place_of(request))
                return StateLost(**place_of(request), reason=lost.reason)
            paid = partial(pay, request, task.n_rows, site, policy)
            vector = _local_steps(request, task, seed, stored, file, policy, paid)
    flat = np.ascontiguousarray(vector[0, 0], dtype=np.float64)
    place = {**place_of(request), "phase": request.phase}
    site.audit.write("answered", **place, sha256=_digest(flat), numbers=flat.size)
    return ClientUpdate(
        **place,
        vector=flat,
        n_rows=task.n_rows if policy.tell_rows else None,
        client_state=stored.client_state if request.return_state and policy.tell_state else None,
    )


def _gradient(
    request: TrainRequest, task: LocalTask, seed: int, stored: StoredClientState, file: ClientStateFile,
    policy: SitePolicy,
) -> Array:  # fmt: skip
    """Return the gradient at θ, from the stored state if the request was answered before."""
    sent, theta = stored.gradient, request.server.theta[0]
    same = sent is not None and (sent.round, sent.history) == (request.round, request.history)
    if sent is not None and same and np.array_equal(sent.theta, theta):
        return sent.gradient
    _check_answers(stored, policy)
    with _open_block(request, task, seed) as block:
        gradient = block.gradients(request.server, request.config.round_info(request.round))
    kept = SentGradient(request.round, request.history, theta, gradient)
    file.save(stored._replace(gradient=kept, answers=stored.answers + 1))
    return gradient


def _local_steps(
    request: TrainRequest, task: LocalTask, seed: int, stored: StoredClientState, file: ClientStateFile,
    policy: SitePolicy, paid: Callable[[], None],
) -> Array:  # fmt: skip
    """Return the message after local steps, from the stored state if the request was answered before."""
    mean_gradient = "" if request.mean_gradient is None else _digest(request.mean_gradient)
    pending = stored.pending
    if (
        pending is not None
        and (pending.round, pending.history, pending.mean_gradient)
        == (request.round, request.history, mean_gradient)
        and all(np.array_equal(a, b) for a, b in zip(pending.server, request.server, strict=True))
    ):
        return pending.sent
    _check_answers(stored, policy)
    exchanged = _exchanged_gradients(request, stored)
    paid()
    with _open_block(request, task, seed) as block:
        info = request.config.round_info(request.round)
        if request.config.method.exchange == "own":
            own = block.gradients(request.server, info)
            exchanged = ExchangedGradients(own, own[:, 0])
        result = block.run_local_steps(stored.client_state, request.server, info, exchanged)
    update = PendingUpdate(request.round, request.history, mean_gradient, result.sent, request.server)
    file.save(stored._replace(answers=stored.answers + 1, pending=update))
    return update.sent


def _open_block(request: TrainRequest, task: LocalTask, seed: int) -> AbstractContextManager[Block]:
    """Return the simulator's block of this client alone; its weight is not used, since the server aggregates."""
    config, client = request.config, request.client
    open_task = partial(task.open, seed=seed, client=client)
    if isinstance(config.privacy, RecordLevel):
        if not isinstance(task, OpensPrivately):
            raise Refusal(RefusalCode.POLICY_METHOD, "the site's kind of training cannot clip single records")
        open_task = partial(task.open_privately, privacy=config.privacy, seed=seed, client=client)
    return open_block(
        config.method, open_task, config.batches,
        weights=np.ones(1), n_clients=config.n_clients, seed=config.seed, first=client,
        protect=message_protection(request),
    )  # fmt: skip


def _exchanged_gradients(request: TrainRequest, stored: StoredClientState) -> ExchangedGradients | None:
    if request.mean_gradient is None:
        return None
    own = stored.gradient
    if own is None or (own.round, own.history) != (request.round, request.history):
        raise Refusal(
            RefusalCode.NO_GRADIENT,
            f"client {request.client} no longer has the gradient that it sent in round {request.round}; the "
            "server goes on without it and asks again in the next round",
        )
    return ExchangedGradients(own.gradient, request.mean_gradient[None, :])


def _check_answers(stored: StoredClientState, policy: SitePolicy) -> None:
    if stored.answers >= policy.max_rounds:
        raise Refusal(
            RefusalCode.POLICY_ROUNDS,
            f"{stored.answers} requests of this run were answered, and the policy allows {policy.max_rounds}",
        )


def _check_data(stored: StoredClientState, data: str, policy: SitePolicy, site: SiteFolder) -> None:
    """Raise or warn if the data differ from the client's first answer, as the policy says."""
    if stored.data == data:
        return
    text = "the client's data have changed since it joined the run"
    site.audit.write("data-changed", text=text)
    if policy.changed_data == "refuse":
        raise Refusal(RefusalCode.DATA_CHANGED, f"{text}; restore them, or start a new run")
    LOG.warning(text)


def _digest(vector: Array) -> str:
    return hashlib.sha256(np.ascontiguousarray(vector, dtype="<f8").data).hexdigest()
