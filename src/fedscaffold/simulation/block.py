"""The clients' half of a round, for a block of clients: all of them, the shard of one worker, or a single site."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from fedscaffold.core.protocols import LocalSgd, Method
from fedscaffold.core.random.draws import MessageDraws
from fedscaffold.core.random.stream import Batches
from fedscaffold.core.sums import PartialSum, partial_sums, partial_sums_of_cohort
from fedscaffold.core.types import Array, ExchangedGradients, IntArray, RoundInfo, WorstClient

OpenLocalSgd = Callable[[Batches], AbstractContextManager[LocalSgd]]
# messages, θ, round, clients → messages as they are sent, and as clients remember them
Protect = Callable[[Array, Array, int, IntArray | None], tuple[Array, Array]]


class LocalResult(NamedTuple):
    """Results of the local steps of a block's participants."""

    clients: IntArray | None  # (repetitions, participants), counted from the block's first client; None for all
    client_state: Any  # theirs, before the round
    local: Array  # their local models, (repetitions, participants, dim)
    sent: Array  # their messages, (repetitions, participants, dim)
    remembered: (
        Array  # what they know of their messages, from which their next state follows; mostly `sent` itself
    )


@dataclass(frozen=True, kw_only=True)
class Block:
    """Clients first, first + 1, ... of n_clients, with their shares of the total weight."""

    method: Method
    weights: Array
    n_clients: int
    first: int
    first_step: int
    seed: int  # of what compressors draw
    local_sgd: LocalSgd
    gradient_sgd: LocalSgd  # computes the gradients that a method exchanges before local steps
    protect: Protect | None = None  # clips messages and adds noise, for privacy at the level of clients

    def gradients(self, server: Any, info: RoundInfo) -> Array:
        """Return each client's gradient at θ, computed as one local step of size one without correction."""
        clients = self._participants(info)
        if clients is not None and clients.size == 0:
            return np.zeros((*clients.shape, server.theta.shape[-1]))
        counts = self.method.local_step_counts(self.n_clients, info.round_uniform)
        if info.cohort is not None:  # of the whole cohort, so that draws do not depend on how clients are divided
            counts = _rows_of(counts, info.cohort)
        stepped = self.gradient_sgd(
            server.theta, np.zeros((1, 1, server.theta.shape[-1])), step_size=1.0, local_steps=1,
            round=info.round, clients=clients, first_step=self.first_step + int(counts.max()),
        )  # fmt: skip
        return server.theta[:, None, :] - stepped

    def run_local_steps(
        self, client_state: Any, server: Any, info: RoundInfo, exchanged: ExchangedGradients | None
    ) -> LocalResult:
        """Return the local models and messages of the clients that take part in the round."""
        clients = self._participants(info)
        if clients is not None:
            client_state = type(client_state)(*(_rows_of(values, clients) for values in client_state))
        if clients is not None and clients.size == 0:  # no client of this block takes part
            empty = np.zeros((*clients.shape, server.theta.shape[-1]))
            sent = self.method.message(client_state, empty, server, self._step_counts(info, clients))
            sent = self._compressed(sent, info, clients)
            return LocalResult(clients, client_state, empty, sent, sent)
        step_counts = self._step_counts(info, clients)
        method = self.method
        local = self.local_sgd(
            method.start(client_state, server), method.correction(client_state, server, exchanged),
            step_size=method.step_size, local_steps=step_counts, round=info.round, clients=clients,
            first_step=self.first_step, pull=method.pull, anchor=method.anchor(client_state, server),
        )  # fmt: skip
        sent = method.message(client_state, local, server, step_counts)
        if self.protect is not None:
            return LocalResult(
                clients, client_state, local, *self.protect(sent, server.theta, info.round, clients)
            )
        sent = self._compressed(sent, info, clients)
        return LocalResult(clients, client_state, local, sent, sent)

    def partial_sums(self, values: Array, info: RoundInfo) -> list[PartialSum]:
        """Return the block's part of Σ w_c v_c over the participants, whose weights are scaled to sum to one."""
        clients = self._participants(info)
        if clients is None:
            return partial_sums(values, self.weights, first=self.first)
        weights = self.weights[clients] / info.share[:, None]
        last = self.first + self.weights.size
        return partial_sums_of_cohort(values, weights, clients + self.first, first=self.first, last=last)

    def update(self, result: LocalResult, before: Any, after: Any) -> Any:
        """Return the state of the participants once they have received the next server state."""
        return self.method.update_clients(result.client_state, result.remembered, before, after)

    def worst_client(self, result: LocalResult) -> WorstClient:
        """Return the client whose local model holds the largest absolute value."""
        if result.local.size == 0:
            return WorstClient(-1.0, self.first)
        sizes = np.nan_to_num(np.abs(result.local), nan=np.inf).max(axis=2)
        r, k = np.unravel_index(int(sizes.argmax()), sizes.shape)
        client = k if result.clients is None else result.clients[r, k]
        return WorstClient(float(sizes[r, k]), self.first + int(client))

    def _participants(self, info: RoundInfo) -> IntArray | None:
        if info.cohort is None or self.weights.size == self.n_clients:
            return info.cohort
        here = (info.cohort >= self.first) & (info.cohort < self.first + self.weights.size)
        return info.cohort[here].reshape(len(info.cohort), -1) - self.first

    def _compressed(self, values: Array, info: RoundInfo, clients: IntArray | None) -> Array:
        """Return the participants' messages as they are sent."""
        if self.method.compressor is None:
            return values
        if info.cohort is None:
            place = self.first + np.arange(self.weights.size)
            who = places = np.broadcast_to(place, (len(values), place.size))
        else:
            assert clients is not None
            who = self.first + clients
            places = np.stack([np.searchsorted(*rows) for rows in zip(info.cohort, who, strict=True)])
        participants = self.n_clients if info.cohort is None else info.cohort.shape[1]
        draws = MessageDraws(self.seed, info.round, who, places, participants, self.n_clients)
        return self.method.compressor.compress(values, draws)

    def _step_counts(self, info: RoundInfo, clients: IntArray | None) -> IntArray:
        counts = self.method.local_step_counts(self.n_clients, info.round_uniform)
        if counts.shape[1] > 1:
            counts = counts[:, self.first : self.first + self.weights.size]
        return counts if clients is None else _rows_of(counts, clients)


@contextmanager
def open_block(
    method: Method,
    open_local_sgd: OpenLocalSgd,
    batches: Batches,
    *,
    weights: Array,
    n_clients: int,
    seed: int,
    first: int = 0,
    first_step: int = 0,
    protect: Protect | None = None,
) -> Iterator[Block]:
    """Yield a block of clients, ready to run.

    Parameters
    ----------
    method
        What the clients do.
    open_local_sgd
        Opens the hot loop of these clients for given batches, for example `engine.open` on a problem.
    batches
        How local steps draw their records.
    weights
        The clients' shares of the total weight of all n_clients.
    n_clients
        Number of clients in all blocks together.
    seed
        Of what compressors draw.
    first
        Index of the block's first client among them.
    first_step
        Local steps draw as steps first_step, first_step + 1, ... of their rounds.
    protect
        Clips messages and adds noise before they are sent; None for nothing. Its methods have no compressor.
    """
    with ExitStack() as stack:
        local_sgd = stack.enter_context(open_local_sgd(batches))
        full = method.exchange in ("full", "own")
        yield Block(
            method=method,
            weights=weights,
            n_clients=n_clients,
            first=first,
            first_step=first_step,
            seed=seed,
            local_sgd=local_sgd,
            gradient_sgd=stack.enter_context(open_local_sgd(Batches())) if full else local_sgd,
            protect=protect,
        )


def message_length(method: Method, dim: int) -> int:
    """Return how many numbers a participant sends to the server, for a model of dim numbers."""
    clients, server = method.init_clients(1, np.ones(1), dim, None), method.init_server(np.zeros((1, dim)))
    sent = method.message(clients, np.zeros((1, 1, dim)), server, np.ones((1, 1), np.int64)).shape[-1]
    return sent if method.compressor is None else method.compressor.message_length(sent)


def takes_anchor(method: Method, dim: int) -> bool:
    """Return whether the method's local steps subtract gradients at an anchor."""
    clients, server = method.init_clients(1, np.ones(1), dim, None), method.init_server(np.zeros((1, dim)))
    return method.anchor(clients, server) is not None


def _rows_of(values: Any, clients: IntArray) -> Any:
    """Return the entries of (repetitions or 1, clients or 1, ...) that belong to each repetition's cohort."""
    if values.shape[1] == 1:
        return values
    rows = np.arange(len(clients))[:, None] if len(values) > 1 else 0
    return values[rows, clients]
