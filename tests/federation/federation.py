"""A federation in one process: a transport that loses, delays and spoils messages as it is told."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import fedscaffold as fs
from fedscaffold.core.protocols import Method
from fedscaffold.core.random.batches import Batches
from fedscaffold.core.types import Array
from fedscaffold.federation import server_checkpoint as checkpoint
from fedscaffold.federation.client import ProblemWork, answer
from fedscaffold.federation.client_state import Store, settled
from fedscaffold.federation.ledger import Ledger, first_ledger, train_order
from fedscaffold.federation.messages import Reply, TrainRequest
from fedscaffold.federation.run_config import RunConfig
from fedscaffold.federation.server import Outcome, Rules, one_round
from fedscaffold.federation.server_checkpoint import Stored
from fedscaffold.federation.state_backup import StateBackup

Event = Callable[[TrainRequest, Callable[[], Reply]], Reply | None]


def nothing(order: TrainRequest, work: Callable[[], Reply]) -> Reply | None:
    """Nothing happens: the order arrives, the reply arrives."""
    return work()


class Federation:
    """A server and clients with folders of their own."""

    def __init__(
        self, folder: Path, problem: Any, method: Method, *, batch_size: int | None = 2, seed: int = 3,
        rules: Rules | None = None, accounts: bool = True, event: Event = nothing,
    ) -> None:  # fmt: skip
        self.folder, self.problem, self.event = folder, problem, event
        self.rules = rules or Rules(min_clients=1)
        self.terms = RunConfig(
            name="test", method=method, n_clients=problem.n_clients, dim=problem.dim, seed=seed,
            batches=Batches(batch_size),
        )  # fmt: skip
        self.theta0 = np.zeros(problem.dim)
        self.accounts = StateBackup(folder / "accounts" if accounts else None)
        self.file = folder / "server.npz"
        self.outcomes: list[Outcome] = []
        self.restart_server()

    def restart_server(self) -> None:
        """Forget everything but the disk."""
        stored = checkpoint.load(self.file, self.terms, self.theta0)
        self.ledger = first_ledger(self.terms, self.theta0) if stored is None else stored.ledger

    def run(self, rounds: int) -> Ledger:
        """As the strategy does it."""
        while self.ledger.round < rounds:
            self.outcomes.append(self.step())
            self.ledger = self.outcomes[-1].ledger
            checkpoint.save(self.file, self.terms, self.theta0, Stored(self.ledger, self.problem.weights, {}))
            self.accounts.tidy(self.ledger)
        return self.ledger

    def step(self) -> Outcome:
        return one_round(
            self.terms, self.ledger, self.problem.weights, self.ask, accounts=self.accounts, rules=self.rules,
            limit=1e12,
        )  # fmt: skip

    def ask(self, orders: Sequence[TrainRequest]) -> Iterator[Reply]:
        """Replies come in no good order."""
        for order in reversed(orders):
            reply = self.event(order, lambda order=order: self.work(order))  # type: ignore[misc]
            if reply is not None:
                yield reply

    def work(self, order: TrainRequest) -> Reply:
        block = ProblemWork(self.problem.subset([order.client]), "reference")
        return answer(order, block, self.client_folder(order.client))

    def client_folder(self, client: int) -> Path:
        return self.folder / f"node-{client}"

    def memory_file(self, client: int) -> Path:
        return self.client_folder(client) / "test" / f"client-{client:05d}.npz"

    def memories(self) -> Any:
        """What clients know once they hear how the last round ended, as one named tuple."""
        each = []
        for client in range(self.terms.n_clients):
            order = train_order(self.terms, self.ledger, client)
            known = settled(Store(self.client_folder(client), self.terms, client).load(), order)
            assert known is not None
            each.append(known.memory)
        return type(each[0])(*(np.concatenate(parts, axis=1) for parts in zip(*each, strict=True)))

    def control_variates(self) -> Array:
        """ξ_c of every client, (n_clients, dim)."""
        return self.terms.method.correction(self.memories(), self.ledger.server, None)[0]

    def drift(self) -> float:
        """The largest entry of Σ w_c ξ_c."""
        return float(np.abs(self.problem.weights @ self.control_variates()).max())

    def check_accounts(self) -> None:
        """The server's accounts are what the clients know."""
        for client, counted in enumerate(self.ledger.counted.tolist()):
            account = self.accounts.memory(self.terms, client, counted, self.ledger.epoch)
            for own, there in zip(self.memories(), account, strict=True):
                np.testing.assert_array_equal(own[:, client], there[:, 0])

    def simulated(self, rounds: int) -> fs.Trace:
        """The same run without a federation."""
        return fs.run(
            self.problem, self.terms.method, rounds=rounds, batch_size=self.terms.batches.size,
            seed=self.terms.seed, engine="reference", record=(),
        )  # fmt: skip
