"""The server's side of a round, over any transport: send requests, check the replies, repeat, close the round."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fedscaffold.core.checks import positive, shown, whole_number
from fedscaffold.core.errors import FedScaffoldError, InvalidInput
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
    message_of,
    shorten,
)  # fmt: skip
from fedscaffold.federation.refusals import RefusalCode
from fedscaffold.federation.run_config import RunConfig
from fedscaffold.federation.server import checks
from fedscaffold.federation.server.files import StateBackup
from fedscaffold.federation.server.ledger import (
    Ledger,
    close_round,
    reset_client_states,
    train_request,
    weighted_mean,
)  # fmt: skip

SendRequests = Callable[[Sequence[TrainRequest]], Iterable[Reply]]
MOST_LINES = 10  # in the log about updates of one round that are shortened; the audit log has them all
LOSS = {"missing": "it has none", "other-history": "it has one of another history"}
MAY_PASS = {RefusalCode.BUSY, RefusalCode.CANNOT_WRITE, RefusalCode.DATA_UNREADABLE, RefusalCode.INTERNAL}


class TooFewClients(FedScaffoldError):
    """A round could not be closed; the server's files are as after the round before."""


@dataclass(frozen=True, kw_only=True)
class RoundRules:
    """The conditions for closing a round, and the limit of the lengths of updates.

    Parameters
    ----------
    min_clients
        Number of updates that a round needs. The round waits for them; beyond them it is closed without the
        clients that do not answer. At most the size of the cohort counts, so that a large number means all of
        them.
    attempts
        How often clients that did not answer are asked in a round before the run stops. It can be continued later.
    outlier_factor
        The largest distance ‖sent − θ‖ in multiples of the usual one, a weighted median of the round. A longer
        update counts shortened to that; one of more than 1000 times is rejected. A client is measured by length
        times weight if that allows it more. If the server keeps a backup of client states, their distances from
        the mean of the others' are limited too, since a client could otherwise push θ a little in every round: to
        1.75·outlier_factor times the usual one, times 1 + 2/(n − 1) for n others. None for no limit, for
        federations whose members trust each other.

    Examples
    --------
    >>> from fedscaffold.federation import RoundRules
    >>> RoundRules(min_clients=3)
    RoundRules(min_clients=3, attempts=5, outlier_factor=1.75)
    """

    min_clients: int = 2
    attempts: int = 5
    outlier_factor: float | None = 1.75

    def __post_init__(self) -> None:
        whole_number("min_clients", self.min_clients, least=1)
        whole_number("attempts", self.attempts, least=1)
        if self.outlier_factor is not None and positive("outlier_factor", self.outlier_factor) <= 1.0:
            raise InvalidInput(f"outlier_factor must be more than 1, got {self.outlier_factor!r}")


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
    found = round.found
    states = backup.load_all(config, round.ledger, found) | round.states
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


@dataclass
class _Round:
    """One round while it is open: the replies that count so far, and the clients that are out of it."""

    config: RunConfig
    ledger: Ledger
    weights: Array
    send: SendRequests
    backup: StateBackup
    rules: RoundRules
    n_rows: IntArray | None
    refused: dict[int, str] = field(default_factory=dict)
    found: dict[int, Array] = field(default_factory=dict)  # vectors that count
    states: dict[int, Any] = field(default_factory=dict)  # client states that the server asked for
    lengths: checks.Lengths = field(default_factory=lambda: checks.Lengths(0.0, {}, {}))

    def collect_updates(self, cohort: Sequence[int], mean_gradient: Array | None) -> int | None:
        """Ask until enough updates count, and return None, or return a client whose lost state has no backup."""
        restored: dict[int, Any] = {}
        for client in cohort:
            if self.ledger.counted_scale[client] == RESTATED:
                restored[client] = self.backup.load(self.config, self.ledger, client)
                if restored[client] is None:
                    return client
        unknown = self.backup.missing(self.config, self.ledger, cohort)

        def request(client: int) -> TrainRequest:
            return train_request(
                self.config, self.ledger, client, client_state=restored.get(client),
                mean_gradient=mean_gradient, return_state=client in unknown,
            )  # fmt: skip

        def check() -> dict[int, str]:
            self.lengths = checks.check_lengths(self.ledger, self.found, self.weights, self.rules.outlier_factor)
            return self.lengths.refused

        self.found, self.states = {}, {}
        return self._collect(cohort, request, check, restored)

    def collect_gradients(self, cohort: Sequence[int]) -> dict[int, Array]:
        """Return ĝ_c(θ) by client; one that sends this and then no update leaves Σ w_c ξ_c ≠ 0 in this round."""
        clipped: dict[int, Array] = {}

        def request(client: int) -> TrainRequest:
            return train_request(self.config, self.ledger, client, phase="gradient")

        def check() -> dict[int, str]:
            nonlocal clipped
            clipped, refused = checks.clip_gradients(self.found, self.weights, self.rules.outlier_factor)
            return refused

        self._collect(cohort, request, check, {})
        return dict(sorted(clipped.items()))

    def _collect(
        self, cohort: Sequence[int], request_of: Callable[[int], TrainRequest],
        check: Callable[[], dict[int, str]], restored: dict[int, Any],
    ) -> int | None:  # fmt: skip
        """Ask until enough vectors pass the check, or return a client whose lost state has no backup.

        Clients that lost their state are asked again with the backup, which enters `restored`.
        """
        attempts = 0
        while True:
            requests = {client: request_of(client) for client in self._silent(cohort)}
            ask_again = False
            for reply in sorted(self.send(list(requests.values())), key=lambda reply: reply.client):
                if reply.client not in requests:
                    continue
                if not isinstance(reply, StateLost):
                    self._enter(reply, requests[reply.client])
                elif requests[reply.client].phase == "train" and reply.client not in restored:
                    state = self.backup.load(self.config, self.ledger, reply.client)
                    if state is None:
                        return reply.client
                    self._warn(
                        f"client {reply.client} lost its state ({LOSS[reply.reason]}) and receives the backup"
                    )
                    restored[reply.client] = state
                    ask_again = True
            while refused := check():
                for client, reason in refused.items():
                    del self.found[client]
                    self._refuse(client, reason)
            if ask_again:
                continue
            needed = min(self.rules.min_clients, len(cohort))
            if len(self.found) >= needed:
                self.found = dict(sorted(self.found.items()))
                return None
            attempts, silent = attempts + 1, self._silent(cohort)
            if attempts >= self.rules.attempts or not silent:
                raise TooFewClients(
                    f"round {self.ledger.round} of {self.config.name}: {len(self.found)} of {len(cohort)} clients "
                    f"sent updates that count, {needed} are needed; without an answer: {silent or 'none'}, "
                    f"rejected: {self.refused or 'none'}. Start the server again when they are back: it continues "
                    "from this round"
                )
            self._warn(f"{len(self.found)} of {len(cohort)} clients answered; asking {silent} again")

    def _enter(self, reply: Reply, request: TrainRequest) -> None:
        """Keep a vector, or the reason why there is none."""
        client = reply.client
        if isinstance(reply, ClientFailed):
            self._warn(f"client {client} failed: {shown(reply.reason, longest=300)}")
        elif isinstance(reply, ClientRefused):
            self._warn(f"client {client} rejects the request: {reply.code.meaning}")
            if reply.code not in MAY_PASS:
                self.refused[client] = f"it rejects the request: {reply.code.meaning} ({reply.code})"
        elif isinstance(reply, ClientUpdate):
            reason = checks.malformed(request, reply)
            if reason is not None:
                self._refuse(client, reason)
                return
            self.found[client] = message_of(self.config, reply.vector, request.server.theta[0])
            if reply.client_state is not None:
                self.states[client] = reply.client_state
            before = 0 if self.n_rows is None else int(self.n_rows[client])
            if before and reply.n_rows is not None and reply.n_rows != before:
                self._warn(f"client {client} has {reply.n_rows} rows now, and had {before} when the run began")

    def _refuse(self, client: int, reason: str) -> None:
        self._warn(f"client {client}'s update is rejected: {reason}")
        self.refused[client] = reason

    def _warn(self, text: str) -> None:
        LOG.warning("round %d: %s", self.ledger.round, text)

    def _silent(self, cohort: Sequence[int]) -> list[int]:
        return [client for client in cohort if client not in self.found and client not in self.refused]


def _log_shares(round: int, what: str, shares: Mapping[int, float]) -> None:
    """Log the shares that are left of shortened updates or control variates."""
    for client, share in sorted(shares.items(), key=lambda item: item[1])[:MOST_LINES]:
        LOG.warning("round %d: client %d's %s is shortened to %.3g of its length", round, client, what, share)
    if len(shares) > MOST_LINES:
        LOG.warning("round %d: %d more (%s) are shortened by less", round, len(shares) - MOST_LINES, what)
