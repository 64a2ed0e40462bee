"""A federation in one process, with a transport that loses, delays and corrupts messages as a test wants."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

import fedscaffold as fs
from fedscaffold.core.protocols import Engine, Method
from fedscaffold.core.random.batches import Batches
from fedscaffold.core.types import Array
from fedscaffold.federation import (
    Ledger,
    ProblemWork,
    RoundResult,
    RoundRules,
    RunConfig,
    StateBackup,
    TrainRequest,
    Work,
    handle_request,
    initial_ledger,
    run_round,
)
from fedscaffold.federation.client_state import ClientStateFiles, reconcile
from fedscaffold.federation.ledger import train_request
from fedscaffold.federation.messages import Reply
from fedscaffold.federation.server_checkpoint import ServerCheckpoint, load_checkpoint, save_checkpoint

Event = Callable[[TrainRequest, Callable[[], Reply]], Reply | None]


def delivered(request: TrainRequest, work: Callable[[], Reply]) -> Reply | None:
    """The request arrives, and the reply arrives."""
    return work()


class Federation:
    """A server and clients with folders of their own; `event` decides what happens to each message.

    Nodes receive the run's configuration as text; `known` are the methods that they know besides the library's.
    """

    engine: str | Engine = "reference"

    def __init__(
        self, folder: Path, problem: Any, method: Method, *, batch_size: int | None = 2, seed: int = 3,
        rules: RoundRules | None = None, backup: bool = True, event: Event = delivered,
        known: Sequence[type[Method]] = (),
    ) -> None:  # fmt: skip
        self.folder, self.problem, self.event, self.known = folder, problem, event, known
        self.rules = rules or RoundRules(min_clients=1)
        self.config = RunConfig(
            name="test", method=method, n_clients=problem.n_clients, dim=problem.dim, seed=seed,
            batches=Batches(batch_size),
        )  # fmt: skip
        self.theta0 = np.zeros(problem.dim)
        self.backup = StateBackup(folder / "backup" if backup else None)
        self.file = folder / "server.npz"
        self.results: list[RoundResult] = []
        self.works: dict[int, Work] = {}
        self.restart_server()

    def restart_server(self) -> None:
        """Forget everything but the disk."""
        found = load_checkpoint(self.file, self.config, self.theta0)
        self.ledger = initial_ledger(self.config, self.theta0) if found is None else found.ledger

    def run(self, rounds: int) -> Ledger:
        """As the strategy does it."""
        while self.ledger.round < rounds:
            self.results.append(self.step())
            self.ledger = self.results[-1].ledger
            saved = ServerCheckpoint(self.ledger, self.problem.weights, {})
            save_checkpoint(self.file, self.config, self.theta0, saved)
            self.backup.remove_old(self.ledger)
        return self.ledger

    def step(self) -> RoundResult:
        return run_round(
            self.config, self.ledger, self.problem.weights, self.send, backup=self.backup, rules=self.rules,
            limit=1e12,
        )  # fmt: skip

    def send(self, requests: Sequence[TrainRequest]) -> Iterator[Reply]:
        """Replies come in another order than requests went."""
        for request in reversed(requests):
            reply = self.event(request, lambda request=request: self.handle(request))  # type: ignore[misc]
            if reply is not None:
                yield reply

    def handle(self, request: TrainRequest) -> Reply:
        """What a node does with a request."""
        client = request.client
        if client not in self.works:
            self.works[client] = self.work_of(client)
        received = replace(request, config=RunConfig.from_json(request.config.to_json(), self.known))
        return handle_request(received, self.works[client], self.state_dir(client))

    def work_of(self, client: int) -> Work:
        return ProblemWork(self.problem.subset([client]), self.engine)

    def state_dir(self, client: int) -> Path:
        return self.folder / f"node-{client}"

    def state_file(self, client: int) -> Path:
        return self.state_dir(client) / "test" / f"client-{client:05d}.npz"

    def client_states(self) -> Any:
        """The clients' states once they hear how the last round ended, as one named tuple."""
        each = []
        for client in range(self.config.n_clients):
            stored = ClientStateFiles(self.state_dir(client), self.config, client).load()
            found = reconcile(stored, train_request(self.config, self.ledger, client))
            assert found is not None
            each.append(found.client_state)
        return type(each[0])(*(np.concatenate(parts, axis=1) for parts in zip(*each, strict=True)))

    def control_variates(self) -> Array:
        """ξ_c of every client, (n_clients, dim)."""
        return self.config.method.correction(self.client_states(), self.ledger.server, None)[0]

    def drift(self) -> float:
        """The largest entry of Σ w_c ξ_c."""
        return float(np.abs(self.problem.weights @ self.control_variates()).max())

    def check_backup(self) -> None:
        """The server's backup is the clients' states."""
        states = self.client_states()
        for client, counted in enumerate(self.ledger.last_counted.tolist()):
            there = self.backup.load(self.config, client, last_counted=counted, resets=self.ledger.resets)
            for own, backed_up in zip(states, there, strict=True):
                np.testing.assert_array_equal(own[:, client], backed_up[:, 0])

    def simulated(self, rounds: int) -> fs.Trace:
        """The same run without a federation."""
        return fs.run(
            self.problem, self.config.method, rounds=rounds, batch_size=self.config.batches.size,
            seed=self.config.seed, engine=self.engine, record=(),
        )  # fmt: skip
