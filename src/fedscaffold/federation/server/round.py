"""The server's side of a round, over any transport: send requests, check the replies, repeat, close the round."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fedscaffold.core.checks import shown
from fedscaffold.core.types import Array, IntArray
from fedscaffold.federation.log import LOG
from fedscaffold.federation.messages import (
    RESTATED,
    ClientFailed,
    ClientRefused,
    ClientUpdate,
    Reply,
    StateLost,
    TrainRequest,
    shorten,
)  # fmt: skip
from fedscaffold.federation.refusals import RefusalCode
from fedscaffold.federation.run_config import RunConfig
from fedscaffold.federation.server import checks
from fedscaffold.federation.server.backup import StateBackup
from fedscaffold.federation.server.ledger import (
    Ledger,
    close_round,
    gradient_request,
    reset_client_states,
    train_request,
    weighted_mean,
)  # fmt: skip
from fedscaffold.federation.server.rules import RoundRules, TooFewClients

SendRequests = Callable[[Sequence[TrainRequest]], Iterable[Reply]]
MOST_LINES = 10  # in the log about updates of one round that are shortened; the audit log has them all
LOSS = {"missing": "it has none", "other-history": "it has one of another history"}
MAY_PASS = {RefusalCode.BUSY, RefusalCode.CANNOT_WRITE, RefusalCode.DATA_UNREADABLE, RefusalCode.INTERNAL}


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
        Reasons by client whose update the server rejected, or that rejected the request.
    shortened
        Share of the distance from θ that is left, by client whose update was shortened.
    limited
        Share of the distance from the others' states that is left, by client whose state was too far away.

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
    shortened: Mapping[int, float] = field(default_factory=dict)
    limited: Mapping[int, float] = field(default_factory=dict)


def run_round(
    config: RunConfig,
    ledger: Ledger,
    weights: Array,
    send: SendRequests,
    *,
    backup: StateBackup,
    rules: RoundRules,
    limit: float,
    n_rows: IntArray | None = None,
) -> RoundResult:
    """Send requests to the round's cohort, and close the round with the updates that pass the checks.

    A client that lost its state receives the server's backup of it, and is asked again. Without a backup,
    all client states are reset, in this same round.

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
        The conditions for closing the round.
    limit
        The absolute value of θ's entries beyond which the run counts as diverged.
    n_rows
        (n_clients,): the clients' numbers of rows at the beginning of the run, 0 if they are not known. A
        client that sends another number is named in the log.

    Examples
    --------
    A federation in one process, with the numbers of `fedscaffold.run`:

    >>> import tempfile
    >>> import numpy as np
    >>> import fedscaffold as fs
    >>> from fedscaffold import federation as fed
    >>> x = np.arange(6.0).reshape(2, 3, 1)
    >>> policy = fed.SitePolicy.for_simulation()
    >>> problem = fs.problems.Ridge(x, x[..., 0] + 1.0, l2=0.1)
    >>> method = fs.Scaffold(step_size=0.02, local_steps=3)
    >>> config = fed.RunConfig(name="demo", method=method, n_clients=2, dim=1)
    >>> ledger = fed.initial_ledger(config, np.zeros(1))
    >>> works = [fed.ProblemTask(problem.subset([c]), engine="reference") for c in range(2)]
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     for _ in range(5):
    ...         result = fed.run_round(
    ...             config, ledger, problem.weights,
    ...             lambda requests: [fed.handle_request(r, works[r.client], folder, policy) for r in requests],
    ...             backup=fed.StateBackup(None), rules=fed.RoundRules(), limit=1e12,
    ...         )
    ...         ledger = result.ledger
    >>> result.counted
    (0, 1)
    >>> trace = fs.run(problem, method, rounds=5, engine="reference", progress=False)
    >>> bool((ledger.server.theta == trace.theta).all())
    True
    """
    round = _Round(config, ledger, weights, send, backup, rules, n_rows)
    cohort = config.cohort(ledger.round).tolist()
    mean_gradient = None
    if config.method.exchange in ("minibatch", "full"):
        gradients = round.collect_gradients(cohort)
        mean_gradient = weighted_mean(gradients, weights)[0][0]
        cohort = sorted(gradients)
    without_backup = round.collect_updates(cohort, mean_gradient)
    while without_backup is not None:
        LOG.warning(
            "round %d: client %d lost its state and the server has no backup of it: all client states are reset",
            ledger.round, without_backup,
        )  # fmt: skip
        round.ledger = reset_client_states(config, round.ledger)
        without_backup = round.collect_updates(cohort, mean_gradient)
    found = {client: update.vector for client, update in round.found.items()}
    states = backup.load_all(config, round.ledger, found)
    states |= {client: u.client_state for client, u in round.found.items() if u.client_state is not None}
    theta, scales = round.ledger.server.theta[0], round.lengths.scales
    counted = {client: shorten(vector, theta, scales.get(client, 1.0)) for client, vector in found.items()}
    limited = checks.check_states(config, round.ledger, counted, states, weights, rules.outlier_factor)
    counted |= limited.vectors
    after = close_round(
        config, round.ledger, counted, weights, scales=scales | dict.fromkeys(limited.vectors, RESTATED),
        distance=round.lengths.usual, spread=limited.spread, limit=limit,
    )  # fmt: skip
    unknown = backup.save_round(config, counted, states, round.ledger, after)
    if unknown:
        LOG.warning("round %d: the states of clients %s are not in the backup yet", ledger.round, unknown)
    _log_shares(ledger.round, "update", scales)
    _log_shares(ledger.round, "control variate", limited.shares)
    return RoundResult(after, tuple(sorted(counted)), round.refused, scales, limited.shares)


class _Round:
    """One round while it is open: the updates that came, and the clients that are out of it."""

    def __init__(
        self, config: RunConfig, ledger: Ledger, weights: Array, send: SendRequests, backup: StateBackup,
        rules: RoundRules, n_rows: IntArray | None,
    ) -> None:  # fmt: skip
        self.config, self.ledger, self.weights, self.send = config, ledger, weights, send
        self.backup, self.rules, self.n_rows = backup, rules, n_rows
        self.refused: dict[int, str] = {}
        self.found: dict[int, ClientUpdate] = {}
        self.lengths = checks.Lengths(0.0, {}, {})

    def collect_updates(self, cohort: Sequence[int], mean_gradient: Array | None) -> int | None:
        """Ask until enough updates count, and return None, or return a client whose lost state has no backup."""
        self.found = {}
        restored: dict[int, Any] = {}
        for client in cohort:
            if self.ledger.counted_scale[client] == RESTATED:
                restored[client] = self.backup.load(self.config, self.ledger, client)
                if restored[client] is None:
                    return client
        unknown = self.backup.missing(self.config, self.ledger, cohort)
        failures = 0
        while True:
            requests = {
                client: train_request(
                    self.config, self.ledger, client, client_state=restored.get(client),
                    mean_gradient=mean_gradient, return_state=client in unknown,
                )
                for client in self._silent(cohort)
            }  # fmt: skip
            ask_again = False
            for reply in _by_client(self.send(list(requests.values()))):
                if isinstance(reply, StateLost) and reply.client in requests and reply.client not in restored:
                    state = self.backup.load(self.config, self.ledger, reply.client)
                    if state is None:
                        return reply.client
                    LOG.warning(
                        "round %d: client %d lost its state (%s) and receives the backup", self.ledger.round,
                        reply.client, LOSS[reply.reason],
                    )  # fmt: skip
                    restored[reply.client] = state
                    ask_again = True
                else:
                    self._enter(reply, requests)
            self._check_lengths()
            if ask_again:
                continue
            if self._enough(cohort):
                self.found = dict(sorted(self.found.items()))
                return None
            failures = self._count_failure(cohort, failures)

    def collect_gradients(self, cohort: Sequence[int]) -> dict[int, Array]:
        """Return ĝ_c(θ) by client; one that sends this and then no update leaves Σ w_c ξ_c ≠ 0 in this round."""
        failures = 0
        while True:
            silent = self._silent(cohort)
            requests = {client: gradient_request(self.config, self.ledger, client) for client in silent}
            for reply in _by_client(self.send(list(requests.values()))):
                self._enter(reply, requests)
            gradients, refused = checks.clip_gradients(
                {client: update.vector for client, update in self.found.items()}, self.weights,
                self.rules.outlier_factor,
            )  # fmt: skip
            for client, reason in refused.items():
                del self.found[client]
                self._refuse(client, reason)
            if self._enough(cohort):
                return dict(sorted(gradients.items()))
            failures = self._count_failure(cohort, failures)

    def _enter(self, reply: Reply, requests: Mapping[int, TrainRequest]) -> None:
        """Keep an update, or the reason why there is none."""
        client = reply.client
        if client not in requests or isinstance(reply, StateLost):
            return
        if isinstance(reply, ClientFailed):
            LOG.warning(
                "round %d: client %d failed: %s", self.ledger.round, client, shown(reply.reason, longest=300)
            )
        elif isinstance(reply, ClientRefused):
            LOG.warning(
                "round %d: client %d rejects the request: %s", self.ledger.round, client, reply.code.meaning
            )
            if reply.code not in MAY_PASS:
                self.refused[client] = f"it rejects the request: {reply.code.meaning} ({reply.code})"
        else:
            reason = checks.malformed(requests[client], reply)
            if reason is not None:
                self._refuse(client, reason)
                return
            self.found[client] = reply
            before = 0 if self.n_rows is None else int(self.n_rows[client])
            if before and reply.n_rows is not None and reply.n_rows != before:
                LOG.warning(
                    "round %d: client %d has %d rows now, and had %d when the run began", self.ledger.round,
                    client, reply.n_rows, before,
                )  # fmt: skip

    def _check_lengths(self) -> None:
        """Shorten or reject updates that are too long."""
        while self.found:
            sent = {client: update.vector for client, update in self.found.items()}
            self.lengths = checks.check_lengths(self.ledger, sent, self.weights, self.rules.outlier_factor)
            for client, reason in self.lengths.refused.items():
                del self.found[client]
                self._refuse(client, reason)
            if not self.lengths.refused:
                return

    def _refuse(self, client: int, reason: str) -> None:
        LOG.warning("round %d: client %d's update is rejected: %s", self.ledger.round, client, reason)
        self.refused[client] = reason

    def _silent(self, cohort: Sequence[int]) -> list[int]:
        return [client for client in cohort if client not in self.found and client not in self.refused]

    def _enough(self, cohort: Sequence[int]) -> bool:
        return len(self.found) >= min(self.rules.min_clients, len(cohort))

    def _count_failure(self, cohort: Sequence[int], failures: int) -> int:
        """Return the number of failed attempts with this one; raise `TooFewClients` if no other is allowed."""
        silent = self._silent(cohort)
        if failures + 1 < self.rules.attempts and silent:
            LOG.warning(
                "round %d: %d of %d clients answered; asking %s again", self.ledger.round, len(self.found),
                len(cohort), silent,
            )  # fmt: skip
            return failures + 1
        raise TooFewClients(
            f"round {self.ledger.round} of {self.config.name}: {len(self.found)} of {len(cohort)} clients sent "
            f"updates that count, {min(self.rules.min_clients, len(cohort))} are needed; without an answer: "
            f"{silent or 'none'}, rejected: {self.refused or 'none'}. Start the server again when they are "
            "back: it continues from this round"
        )


def _log_shares(round: int, what: str, shares: Mapping[int, float]) -> None:
    """Log the shares that are left of shortened updates or control variates."""
    for client, share in sorted(shares.items(), key=lambda item: item[1])[:MOST_LINES]:
        LOG.warning("round %d: client %d's %s is shortened to %.3g of its length", round, client, what, share)
    if len(shares) > MOST_LINES:
        LOG.warning("round %d: %d more (%s) are shortened by less", round, len(shares) - MOST_LINES, what)


def _by_client(replies: Iterable[Reply]) -> list[Reply]:
    return sorted(replies, key=lambda reply: reply.client)
