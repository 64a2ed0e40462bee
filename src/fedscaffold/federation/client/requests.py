"""The client's side of a round, over any transport: compute the update, store it, and only then send it.

After any error the text stays at the site, and a code leaves it.
"""

import hashlib
import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from fedscaffold.core.errors import FedScaffoldError, InvalidInput
from fedscaffold.core.privacy import ClientLevel, RecordLevel
from fedscaffold.core.protocols import Method
from fedscaffold.core.types import Array, ExchangedGradients, IntArray
from fedscaffold.federation.client.policy import SitePolicy
from fedscaffold.federation.client.store import (
    ClientStateFile,
    LostState,
    SentVector,
    SiteFolder,
    StoredClientState,
    initial_stored_state,
    reconcile,
)
from fedscaffold.federation.client.task import HasFingerprint, LocalTask, OpensPrivately, ProblemTask
from fedscaffold.federation.log import LOG
from fedscaffold.federation.messages import (
    ClientHello,
    ClientRefused,
    ClientUpdate,
    Decode,
    Payload,
    Reply,
    StateLost,
    TrainRequest,
    pack,
    place_of,
    plain_vector,
    unpack_request,
)  # fmt: skip
from fedscaffold.federation.refusals import Refusal, RefusalCode
from fedscaffold.federation.run_config import UnknownMethod
from fedscaffold.privacy.grid import clipped, discrete_gaussian, noise_units
from fedscaffold.simulation.block import Block, Protect, open_block

DEFAULT_POLICY = SitePolicy()


@dataclass(frozen=True, kw_only=True)
class Site:
    """A site as its transport knows it; each part is a function that is called when the part is needed.

    Parameters
    ----------
    client
        () → the index of this site's client.
    task
        () → its task; reads the site's data.
    state_dir
        () → the site's folder.
    policy
        () → the site's policy.
    methods
        Classes of methods that the site knows in addition to the library's and to installed packages'.
    """

    client: Callable[[], int]
    task: Callable[[], LocalTask]
    state_dir: Callable[[], str | os.PathLike[str]]
    policy: Callable[[], SitePolicy]
    methods: Sequence[type[Method]] = ()


def answer_request(read: Callable[[], Payload], site: Site, decode: Decode = plain_vector) -> Payload:
    """Return the reply to a request, which `read` takes out of the transport's message."""

    def answer() -> Reply:
        policy = _refuse_as(RefusalCode.POLICY_FILE, site.policy)
        request = _refuse_as(RefusalCode.BAD_REQUEST, lambda: unpack_request(read(), site.methods, decode))
        if request.client != site.client():
            raise Refusal(
                RefusalCode.WRONG_CLIENT,
                f"this node is client {site.client()}, but the request is for client {request.client}",
            )
        policy.check_request(request)
        folder = site.state_dir()  # before the data are read
        task = _refuse_as(RefusalCode.DATA_UNREADABLE, site.task, Exception)
        return handle_request(request, task, folder, policy)

    return pack(_or_code(answer, site))


def answer_hello(site: Site) -> Payload:
    """Return the reply to a greeting: the client's index, its number of parameters and, if allowed, of rows."""

    def answer() -> ClientHello:
        client, policy = site.client(), _refuse_as(RefusalCode.POLICY_FILE, site.policy)
        task = _refuse_as(RefusalCode.DATA_UNREADABLE, site.task, Exception)
        if policy.keep_back:
            task = _usable(task, policy, SiteFolder(site.state_dir()))
        return ClientHello(client=client, dim=task.dim, n_rows=task.n_rows if policy.tell_rows else None)

    return pack(_or_code(answer, site))


def _or_code(answer: Callable[[], Any], site: Site) -> Any:
    """Return the answer, or a code after an error, whose text goes to the site's log."""
    try:
        return answer()
    except Refusal as refusal:
        code, text = refusal.code, str(refusal)
    except Exception as error:  # its text may hold values of the site's table
        LOG.exception("the site's app failed")
        code, text = RefusalCode.INTERNAL, str(error)
    LOG.error("request rejected (%s): %s", code, text)
    try:
        SiteFolder(site.state_dir()).audit.write("refused", code=str(code), text=text)
    except (FedScaffoldError, OSError) as failed:  # a full disk, or no folder at all
        LOG.error("this could not be written to the site's audit log: %s", failed)
    try:
        client = site.client()
    except Refusal:
        client = 0
    return ClientRefused(client=client, code=code)


def _refuse_as(code: RefusalCode, part: Callable[[], Any], errors: type[Exception] = InvalidInput) -> Any:
    """Return a part of the answer; turn its errors into a `Refusal` with this code."""
    try:
        return part()
    except Refusal:
        raise
    except UnknownMethod as error:
        raise Refusal(RefusalCode.UNKNOWN_METHOD, str(error)) from None
    except errors as error:
        if not isinstance(error, InvalidInput):
            LOG.exception("the site's data cannot be used")
        raise Refusal(code, str(error)) from error


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
    config = request.config
    if request.client not in config.cohort(request.round):
        raise Refusal(
            RefusalCode.BAD_REQUEST,
            f"client {request.client} does not take part in round {request.round} of {config.name}",
        )
    site = state_dir if isinstance(state_dir, SiteFolder) else SiteFolder(state_dir)
    task = _usable(task, policy, site)
    if task.dim != config.dim:
        raise Refusal(
            RefusalCode.OTHER_MODEL,
            f"client {request.client}'s model has {task.dim} parameters, the server's {config.dim}; do they have "
            "the same columns or layers?",
        )
    policy.check_task(request, task)
    with site.open_run(request, policy) as file:
        data = task.fingerprint() if isinstance(task, HasFingerprint) else f"{task.n_rows} rows"
        stored = file.load() or initial_stored_state(config, request.resets, data)
        if stored.data != data:
            _data_changed(policy, site)
        try:
            stored = stored if request.phase == "gradient" else reconcile(stored, request)
        except LostState as lost:
            site.audit.write("state-lost", reason=lost.reason, **place_of(request))
            return StateLost(**place_of(request), reason=lost.reason)
        vector = _answer(request, task, stored, file, site, policy)[0, 0]
    place = {**place_of(request), "phase": request.phase}
    site.audit.write("answered", **place, sha256=_digest(vector), numbers=vector.size)
    return ClientUpdate(
        **place,
        vector=vector,
        n_rows=task.n_rows if policy.tell_rows else None,
        client_state=stored.client_state if request.return_state and policy.tell_state else None,
    )


def _usable(task: LocalTask, policy: SitePolicy, site: SiteFolder) -> LocalTask:
    """Return the task without the rows to keep back, which depend on the site's secret and their positions."""
    if policy.keep_back == 0.0:
        return task
    if not isinstance(task, ProblemTask):
        raise Refusal(RefusalCode.POLICY_KEEP_BACK)
    digest = hashlib.sha256(b"rows kept back" + site.secret).digest()
    rng = np.random.Generator(np.random.Philox(key=np.frombuffer(digest[:16], np.uint64)))
    return task.without_rows(rng.random(task.n_rows) < policy.keep_back)


def _data_changed(policy: SitePolicy, site: SiteFolder) -> None:
    """Raise or warn, as the policy says, since the data differ from the client's first answer."""
    text = "the client's data have changed since it joined the run"
    site.audit.write("data-changed", text=text)
    if policy.changed_data == "refuse":
        raise Refusal(RefusalCode.DATA_CHANGED, f"{text}; restore them, or start a new run")
    LOG.warning(text)


def _answer(
    request: TrainRequest, task: LocalTask, stored: StoredClientState, file: ClientStateFile, site: SiteFolder,
    policy: SitePolicy,
) -> Array:  # fmt: skip
    """Return a gradient at θ or the message after local steps, (1, 1, dim); the same as before if it was sent."""
    mean_gradient = "" if request.mean_gradient is None else _digest(request.mean_gradient)
    kept = stored.gradient if request.phase == "gradient" else stored.pending
    if kept is not None and kept.answers(request, mean_gradient):
        return kept.vector
    if stored.answers >= policy.max_rounds:
        raise Refusal(
            RefusalCode.POLICY_ROUNDS,
            f"{stored.answers} requests of this run were answered, and the policy allows {policy.max_rounds}",
        )
    exchanged = _exchanged_gradients(request, stored)
    _pay(request, task.n_rows, site, policy)
    info = request.config.round_info(request.round)
    with _open_block(request, task, _seed(request, policy, site)) as block:
        if request.phase == "gradient":
            vector = block.gradients(request.server, info)
        else:
            if request.config.method.exchange == "own":
                own = block.gradients(request.server, info)
                exchanged = ExchangedGradients(own, own[:, 0])
            vector = block.run_local_steps(stored.client_state, request.server, info, exchanged).sent
    vector = np.asarray(vector, np.float64)
    sent = SentVector(request.round, request.history, mean_gradient, vector, request.server)
    stored = stored._replace(answers=stored.answers + 1)
    file.save(stored._replace(gradient=sent) if request.phase == "gradient" else stored._replace(pending=sent))
    return sent.vector


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
    return ExchangedGradients(own.vector, request.mean_gradient[None, :])


def _pay(request: TrainRequest, n_rows: int, site: SiteFolder, policy: SitePolicy) -> None:
    """Record the cost of an answer before it is computed; raise if it exceeds the privacy budget.

    Every local step is a release that protects rows; a message is one that protects the site.
    """
    privacy = request.config.privacy
    if privacy is None or policy.epsilon is None:
        return
    from fedscaffold.privacy.budget import PrivacyBudget

    whole_site = isinstance(privacy, ClientLevel)
    try:
        budget = PrivacyBudget(
            file=site.budget_file, epsilon=policy.epsilon, delta=policy.delta_for(n_rows),
            noise_multiplier=privacy.noise_multiplier, records=None if whole_site else n_rows,
            run=request.run, run_epsilon=policy.run_epsilon,
        )  # fmt: skip
        budget.spend(1 if whole_site else request.config.local_steps_of(request.client, request.round))
    except InvalidInput as error:
        raise Refusal(RefusalCode.PRIVACY_BUDGET, str(error)) from None


def _seed(request: TrainRequest, policy: SitePolicy, site: SiteFolder) -> int:
    """Return the seed of the site's draws of records."""
    if policy.draws == "seed":
        return request.config.seed
    text = f"{request.run} {request.config.seed}".encode()
    return int.from_bytes(hashlib.sha256(b"draws" + site.secret + text).digest()[:8], "little")


def _open_block(request: TrainRequest, task: LocalTask, seed: int) -> AbstractContextManager[Block]:
    """Return the simulator's block of this client alone; its weight is not used, since the server aggregates."""
    config, client = request.config, request.client
    protect: Protect | None = None
    open_task = partial(task.open, seed=seed, client=client)
    if isinstance(config.privacy, RecordLevel):
        if not isinstance(task, OpensPrivately):
            raise Refusal(RefusalCode.POLICY_METHOD, "the site's kind of training cannot clip single records")
        open_task = partial(task.open_privately, privacy=config.privacy, seed=seed, client=client)
    elif isinstance(config.privacy, ClientLevel):
        protect = partial(_noisy_change, config.privacy)
    return open_block(
        config.method, open_task, config.batches,
        weights=np.ones(1), n_clients=config.n_clients, seed=config.seed, first=client, protect=protect,
    )  # fmt: skip


def _noisy_change(
    privacy: ClientLevel, sent: Array, theta: Array, round: int, clients: IntArray | None
) -> tuple[Array, Array]:
    """Return the change of θ, clipped to whole numbers of a unit, with noise, twice: to send and to keep.

    The noise is of the operating system. `messages.message_of` adds θ later, at both ends.
    """
    change = clipped(sent - theta[:, None], privacy.clip)
    if privacy.noise_multiplier > 0.0:  # without noise nothing is protected, and nothing paid for
        noise = discrete_gaussian(noise_units(privacy.noise_multiplier), change.size)
        change = change + noise.reshape(change.shape)
    units = change.astype(np.float64)
    return units, units


def _digest(vector: Array) -> str:
    return hashlib.sha256(np.ascontiguousarray(vector, dtype="<f8").data).hexdigest()
