"""A round as a client sees it, over any transport: settle the last one, work, keep, and only then send."""

import os
from contextlib import AbstractContextManager
from typing import Protocol

import numpy as np

from fedscaffold.core.errors import FedScaffoldError, InvalidInput
from fedscaffold.core.protocols import Engine, LocalSgd, Problem
from fedscaffold.core.random.batches import Batches
from fedscaffold.core.types import Array, ExchangedGradients
from fedscaffold.engines import choose_engine
from fedscaffold.federation.client_state import Pending, Store, first, settled
from fedscaffold.federation.messages import Lost, Sent, TrainRequest


class Work(Protocol):
    """What a client trains: a model of `dim` parameters on `records` records."""

    @property
    def dim(self) -> int:
        """How many parameters, d."""

    @property
    def records(self) -> int:
        """n_c, from which the client's weight is made."""

    def open(self, batches: Batches, *, seed: int, client: int) -> AbstractContextManager[LocalSgd]:
        """Local steps of this client, as a block of one; see `core.types.LocalSgd`."""


class ProblemWork:
    """A problem with one client, run by one of the engines.

    Client c draws the records that client c of a simulation with the same seed draws.

    Parameters
    ----------
    problem
        One client's, for example `problem.subset([c])` or `Ridge([X], [y])`.
    engine
        As for `fedscaffold.run`.
    """

    def __init__(self, problem: Problem, engine: str | Engine = "auto") -> None:
        if problem.n_clients != 1:
            raise InvalidInput(
                f"a Flower client is one client, but this problem has {problem.n_clients}; "
                "take problem.subset([c])"
            )
        self.problem, self.engine = problem, choose_engine(engine, problem)

    @property
    def dim(self) -> int:
        """How many parameters, d."""
        return int(self.problem.dim)

    @property
    def records(self) -> int:
        """How many records."""
        return int(self.problem.sizes[0])

    def open(self, batches: Batches, *, seed: int, client: int) -> AbstractContextManager[LocalSgd]:
        """The engine's local steps."""
        batches.check_fits(self.problem.sizes)
        return self.engine.open(self.problem, batches, seed=seed, first_client=client)


def answer(order: TrainRequest, work: Work, folder: str | os.PathLike[str]) -> Sent | Lost:
    """Do what the order says, and keep what is sent before it is sent.

    A contribution enters memory only when the server says that it was counted. So a reply that is lost, late or
    refused, and a client that is killed at any moment, leave Σ w_c ξ_c as it was. The same order again gives the
    same reply, from disk if it got that far.
    """
    if work.dim != order.terms.dim:
        raise InvalidInput(
            f"client {order.client}'s model has {work.dim} parameters, the server's {order.terms.dim}; do they "
            "have the same columns or layers?"
        )
    store = Store(folder, order.terms, order.client)
    if order.phase == "gradient":
        return _gradient(order, work, store)
    terms, method = order.terms, order.terms.method
    exchanged = _exchanged(order, store)
    memory = settled(store.load(), order) if terms.remembers else first(terms, order.epoch)
    if memory is None:
        return Lost(client=order.client, epoch=order.epoch, round=order.round)
    if _is_again(memory.pending, order):
        assert memory.pending is not None
        return _sent(order, memory.pending.sent)
    lengths = np.array([[order.local_steps]])
    xi = method.correction(memory.memory, order.server, exchanged)
    with work.open(terms.batches, seed=terms.seed, client=order.client) as local_sgd:
        local = local_sgd(
            order.server.theta, xi, step_size=method.step_size, local_steps=lengths, round=order.round
        )
    sent = method.message(local, order.server, lengths)
    if terms.remembers:
        store.save(memory._replace(pending=Pending(order.round, sent, order.server)))
    return _sent(order, sent)


def _gradient(order: TrainRequest, work: Work, store: Store) -> Sent:
    """ĝ_c(θ): one local step of size one, without correction; kept, since ξ_c must be made from what was sent."""
    terms = order.terms
    batches = Batches() if terms.method.exchange == "full" else terms.batches
    theta = order.server.theta
    with work.open(batches, seed=terms.seed, client=order.client) as local_sgd:
        after = local_sgd(
            theta, np.zeros((1, 1, terms.dim)), step_size=1.0, local_steps=1, round=order.round,
            first_step=order.gradient_step,
        )  # fmt: skip
    gradient = theta[:, None, :] - after
    store.save_gradient(order, gradient)
    return _sent(order, gradient)


def _exchanged(order: TrainRequest, store: Store) -> ExchangedGradients | None:
    if order.mean_gradient is None:
        return None
    own = store.load_gradient(order)
    if own is None:
        raise FedScaffoldError(
            f"client {order.client} no longer has the gradient that it sent in round {order.round}"
        )
    return ExchangedGradients(own, order.mean_gradient[None, :])


def _is_again(pending: Pending | None, order: TrainRequest) -> bool:
    """Whether this round's contribution has been made already, from the same state."""
    if pending is None or pending.round != order.round:
        return False
    return all(np.array_equal(a, b) for a, b in zip(pending.before, order.server, strict=True))


def _sent(order: TrainRequest, vector: Array) -> Sent:
    return Sent(
        client=order.client, epoch=order.epoch, round=order.round, phase=order.phase,
        vector=np.ascontiguousarray(vector[0, 0], dtype=np.float64),
    )  # fmt: skip
