"""One round as the server sees it, over any transport: ask, check, ask again where needed, close."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from fedscaffold.core.checks import positive, whole_number
from fedscaffold.core.errors import FedScaffoldError, InvalidInput
from fedscaffold.core.types import Array
from fedscaffold.federation import checks
from fedscaffold.federation.ledger import Ledger, anew, close, gradient_order, mean_of, train_order
from fedscaffold.federation.log import LOG
from fedscaffold.federation.messages import Failed, Lost, Reply, TrainRequest
from fedscaffold.federation.run_config import RunConfig
from fedscaffold.federation.state_backup import StateBackup

FILES_AT_ONCE = 8
Ask = Callable[[Sequence[TrainRequest]], Iterable[Reply]]


class TooFewClients(FedScaffoldError):
    """A round could not be closed; the server's files are as after the last round that could."""


@dataclass(frozen=True, kw_only=True)
class Rules:
    """When a round may be closed, and what counts.

    Parameters
    ----------
    min_clients
        How many contributions it takes. The round waits for them; beyond them it goes on without those who don't
        answer. At most the cohort's size counts, so that a large number means everyone.
    attempts
        How often those who did not answer are asked before the run stops; it can be started again from its files.
    outlier_factor
        A contribution is refused when ‖sent − θ‖ is more than so many times what is usual. Honest clients differ
        by their data, seldom by a factor of 1000; a contribution that is let through moves θ by at most its weight
        times this factor times a usual step.
    """

    min_clients: int = 2
    attempts: int = 5
    outlier_factor: float = 1000.0

    def __post_init__(self) -> None:
        whole_number("min_clients", self.min_clients, least=1)
        whole_number("attempts", self.attempts, least=1)
        if positive("outlier_factor", self.outlier_factor) <= 1.0:
            raise InvalidInput(f"outlier_factor must be more than 1, got {self.outlier_factor!r}")


@dataclass(frozen=True)
class Outcome:
    """A round that was closed: the ledger after it, who was counted, and who was refused and why."""

    ledger: Ledger
    counted: tuple[int, ...]
    refused: Mapping[int, str]


def one_round(
    terms: RunConfig,
    ledger: Ledger,
    weights: Array,
    ask: Ask,
    *,
    accounts: StateBackup,
    rules: Rules,
    limit: float,
) -> Outcome:
    """Ask the round's cohort, and close the round with the contributions that are sound.

    Memory that a client lost is handed back from the server's accounts, and the client is asked again. If there is
    no account of it, all clients' memories start anew, in this same round.
    """
    refused: dict[int, str] = {}
    cohort = terms.cohort(ledger.round).tolist()
    mean_gradient = None
    if terms.method.exchange is not None:
        gradients = _gradients(terms, ledger, cohort, ask, rules, refused)
        mean_gradient = mean_of(gradients, weights)[0][0]
        cohort = sorted(gradients)

    while True:
        sent, lost = _contributions(terms, ledger, cohort, ask, accounts, rules, refused, mean_gradient)
        if lost is None:
            break
        LOG.warning(
            "round %d: client %d lost its memory and the server keeps no account of it: all memories start anew",
            ledger.round, lost,
        )  # fmt: skip
        ledger = anew(terms, ledger)
    after = close(terms, ledger, sent, weights, limit=limit)
    with ThreadPoolExecutor(FILES_AT_ONCE) as pool:  # mostly waiting for the disk
        list(pool.map(lambda client: accounts.remember(terms, client, sent[client], ledger, after), sent))
    return Outcome(after, tuple(sorted(sent)), refused)


def _contributions(
    terms: RunConfig,
    ledger: Ledger,
    cohort: Sequence[int],
    ask: Ask,
    accounts: StateBackup,
    rules: Rules,
    refused: dict[int, str],
    mean_gradient: Array | None,
) -> tuple[dict[int, Array], int | None]:
    """What counts, by client; or the client for whose lost memory there is no account."""
    sent: dict[int, Array] = {}
    handed: dict[int, object] = {}
    failures = 0
    while True:
        orders = {
            c: train_order(terms, ledger, c, memory=handed.get(c), mean_gradient=mean_gradient)
            for c in cohort
            if c not in sent and c not in refused
        }
        returning = False
        for reply in _sorted(ask(list(orders.values()))):
            if isinstance(reply, Lost):
                if reply.client not in orders or reply.client in handed:
                    continue
                memory = accounts.memory(terms, reply.client, int(ledger.counted[reply.client]), ledger.epoch)
                if memory is None:
                    return {}, reply.client
                LOG.warning("round %d: client %d lost its memory and gets it back", ledger.round, reply.client)
                handed[reply.client] = memory
                returning = True
            else:
                _take(reply, orders, sent, refused)
        for client, reason in checks.too_far(ledger, sent, rules.outlier_factor).items():
            del sent[client]
            _refuse(ledger.round, client, reason, refused)
        if returning:
            continue
        if _enough(sent, cohort, rules):
            return dict(sorted(sent.items())), None
        failures = _failed(terms, ledger, cohort, sent, refused, rules, failures)


def _gradients(
    terms: RunConfig, ledger: Ledger, cohort: Sequence[int], ask: Ask, rules: Rules, refused: dict[int, str]
) -> dict[int, Array]:
    """ĝ_c(θ) of those who answer. Those who then don't send a model leave Σ w_c ξ_c ≠ 0 for this one round."""
    found: dict[int, Array] = {}
    failures = 0
    while True:
        orders = {c: gradient_order(terms, ledger, c) for c in cohort if c not in found and c not in refused}
        for reply in _sorted(ask(list(orders.values()))):
            _take(reply, orders, found, refused)
        for client, reason in checks.too_steep(found, rules.outlier_factor).items():
            del found[client]
            _refuse(ledger.round, client, reason, refused)
        if _enough(found, cohort, rules):
            return dict(sorted(found.items()))
        failures = _failed(terms, ledger, cohort, found, refused, rules, failures)


def _sorted(replies: Iterable[Reply]) -> list[Reply]:
    return sorted(replies, key=lambda reply: reply.client)


def _take(
    reply: Reply, orders: Mapping[int, TrainRequest], found: dict[int, Array], refused: dict[int, str]
) -> None:
    """Enter a reply, or say why not."""
    if reply.client not in orders or isinstance(reply, Lost):
        return
    if isinstance(reply, Failed):
        LOG.warning("round %d: client %d failed: %s", orders[reply.client].round, reply.client, reply.reason)
        return
    reason = checks.fault(orders[reply.client], reply)
    if reason is None:
        found[reply.client] = reply.vector
    else:
        _refuse(orders[reply.client].round, reply.client, reason, refused)


def _refuse(round: int, client: int, reason: str, refused: dict[int, str]) -> None:
    LOG.warning("round %d: client %d's contribution is refused: %s", round, client, reason)
    refused[client] = reason


def _enough(found: Mapping[int, Array], cohort: Sequence[int], rules: Rules) -> bool:
    return len(found) >= min(rules.min_clients, len(cohort))


def _failed(
    terms: RunConfig,
    ledger: Ledger,
    cohort: Sequence[int],
    found: Mapping[int, Array],
    refused: Mapping[int, str],
    rules: Rules,
    failures: int,
) -> int:
    """One failure more, or the end of the run."""
    silent = [c for c in cohort if c not in found and c not in refused]
    if failures + 1 < rules.attempts and silent:
        LOG.warning("round %d: %d of %d answered; asking again: %s", ledger.round, len(found), len(cohort), silent)
        return failures + 1
    raise TooFewClients(
        f"round {ledger.round} of {terms.name}: {len(found)} of {len(cohort)} clients contributed, "
        f"{min(rules.min_clients, len(cohort))} are needed; no answer from {silent or 'nobody'}, refused: "
        f"{dict(refused) or 'nobody'}. Start the server again when they are back; it goes on from this round"
    )


def weights_of(records: Mapping[int, int], n_clients: int) -> Array:
    """w_c in proportion to the clients' numbers of records."""
    given = np.array([records[c] for c in range(n_clients)], dtype=np.float64)
    return given / given.sum()
