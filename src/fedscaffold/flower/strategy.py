"""The server's side on Flower: any method, round after round, with its state on disk after each."""

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
from fedscaffold.federation.ledger import initial_ledger
from fedscaffold.federation.messages import Reply, TrainRequest
from fedscaffold.federation.round_rules import RoundRules, TooFewClients
from fedscaffold.federation.run_config import RunConfig
from fedscaffold.federation.server import RoundResult, run_round, weights_from_rows
from fedscaffold.federation.server_checkpoint import ServerCheckpoint, load_checkpoint, save_checkpoint
from fedscaffold.federation.state_backup import StateBackup
from fedscaffold.flower.log import LOG, show_protocol_log
from fedscaffold.flower.nodes import Nodes
from fedscaffold.flower.wire import arrays_like, vector_of
from fedscaffold.simulation.divergence import divergence_limit

Weights = Literal["rows", "uniform"] | Sequence[float]
Evaluate = Callable[[int, ArrayRecord], MetricRecord | None]


class Strategy:
    """Runs a method on a Flower federation, with the numbers of `fedscaffold.run` with the same seed, to 1e-10.

    One vector goes down and one comes up per client and round; control variates stay with the clients. A client
    that did not take part in the round before also receives the server state after its own last round. The cohorts
    are drawn from the seed, and sums are taken in the order of the clients.

    After every round the server's state is written to `folder`; the same call continues from there. A strategy is
    used as Flower's are, `strategy.start(grid=grid, initial_arrays=..., num_rounds=...)`, but is no subclass of
    theirs: a round may take several messages to a client, which Flower's configure and aggregate do not allow for.

    Parameters
    ----------
    method
        For example `fedscaffold.Scaffold(step_size=0.05, local_steps=100)`. A method of your own must be a
        dataclass of plain settings whose class the nodes know too; see `methods` of `client_app`.
    n_clients
        N. The key partition-id of a node's configuration says which client it is, 0, ..., N − 1.
    folder
        Folder of the server's files, which is created.
    name
        Name of the run, under which clients keep their state. A run with other settings needs another name.
    seed, batch_size, sampling
        As for `fedscaffold.run`.
    weights
        "rows": w_c in proportion to the clients' numbers of rows, which they report; "uniform"; or N numbers.
    min_clients, attempts, outlier_factor
        When a round may be closed and which updates are refused; see `fedscaffold.federation.RoundRules`.
    backup_client_states
        Whether the server keeps a backup of the client states, N·d numbers on its disk, so that a run with a
        client that lost its disk continues with the same numbers. Otherwise all client states are reset when that
        happens.
    pin_node_keys
        With node authentication: whether a client's node must keep the public key that it had first.
    connect_timeout
        Seconds to wait for clients that are not online, in each attempt.
    evaluation
        A Flower strategy whose configure_evaluate and aggregate_evaluate are used after each round.

    Examples
    --------
    In the main function of a Flower server app, which receives the grid:

    >>> import fedscaffold as fs
    >>> from fedscaffold import flower
    >>> method = fs.Scaffold(step_size=0.05, local_steps=100)
    >>> strategy = flower.Strategy(method, n_clients=4, folder="server", batch_size=10)
    >>> strategy.config.n_clients
    4

    Then `result = strategy.start(grid, initial_arrays, num_rounds=100)` runs it.
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
        weights: Weights = "rows",
        min_clients: int = 2,
        attempts: int = 5,
        outlier_factor: float = 1000.0,
        backup_client_states: bool = True,
        pin_node_keys: bool = False,
        connect_timeout: float = 60.0,
        evaluation: FlowerStrategy | None = None,
    ) -> None:
        batches = Batches(batch_size, sampling)
        self.config = RunConfig(name=name, method=method, n_clients=n_clients, dim=1, seed=seed, batches=batches)
        self.rules = RoundRules(min_clients=min_clients, attempts=attempts, outlier_factor=outlier_factor)
        self.weights = _check_weights(weights, n_clients)
        self.folder, self.backup_client_states = Path(folder).expanduser(), backup_client_states
        self.pin_node_keys = pin_node_keys
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
        """Run, or continue, until so many rounds are closed; the model in the shape of `initial_arrays`.

        Parameters
        ----------
        grid, evaluate_config, evaluate_fn
            As for Flower's strategies. Rounds count from 1, also when the run continues after a stop.
        initial_arrays
            The initial model; θ is all its arrays one after another, in float64.
        num_rounds
            T, counted from the run's beginning.
        timeout
            Seconds that clients have for their replies, in each attempt.
        train_config
            Must be empty: clients receive the method's own settings.
        """
        if train_config:
            raise InvalidInput("train_config is not sent to clients; what they need is in the method's settings")
        whole_number("num_rounds", num_rounds, least=1)
        positive("timeout", timeout)
        theta0 = vector_of(initial_arrays)
        if not np.isfinite(theta0).all():
            raise InvalidInput("initial_arrays hold NaN or infinite values")
        show_protocol_log()
        config = replace(self.config, dim=theta0.size)
        self.folder.mkdir(parents=True, exist_ok=True)
        file = self.folder / "server.npz"
        backup = StateBackup(self.folder / "clients" if self.backup_client_states else None)
        saved = load_checkpoint(file, config, theta0)
        LOG.info("run %s: %s, %d clients, %d parameters", config.name, config.method, config.n_clients, config.dim)
        keys = {} if saved is None else saved.keys
        nodes = Nodes(grid, config, pin_node_keys=self.pin_node_keys, keys=keys)
        if saved is None:
            saved = ServerCheckpoint(initial_ledger(config, theta0), self._resolve_weights(nodes), nodes.keys)
            save_checkpoint(file, config, theta0, saved)
        elif saved.ledger.round > num_rounds:
            raise CheckpointMismatch(f"{file} is at round {saved.ledger.round}, past the {num_rounds} asked for")
        elif self.weights != "rows" and not np.allclose(saved.weights, self._resolve_weights(nodes)):
            raise CheckpointMismatch(f"{file} belongs to a run with other weights; choose another name and folder")
        else:
            LOG.info("continuing after round %d", saved.ledger.round)
        ledger, weights, limit = saved.ledger, saved.weights, divergence_limit(theta0)

        def send(requests: Sequence[TrainRequest]) -> Iterable[Reply]:
            return nodes.send(requests, timeout=timeout, connect_timeout=self.connect_timeout)

        result = Result(arrays=arrays_like(ledger.server.theta[0], initial_arrays))
        if evaluate_fn is not None and ledger.round == 0:
            _record(result.evaluate_metrics_serverapp, 0, evaluate_fn(0, result.arrays))
        while ledger.round < num_rounds:
            closed = run_round(config, ledger, weights, send, backup=backup, rules=self.rules, limit=limit)
            ledger = closed.ledger
            save_checkpoint(file, config, theta0, ServerCheckpoint(ledger, weights, nodes.keys))
            backup.remove_old(ledger)
            LOG.info("round %d of %d: %d clients counted", ledger.round, num_rounds, len(closed.counted))
            result.arrays = arrays_like(ledger.server.theta[0], initial_arrays)
            result.train_metrics_clientapp[ledger.round] = _metrics_of(closed)
            if self.evaluation is not None:
                given = ConfigRecord() if evaluate_config is None else evaluate_config
                asked = self.evaluation.configure_evaluate(ledger.round, result.arrays, given, grid)
                replies = grid.send_and_receive(asked, timeout=timeout)
                metrics = self.evaluation.aggregate_evaluate(ledger.round, replies)
                _record(result.evaluate_metrics_clientapp, ledger.round, metrics)
            if evaluate_fn is not None:
                _record(result.evaluate_metrics_serverapp, ledger.round, evaluate_fn(ledger.round, result.arrays))
        return result

    def _resolve_weights(self, nodes: Nodes) -> Array:
        """w_c, shape (N,), summing to one; waits for all clients if they depend on the numbers of rows."""
        clients = range(self.config.n_clients)
        if not isinstance(self.weights, str):
            return np.asarray(self.weights) / np.sum(self.weights)
        if self.weights == "uniform":
            return np.full(len(clients), 1.0 / len(clients))
        for _ in range(self.rules.attempts):
            online = nodes.wait_for(clients, seconds=self.connect_timeout)
            if len(online) == len(clients):
                return weights_from_rows({c: hello.n_rows for c, hello in nodes.hellos.items()}, len(clients))
            LOG.warning("waiting for clients %s", sorted(set(clients) - online))
        raise TooFewClients(
            f"clients {sorted(set(clients) - online)} are not online, and weights='rows' needs the number of rows "
            "of each client before the first round; start again when they are, or give weights"
        )


def _check_weights(weights: Weights, n_clients: int) -> Weights:
    if isinstance(weights, str):
        if weights not in ("rows", "uniform"):
            raise InvalidInput(f"weights must be 'rows', 'uniform' or {n_clients} numbers, got {weights!r}")
        return weights
    if len(weights) != n_clients:
        raise InvalidInput(f"there are {n_clients} clients, but {len(weights)} weights")
    return [positive("a weight", weight) for weight in weights]


def _record(results: dict[int, MetricRecord], round: int, metrics: MetricRecord | None) -> None:
    if metrics is not None:
        results[round] = metrics


def _metrics_of(closed: RoundResult) -> MetricRecord:
    """The clients whose updates were counted, and those whose updates were refused."""
    return MetricRecord({"counted": list(closed.counted), "refused": sorted(closed.refused)})
