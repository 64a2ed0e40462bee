"""The server's side of a round, over any transport: send requests, check the replies, repeat, close the round."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from fedscaffold.core.types import Array
from fedscaffold.federation import checks
from fedscaffold.federation.ledger import (
    Ledger,
    close_round,
    gradient_request,
    reset_client_states,
    train_request,
    weighted_mean,
)
from fedscaffold.federation.log import LOG
from fedscaffold.federation.messages import ClientFailed, Reply, StateLost, TrainRequest
from fedscaffold.federation.round_rules import RoundRules, TooFewClients
from fedscaffold.federation.run_config import RunConfig
from fedscaffold.federation.state_backup import StateBackup

FILES_AT_ONCE = 8
SendRequests = Callable[[Sequence[TrainRequest]], Iterable[Reply]]


@dataclass(frozen=True, eq=False)
class RoundResult:
    """A round that was closed.

    Parameters
    ----------
    ledger
        The server's state after the round.
    counted
        Clients whose updates were counted, in ascending order.
    refused
        Clients whose updates were refused, and why.

    Examples
    --------
    >>> import numpy as np
    >>> import fedscaffold as fs
    >>> from fedscaffold.federation import RoundResult, RunConfig, initial_ledger
    >>> config = RunConfig(name="demo", method=fs.FedAvg(step_size=0.1, local_steps=5), n_clients=3, dim=2)
    >>> result = RoundResult(initial_ledger(config, np.zeros(2)), (0, 2), {1: "its shape is (3,), not (2,)"})
    >>> result.counted
    (0, 2)
    """

    ledger: Ledger
    counted: tuple[int, ...]
    refused: Mapping[int, str]


def run_round(
    config: RunConfig,
    ledger: Ledger,
    weights: Array,
    send: SendRequests,
    *,
    backup: StateBackup,
    rules: RoundRules,
    limit: float,
) -> RoundResult:
    """Send requests to the round's cohort, and close the round with the updates that pass the checks.

    A client that lost its state receives the server's backup of it, and is asked again. If there is no backup, all
    client states are reset, in this same round.

    Parameters
    ----------
    config
        The run's configuration.
    ledger
        The server's state before the round.
    weights
        The clients' weights, shape (n_clients,), summing to one.
    send
        The transport: a function that sends requests and returns the replies, in any order.
    backup
        The server's backup of client states.
    rules
        When the round may be closed.
    limit
        The absolute value of θ's entries beyond which the run counts as diverged.

    Examples
    --------
    A federation in one process, with the numbers of `fedscaffold.run`:

    >>> import tempfile
    >>> import numpy as np
    >>> import fedscaffold as fs
    >>> from fedscaffold import federation as fed
    >>> x = np.arange(6.0).reshape(2, 3, 1)
    >>> problem = fs.problems.Ridge(x, x[..., 0] + 1.0, l2=0.1)
    >>> method = fs.Scaffold(step_size=0.02, local_steps=3)
    >>> config = fed.RunConfig(name="demo", method=method, n_clients=2, dim=1)
    >>> ledger = fed.initial_ledger(config, np.zeros(1))
    >>> works = [fed.ProblemWork(problem.subset([c]), engine="reference") for c in range(2)]
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     for _ in range(5):
    ...         result = fed.run_round(
    ...             config, ledger, problem.weights,
    ...             lambda requests: [fed.handle_request(r, works[r.client], folder) for r in requests],
    ...             backup=fed.StateBackup(None), rules=fed.RoundRules(), limit=1e12,
    ...         )
    ...         ledger = result.ledger
    >>> result.counted
    (0, 1)
    >>> trace = fs.run(problem, method, rounds=5, engine="reference", progress=False)
    >>> bool((ledger.server.theta == trace.theta).all())
    True
    """
    refused: dict[int, str] = {}
    cohort = config.cohort(ledger.round).tolist()
    mean_gradient = None
    if config.method.exchange is not None:
        gradients = _collect_gradients(config, ledger, cohort, send, rules, refused)
        mean_gradient = weighted_mean(gradients, weights)[0][0]
        cohort = sorted(gradients)

    while True:
        sent, without_backup = _collect_updates(
            config, ledger, cohort, send, backup, rules, refused, mean_gradient
        )
        if without_backup is None:
            break
        LOG.warning(
            "round %d: client %d lost its state and the server has no backup of it: all client states are reset",
            ledger.round, without_backup,
        )  # fmt: skip
        ledger = reset_client_states(config, ledger)
    after = close_round(config, ledger, sent, weights, limit=limit)
    with ThreadPoolExecutor(FILES_AT_ONCE) as pool:  # mostly waiting for the disk
        list(pool.map(lambda client: backup.save_update(config, client, sent[client], ledger, after), sent))
    return RoundResult(after, tuple(sorted(sent)), refused)


def _collect_updates(
    config: RunConfig,
    ledger: Ledger,
    cohort: Sequence[int],
    send: SendRequests,
    backup: StateBackup,
    rules: RoundRules,
    refused: dict[int, str],
    mean_gradient: Array | None,
) -> tuple[dict[int, Array], int | None]:
    """The vectors that count, by client; or a client that lost its state, of which there is no backup."""
    sent: dict[int, Array] = {}
    restored: dict[int, object] = {}
    failures = 0
    while True:
        requests = {
            client: train_request(
                config, ledger, client, client_state=restored.get(client), mean_gradient=mean_gradient
            )
            for client in cohort
            if client not in sent and client not in refused
        }
        ask_again = False
        for reply in _by_client(send(list(requests.values()))):
            if isinstance(reply, StateLost):
                if reply.client not in requests or reply.client in restored:
                    continue
                counted = int(ledger.last_counted[reply.client])
                state = backup.load(config, reply.client, last_counted=counted, resets=ledger.resets)
                if state is None:
                    return {}, reply.client
                LOG.warning(
                    "round %d: client %d lost its state and receives the backup", ledger.round, reply.client
                )
                restored[reply.client] = state
                ask_again = True
            else:
                _enter(reply, requests, sent, refused)
        for client, reason in checks.distant_updates(ledger, sent, rules.outlier_factor).items():
            del sent[client]
            _refuse(ledger.round, client, reason, refused)
        if ask_again:
            continue
        if _enough(sent, cohort, rules):
            return dict(sorted(sent.items())), None
        failures = _count_failure(config, ledger, cohort, sent, refused, rules, failures)


def _collect_gradients(
    config: RunConfig,
    ledger: Ledger,
    cohort: Sequence[int],
    send: SendRequests,
    rules: RoundRules,
    refused: dict[int, str],
) -> dict[int, Array]:
    """ĝ_c(θ) by client. A client that sends this and then no update leaves Σ w_c ξ_c ≠ 0 for this one round."""
    found: dict[int, Array] = {}
    failures = 0
    while True:
        requests = {c: gradient_request(config, ledger, c) for c in cohort if c not in found and c not in refused}
        for reply in _by_client(send(list(requests.values()))):
            _enter(reply, requests, found, refused)
        for client, reason in checks.large_gradients(found, rules.outlier_factor).items():
            del found[client]
            _refuse(ledger.round, client, reason, refused)
        if _enough(found, cohort, rules):
            return dict(sorted(found.items()))
        failures = _count_failure(config, ledger, cohort, found, refused, rules, failures)


def _by_client(replies: Iterable[Reply]) -> list[Reply]:
    return sorted(replies, key=lambda reply: reply.client)


def _enter(
    reply: Reply, requests: Mapping[int, TrainRequest], found: dict[int, Array], refused: dict[int, str]
) -> None:
    """Put a reply's vector among those found, or the reason why not among those refused."""
    if reply.client not in requests or isinstance(reply, StateLost):
        return
    round = requests[reply.client].round
    if isinstance(reply, ClientFailed):
        LOG.warning("round %d: client %d failed: %s", round, reply.client, reply.reason)
        return
    reason = checks.malformed(requests[reply.client], reply)
    if reason is None:
        found[reply.client] = reply.vector
    else:
        _refuse(round, reply.client, reason, refused)


def _refuse(round: int, client: int, reason: str, refused: dict[int, str]) -> None:
    LOG.warning("round %d: client %d's update is refused: %s", round, client, reason)
    refused[client] = reason


def _enough(found: Mapping[int, Array], cohort: Sequence[int], rules: RoundRules) -> bool:
    return len(found) >= min(rules.min_clients, len(cohort))


def _count_failure(
    config: RunConfig,
    ledger: Ledger,
    cohort: Sequence[int],
    found: Mapping[int, Array],
    refused: Mapping[int, str],
    rules: RoundRules,
    failures: int,
) -> int:
    """The number of failed attempts, this one included; raises `TooFewClients` if no further one is allowed."""
    silent = [client for client in cohort if client not in found and client not in refused]
    if failures + 1 < rules.attempts and silent:
        LOG.warning(
            "round %d: %d of %d clients answered; asking %s again", ledger.round, len(found), len(cohort), silent
        )
        return failures + 1
    raise TooFewClients(
        f"round {ledger.round} of {config.name}: {len(found)} of {len(cohort)} clients sent updates that count, "
        f"{min(rules.min_clients, len(cohort))} are needed; no answer from {silent or 'nobody'}, refused: "
        f"{dict(refused) or 'nobody'}. Start the server again when they are back; it continues from this round"
    )


def weights_from_rows(n_rows: Mapping[int, int], n_clients: int) -> Array:
    """w_c in proportion to the clients' numbers of rows, shape (n_clients,), summing to one."""
    given = np.array([n_rows[client] for client in range(n_clients)], dtype=np.float64)
    return given / given.sum()
