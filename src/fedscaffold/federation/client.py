"""The client's side of a round, over any transport: compute the update, store it, and only then send it."""

import os
from contextlib import AbstractContextManager
from functools import partial
from typing import Protocol, runtime_checkable

import numpy as np

from fedscaffold.core.errors import FedScaffoldError, InvalidInput
from fedscaffold.core.protocols import Engine, LocalSgd, Problem
from fedscaffold.core.random.batches import Batches
from fedscaffold.core.types import Array, ExchangedGradients
from fedscaffold.engines import choose_engine
from fedscaffold.federation.client_state import (
    ClientStateFiles,
    PendingUpdate,
    initial_stored_state,
    reconcile,
)
from fedscaffold.federation.messages import ClientUpdate, StateLost, TrainRequest
from fedscaffold.simulation.block import Block, open_block


@runtime_checkable
class Work(Protocol):
    """What a client trains: a model of `dim` parameters on `n_rows` rows of data.

    Examples
    --------
    >>> import numpy as np
    >>> import fedscaffold as fs
    >>> from fedscaffold.federation import ProblemWork, Work
    >>> isinstance(ProblemWork(fs.problems.Ridge([np.ones((4, 2))], [np.ones(4)])), Work)
    True
    """

    @property
    def dim(self) -> int:
        """d, the number of parameters."""

    @property
    def n_rows(self) -> int:
        """n_c, the number of rows, to which the client's weight is proportional by default."""

    def open(self, batches: Batches, *, seed: int, client: int) -> AbstractContextManager[LocalSgd]:
        """The local steps of this client, as a block of one client; see `core.protocols.LocalSgd`."""


class ProblemWork:
    """A problem with one client as a client's work; local steps are computed by one of the engines.

    Client c draws the records that client c of a simulation with the same seed draws.

    Parameters
    ----------
    problem
        A problem with one client, for example `problem.subset([c])` or `Ridge([X], [y])`.
    engine
        As for `fedscaffold.run`.

    Examples
    --------
    >>> import numpy as np
    >>> import fedscaffold as fs
    >>> from fedscaffold.federation import ProblemWork
    >>> work = ProblemWork(fs.problems.Ridge([np.ones((4, 2))], [np.ones(4)]), engine="reference")
    >>> work.dim, work.n_rows
    (2, 4)
    """

    def __init__(self, problem: Problem, engine: str | Engine = "auto") -> None:
        if problem.n_clients != 1:
            raise InvalidInput(
                f"a client of a federation needs a problem with one client, but this one has {problem.n_clients}; "
                "take problem.subset([c])"
            )
        self.problem, self.engine = problem, choose_engine(engine, problem)

    @property
    def dim(self) -> int:
        """d, the number of parameters."""
        return int(self.problem.dim)

    @property
    def n_rows(self) -> int:
        """The number of records of the problem's client."""
        return int(self.problem.sizes[0])

    def open(self, batches: Batches, *, seed: int, client: int) -> AbstractContextManager[LocalSgd]:
        """The engine's local steps on the problem."""
        batches.check_fits(self.problem.sizes)
        return self.engine.open(self.problem, batches, seed=seed, first_client=client)


def handle_request(
    request: TrainRequest, work: Work, state_dir: str | os.PathLike[str]
) -> ClientUpdate | StateLost:
    """Compute what a request asks for, and store it before it is sent.

    An update enters the client state only when the server says, in a later request, that it was counted. So a
    reply that is lost, late or refused, and a client that is killed at any moment, leave Σ w_c ξ_c as it was. The
    same request again gives the same reply, from disk if it was stored.

    Parameters
    ----------
    request
        What the server asks.
    work
        What the client trains.
    state_dir
        The node's folder for client states, on a disk that outlives the node.

    Returns
    -------
    ClientUpdate or StateLost
        `StateLost` if the folder does not have the client state that the server counts on.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> import fedscaffold as fs
    >>> from fedscaffold.federation import ProblemWork, RunConfig, TrainRequest, handle_request
    >>> method = fs.Scaffold(step_size=0.5, local_steps=1)
    >>> config = RunConfig(name="demo", method=method, n_clients=2, dim=1)
    >>> server = method.init_server(np.zeros((1, 1)))
    >>> request = TrainRequest(config=config, client=0, resets=0, round=0, server=server)
    >>> work = ProblemWork(fs.problems.Ridge([np.ones((4, 1))], [np.ones(4)], l2=0.0), engine="reference")
    >>> with tempfile.TemporaryDirectory() as state_dir:
    ...     handle_request(request, work, state_dir).vector
    array([0.5])
    """
    config = request.config
    if work.dim != config.dim:
        raise InvalidInput(
            f"client {request.client}'s model has {work.dim} parameters, the server's {config.dim}; do they have "
            "the same columns or layers?"
        )
    info = config.round_info(request.round)
    if request.client not in (range(config.n_clients) if info.cohort is None else info.cohort):
        raise InvalidInput(f"client {request.client} does not take part in round {request.round} of {config.name}")
    files = ClientStateFiles(state_dir, config, request.client)
    if request.phase == "gradient":
        with _open_block(request, work) as block:
            gradient = block.gradients(request.server, info)
        files.save_gradient(request, gradient)  # the correction must be made from what was sent
        return _update(request, gradient)
    exchanged = _exchanged_gradients(request, files)
    if config.has_client_state:
        stored = reconcile(files.load(), request)
    else:
        stored = initial_stored_state(config, request.resets)
    if stored is None:
        return StateLost(client=request.client, resets=request.resets, round=request.round)
    if stored.pending is not None and _answers(stored.pending, request):
        return _update(request, stored.pending.sent)
    with _open_block(request, work) as block:
        result = block.run_local_steps(stored.client_state, request.server, info, exchanged)
    if config.has_client_state:
        files.save(stored._replace(pending=PendingUpdate(request.round, result.sent, request.server)))
    return _update(request, result.sent)


def _open_block(request: TrainRequest, work: Work) -> AbstractContextManager[Block]:
    """The simulator's block, of this client alone; its weight is not used, since the server aggregates."""
    config, client = request.config, request.client
    return open_block(
        config.method, partial(work.open, seed=config.seed, client=client), config.batches, weights=np.ones(1),
        n_clients=config.n_clients, first=client,
    )  # fmt: skip


def _exchanged_gradients(request: TrainRequest, files: ClientStateFiles) -> ExchangedGradients | None:
    if request.mean_gradient is None:
        return None
    own = files.load_gradient(request)
    if own is None:
        raise FedScaffoldError(
            f"client {request.client} no longer has the gradient that it sent in round {request.round}; the "
            "server goes on without it and asks again in the next round"
        )
    return ExchangedGradients(own, request.mean_gradient[None, :])


def _answers(pending: PendingUpdate, request: TrainRequest) -> bool:
    """Whether the pending update is of the requested round and started from the same server state."""
    same_round = pending.round == request.round
    return same_round and all(np.array_equal(a, b) for a, b in zip(pending.server, request.server, strict=True))


def _update(request: TrainRequest, vector: Array) -> ClientUpdate:
    return ClientUpdate(
        client=request.client, resets=request.resets, round=request.round, phase=request.phase,
        vector=np.ascontiguousarray(vector[0, 0], dtype=np.float64),
    )  # fmt: skip
