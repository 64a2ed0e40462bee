"""The server side of Flower: any of the library's methods, round after round, on disk after each."""

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result
from flwr.serverapp.strategy import Strategy as FlowerStrategy

from fedscaffold.core.checks import positive, whole_number
from fedscaffold.core.errors import CheckpointMismatch, InvalidInput
from fedscaffold.core.protocols import Method
from fedscaffold.core.random.batches import Batches, Sampling
from fedscaffold.core.types import Array
from fedscaffold.federation import server_checkpoint as checkpoint
from fedscaffold.federation.ledger import first_ledger
from fedscaffold.federation.log import LOG
from fedscaffold.federation.messages import Reply, TrainRequest
from fedscaffold.federation.run_config import RunConfig
from fedscaffold.federation.server import Outcome, Rules, TooFewClients, one_round, weights_of
from fedscaffold.federation.server_checkpoint import Stored
from fedscaffold.federation.state_backup import StateBackup
from fedscaffold.flower.nodes import Nodes
from fedscaffold.flower.wire import arrays_like, vector_of
from fedscaffold.simulation.divergence import divergence_limit

Weights = Literal["records", "uniform"] | Sequence[float]
Evaluate = Callable[[int, ArrayRecord], MetricRecord | None]


class Strategy:
    """Runs a method on a Flower federation: the same numbers as `fedscaffold.run` with the same seed, to 1e-10.

    One vector goes down and one comes up per client and round; control variates stay with the clients. A client
    that did not take part in the round before also gets the server's state after its own last round. Who takes
    part is drawn from the seed, and sums are taken in the order of the clients.

    After every round the server's state is in `folder`; the same call goes on from there. It is used as Flower's
    strategies are, `strategy.start(grid=grid, initial_arrays=..., num_rounds=...)`, but is no subclass of theirs:
    a round may take several messages to a client, which Flower's pairs of configure and aggregate cannot say.

    Parameters
    ----------
    method
        For example `fedscaffold.Scaffold(step_size=0.05, local_steps=100)`.
    n_clients
        N. Nodes say which client they are by the key partition-id of their configuration.
    folder
        Where the server's files are; it is made.
    name
        Of the run: clients keep its memory under this name. A run with other settings needs another name.
    seed, batch_size, sampling
        As for `fedscaffold.run`.
    weights
        "records": in proportion to the clients' numbers of records, which they tell; "uniform"; or N numbers.
    min_clients, attempts, outlier_factor
        When a round may be closed and which contributions are refused; see `fedscaffold.federation.server.Rules`.
    accounts
        Whether the server keeps an account of the clients' memories, N·d numbers on its disk, so that a client
        that lost its disk goes on as if nothing had happened. Without, all memories then start anew.
    pin_keys
        With node authentication: the first key that a client shows is the only one from then on.
    connect_timeout
        Seconds to wait for clients that are not online, in each attempt.
    evaluation
        A Flower strategy whose configure_evaluate and aggregate_evaluate are used after each round.
    """

    def __init__(
        self,
        method: Method,
        *,
        n_clients: int,
        folder: str | os.PathLike[str],
        name: str = "run",
        seed: int = 0,
        batch_size: int | None = None,
        sampling: Sampling = "with_replacement",
        weights: Weights = "records",
        min_clients: int = 2,
        attempts: int = 5,
        outlier_factor: float = 1000.0,
        accounts: bool = True,
        pin_keys: bool = False,
        connect_timeout: float = 60.0,
        evaluation: FlowerStrategy | None = None,
    ) -> None:
        batches = Batches(batch_size, sampling)
        self.terms = RunConfig(name=name, method=method, n_clients=n_clients, dim=1, seed=seed, batches=batches)
        self.rules = Rules(min_clients=min_clients, attempts=attempts, outlier_factor=outlier_factor)
        self.weights = _checked(weights, n_clients)
        self.folder, self.keep_accounts, self.pin_keys = Path(folder).expanduser(), accounts, pin_keys
        self.connect_timeout = positive("connect_timeout", connect_timeout)
        self.evaluation = evaluation

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600.0,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Evaluate | None = None,
    ) -> Result:
        """Run, or go on, until so many rounds are closed; the model in the shape of `initial_arrays`.

        Parameters
        ----------
        grid, evaluate_config, evaluate_fn
            As for Flower's strategies. Rounds count from 1, also when the run goes on after a stop.
        initial_arrays
            The model to start from; θ is all its arrays one after another, in float64.
        num_rounds
            T, counted from the run's beginning.
        timeout
            Seconds that clients have for their replies, in each attempt.
        train_config
            There is none: clients get the method's own settings.
        """
        if train_config:
            raise InvalidInput("train_config is not sent to clients; what they need is in the method's settings")
        whole_number("num_rounds", num_rounds, least=1)
        positive("timeout", timeout)
        theta0 = vector_of(initial_arrays)
        if not np.isfinite(theta0).all():
            raise InvalidInput("initial_arrays hold NaN or infinite values")
        terms = replace(self.terms, dim=theta0.size)
        self.folder.mkdir(parents=True, exist_ok=True)
        file = self.folder / "server.npz"
        accounts = StateBackup(self.folder / "clients" if self.keep_accounts else None)
        stored = checkpoint.load(file, terms, theta0)
        LOG.info("run %s: %s, %d clients, %d parameters", terms.name, terms.method, terms.n_clients, terms.dim)
        nodes = Nodes(grid, terms, pin_keys=self.pin_keys, keys={} if stored is None else stored.keys)
        if stored is None:
            stored = Stored(first_ledger(terms, theta0), self._weights(nodes), nodes.keys)
            checkpoint.save(file, terms, theta0, stored)
        elif stored.ledger.round > num_rounds:
            raise CheckpointMismatch(f"{file} is at round {stored.ledger.round}, past the {num_rounds} asked for")
        elif self.weights != "records" and not np.allclose(stored.weights, self._weights(nodes)):
            raise CheckpointMismatch(f"{file} belongs to a run with other weights; choose another name and folder")
        else:
            LOG.info("going on after round %d", stored.ledger.round)
        ledger, weights, limit = stored.ledger, stored.weights, divergence_limit(theta0)

        def ask(orders: Sequence[TrainRequest]) -> Iterable[Reply]:
            return nodes.ask(orders, seconds=timeout, connect_timeout=self.connect_timeout)

        result = Result(arrays=arrays_like(ledger.server.theta[0], initial_arrays))
        if evaluate_fn is not None and ledger.round == 0:
            _enter(result.evaluate_metrics_serverapp, 0, evaluate_fn(0, result.arrays))
        while ledger.round < num_rounds:
            outcome = one_round(terms, ledger, weights, ask, accounts=accounts, rules=self.rules, limit=limit)
            ledger = outcome.ledger
            checkpoint.save(file, terms, theta0, Stored(ledger, weights, nodes.keys))
            accounts.tidy(ledger)
            LOG.info("round %d of %d: %d clients counted", ledger.round, num_rounds, len(outcome.counted))
            result.arrays = arrays_like(ledger.server.theta[0], initial_arrays)
            result.train_metrics_clientapp[ledger.round] = _told(outcome)
            if self.evaluation is not None:
                config = ConfigRecord() if evaluate_config is None else evaluate_config
                asked = self.evaluation.configure_evaluate(ledger.round, result.arrays, config, grid)
                replies = grid.send_and_receive(asked, timeout=timeout)
                told = self.evaluation.aggregate_evaluate(ledger.round, replies)
                _enter(result.evaluate_metrics_clientapp, ledger.round, told)
            if evaluate_fn is not None:
                _enter(result.evaluate_metrics_serverapp, ledger.round, evaluate_fn(ledger.round, result.arrays))
        return result

    def _weights(self, nodes: Nodes) -> Array:
        """w_c, scaled to sum to one; if they are clients' numbers of records, once all have told them."""
        everyone = range(self.terms.n_clients)
        if not isinstance(self.weights, str):
            return np.asarray(self.weights) / np.sum(self.weights)
        if self.weights == "uniform":
            return np.full(len(everyone), 1.0 / len(everyone))
        for _ in range(self.rules.attempts):
            there = nodes.wait_for(everyone, seconds=self.connect_timeout)
            if len(there) == len(everyone):
                return weights_of({c: hello.records for c, hello in nodes.hellos.items()}, len(everyone))
            LOG.warning("waiting for clients %s", sorted(set(everyone) - there))
        raise TooFewClients(
            f"clients {sorted(set(everyone) - there)} are not online, and weights='records' needs to hear from "
            "all of them before the first round; start again when they are, or give weights"
        )


def _checked(weights: Weights, n_clients: int) -> Weights:
    if isinstance(weights, str):
        if weights not in ("records", "uniform"):
            raise InvalidInput(f"weights must be 'records', 'uniform' or {n_clients} numbers, got {weights!r}")
        return weights
    if len(weights) != n_clients:
        raise InvalidInput(f"there are {n_clients} clients, but {len(weights)} weights")
    return [positive("a weight", weight) for weight in weights]


def _enter(results: dict[int, MetricRecord], round: int, told: MetricRecord | None) -> None:
    if told is not None:
        results[round] = told


def _told(outcome: Outcome) -> MetricRecord:
    """Who counted and who was refused."""
    return MetricRecord({"counted": list(outcome.counted), "refused": sorted(outcome.refused)})
