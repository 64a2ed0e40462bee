"""A federation in one process, with a transport that loses, delays and corrupts messages as a test wants."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import fedscaffold as fs
from fedscaffold.core.protocols import Engine, Method
from fedscaffold.core.random.stream import Batches
from fedscaffold.core.types import Array
from fedscaffold.federation import (
    AuditLog,
    Ledger,
    LocalTask,
    ProblemTask,
    RoundResult,
    RoundRules,
    RunConfig,
    SitePolicy,
    StateBackup,
    TrainRequest,
    handle_request,
    run_round,
    train_request,
)
from fedscaffold.federation.client.store import ClientStateFile, initial_stored_state, reconcile
from fedscaffold.federation.messages import RESTATED, Reply, pack, unpack_reply, unpack_request
from fedscaffold.federation.server.session import ServerSession
from fedscaffold.simulation.setup import starting_point

SIMULATION = SitePolicy.for_simulation()
Event = Callable[[TrainRequest, Callable[[], Reply]], Reply | None]


def delivered(request: TrainRequest, work: Callable[[], Reply]) -> Reply | None:
    """The request arrives, and the reply arrives."""
    return work()


class Federation:
    """A server and clients with folders of their own; `event` decides what happens to each message.

    Messages travel as plain values and arrays; `known` are the methods that nodes know besides the library's.
    """

    engine: str | Engine = "reference"

    def __init__(
        self, folder: Path, problem: Any, method: Method, *, batch_size: int | None = 2, seed: int = 3,
        rules: RoundRules | None = None, backup: bool = True, event: Event = delivered,
        known: Sequence[type[Method]] = (), policy: SitePolicy = SIMULATION, name: str = "test",
        privacy: Any = None,
    ) -> None:  # fmt: skip
        self.folder, self.problem, self.event, self.known = folder, problem, event, known
        self.rules = rules or RoundRules(min_clients=1, outlier_factor=None)
        self.policy, self.backup_states = policy, backup
        self.config = RunConfig(
            name=name, method=method, n_clients=problem.n_clients, dim=problem.dim, seed=seed,
            batches=Batches(batch_size), privacy=privacy,
        )  # fmt: skip
        self.theta0 = starting_point(problem, None, 1)[0]
        self.results: list[RoundResult] = []
        self.works: dict[int, LocalTask] = {}
        self.restart_server()

    def restart_server(self) -> None:
        """Forget everything but the disk."""
        server = self.folder / "server"
        server.mkdir(parents=True, exist_ok=True)
        self.session = ServerSession(
            server, self.config, self.theta0, rules=self.rules, backup=self.backup_states, keep_checkpoints=2
        )
        self.session.begin(lambda: (self.problem.weights, self.problem.sizes))

    @property
    def ledger(self) -> Ledger:
        return self.session.ledger

    @property
    def backup(self) -> StateBackup:
        return self.session.backup

    def run(self, rounds: int) -> Ledger:
        """As the strategy does it."""
        self.session.rules = self.rules
        while self.ledger.round < rounds:
            self.results.append(self.session.run_round(self.send))
        return self.ledger

    def step(self) -> RoundResult:
        """One round that is not written to the server's disk."""
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
        received = unpack_request(pack(request), self.known)
        reply = handle_request(received, self.works[client], self.state_dir(client), self.policy)
        return unpack_reply(pack(reply), request)

    def work_of(self, client: int) -> LocalTask:
        return ProblemTask(self.problem.subset([client]), self.engine)

    def state_dir(self, client: int) -> Path:
        return self.folder / f"node-{client}"

    def state_file(self, client: int) -> Path:
        run = f"{self.config.name}-{self.ledger.run}"
        return self.state_dir(client) / run / f"client-{client:05d}.state"

    def client_states(self) -> Any:
        """The clients' states once they hear how the last round ended, as one named tuple."""
        each = []
        for client in range(self.config.n_clients):
            limited = self.ledger.counted_scale[client] == RESTATED
            state = self.backup.load(self.config, self.ledger, client) if limited else None
            request = train_request(self.config, self.ledger, client, client_state=state)
            stored = ClientStateFile(
                self.state_file(client), request, AuditLog(self.state_dir(client) / "audit.jsonl")
            ).load()
            nothing = initial_stored_state(self.config, self.ledger.resets, "")
            each.append(reconcile(stored or nothing, request).client_state)
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
        for client in range(self.config.n_clients):
            there = self.backup.load(self.config, self.ledger, client)
            for own, backed_up in zip(states, there, strict=True):
                np.testing.assert_array_equal(own[:, client], backed_up[:, 0])

    def simulated(self, rounds: int) -> fs.Trace:
        """The same run without a federation."""
        return fs.run(
            self.problem, self.config.method, rounds=rounds, batch_size=self.config.batches.size,
            seed=self.config.seed, engine=self.engine, record=(),
        )  # fmt: skip
