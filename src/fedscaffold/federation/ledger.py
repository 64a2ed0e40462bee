"""What the server knows between rounds: its state, and whose contribution of which round was counted."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from fedscaffold.core.errors import Diverged
from fedscaffold.core.sums import partial_sums, total
from fedscaffold.core.types import Array, IntArray
from fedscaffold.federation.messages import NEVER, TrainRequest
from fedscaffold.federation.run_config import RunConfig


class Ledger(NamedTuple):
    """All that the next round depends on, on the server's side."""

    round: int  # rounds that are closed
    epoch: int  # how often all memories were started anew
    server: Any  # a named tuple of arrays (1, dim), θ first
    counted: IntArray  # (n_clients,): the last round of this epoch whose contribution was counted, or NEVER
    states: Mapping[int, Any]  # the server's state after those of these rounds that are not the last one
    reach: float  # the largest typical ‖sent − θ‖ of any round so far


def first_ledger(terms: RunConfig, theta: Array) -> Ledger:
    """Before the first round, from θ (dim,)."""
    counted = np.full(terms.n_clients, NEVER, dtype=np.int64)
    return Ledger(0, 0, terms.method.init_server(theta[None, :].copy()), counted, {}, 0.0)


def train_order(
    terms: RunConfig, ledger: Ledger, client: int, *, memory: Any = None, mean_gradient: Array | None = None
) -> TrainRequest:
    """Local steps from θ. A client that was not counted in the last round also hears the state after its own."""
    counted = int(ledger.counted[client])
    last = counted in (NEVER, ledger.round - 1) or not terms.remembers
    return _order(
        terms, ledger, client, counted=counted, memory=memory, mean_gradient=mean_gradient,
        after=None if last or memory is not None else ledger.states[counted],
    )  # fmt: skip


def gradient_order(terms: RunConfig, ledger: Ledger, client: int) -> TrainRequest:
    """The gradient at θ, for methods that exchange it before local steps."""
    return _order(terms, ledger, client, phase="gradient")


def _order(terms: RunConfig, ledger: Ledger, client: int, **more: Any) -> TrainRequest:
    lengths = terms.local_step_counts(ledger.round)
    return TrainRequest(
        terms=terms, client=client, epoch=ledger.epoch, round=ledger.round, server=ledger.server,
        local_steps=int(lengths[client]), gradient_step=int(lengths[terms.cohort(ledger.round)].max()), **more,
    )  # fmt: skip


def mean_of(vectors: Mapping[int, Array], weights: Array) -> tuple[Array, Array]:
    """Σ w_c v_c over those who sent something, in the order of the clients, and their share of all weight."""
    clients = sorted(vectors)
    part, share = weights, np.ones(1)
    if len(clients) < weights.size:
        part = weights[clients]
        share = part.sum(keepdims=True)
        part = part / share
    return total(partial_sums(np.stack([vectors[c] for c in clients])[None], part)), share


def close(terms: RunConfig, ledger: Ledger, sent: Mapping[int, Array], weights: Array, *, limit: float) -> Ledger:
    """The ledger one round later, from the vectors that count.

    Those who sent nothing keep their memory, as those outside a cohort do, so that Σ w_c ξ_c = 0 all the same.
    """
    mean, share = mean_of(sent, weights)
    server = terms.method.aggregate(ledger.server, mean, share)
    if not np.abs(server.theta).max() < limit:
        sizes = {c: float(np.abs(vector).max()) for c, vector in sent.items()}
        largest = max(sizes, key=lambda c: sizes[c])
        raise Diverged(
            f"{type(terms.method).__name__} diverged in round {ledger.round + 1}: client {largest}'s model "
            f"reached {sizes[largest]:.3g} with step_size={terms.method.step_size:g}. Try a tenth of that.",
            round=ledger.round + 1,
            client=largest,
            safe_step_size=0.0,
        )
    counted = ledger.counted.copy()
    counted[sorted(sent)] = ledger.round
    known = {**ledger.states, ledger.round - 1: ledger.server}
    wanted = set(counted.tolist()) - {NEVER, ledger.round} if terms.remembers else set[int]()
    return Ledger(
        round=ledger.round + 1,
        epoch=ledger.epoch,
        server=server,
        counted=counted,
        states={round: known[round] for round in sorted(wanted)},
        reach=max(ledger.reach, typical([distance(ledger, vector) for vector in sent.values()])),
    )


def anew(terms: RunConfig, ledger: Ledger) -> Ledger:
    """All memories start again at 0, which keeps Σ w_c ξ_c = 0; θ stays.

    What is lost is what the clients knew about each other: a transient of some rounds, as at the start of the run.
    """
    return ledger._replace(
        epoch=ledger.epoch + 1,
        server=terms.method.init_server(ledger.server.theta),
        counted=np.full(terms.n_clients, NEVER, dtype=np.int64),
        states={},
    )


def typical(lengths: Sequence[float]) -> float:
    """The median, of two the smaller: what less than half of them can raise at will."""
    return sorted(lengths)[(len(lengths) - 1) // 2]


def distance(ledger: Ledger, vector: Array) -> float:
    """‖sent − θ‖."""
    return norm(vector - ledger.server.theta[0])


def norm(vector: Array) -> float:
    """‖v‖, infinite where it is beyond float64."""
    with np.errstate(over="ignore"):
        return float(np.linalg.norm(vector))
