"""The server's side on Flower: any method, round after round, with its state on disk after each."""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
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
from fedscaffold.core.privacy import ClientLevel, Privacy
from fedscaffold.core.protocols import Method
from fedscaffold.core.random.stream import Batches, Sampling
from fedscaffold.core.types import Array, IntArray
from fedscaffold.federation.client.policy import check_noise
from fedscaffold.federation.messages import Reply, TrainRequest
from fedscaffold.federation.refusals import Refusal
from fedscaffold.federation.run_config import RunConfig
from fedscaffold.federation.server.round import RoundRules, TooFewClients
from fedscaffold.federation.server.session import open_session
from fedscaffold.flower.certificates import key_in_hexadecimal
from fedscaffold.flower.nodes import LOG, Nodes, show_protocol_log
from fedscaffold.flower.wire import arrays_like, vector_of

Weights = Literal["rows", "uniform"] | Sequence[float]
CLIENT_METRICS = ("counted", "refused", "shortened", "limited")  # clients by what became of their updates
Evaluate = Callable[[int, ArrayRecord], MetricRecord | None]


class Strategy:
    """A method on a Flower federation.

    The numbers agree with `fedscaffold.run` with the same seed to 1e-10, as long as no update is shortened (see
    `outlier_factor`) and, with minibatches, sites draw by the run's seed (see `SitePolicy`). One vector goes down
    and one comes up per client and round; control variates stay with the clients. A client that did not take part
    in the round before also receives the server state after its own last round. The cohorts are drawn from the
    seed, and sums are taken in the order of the clients.

    After every round the server's state is written to `folder`; the same call continues from there. No other
    process may use the folder meanwhile. Its audit.jsonl logs the run, and `fedscaffold status` reads it.

    A strategy is used as Flower's are, `strategy.start(grid=grid, initial_arrays=..., num_rounds=...)`, but is not
    a subclass of theirs: a round may take several messages to a client, which configure and aggregate lack.

    Parameters
    ----------
    method
        For example `fedscaffold.Scaffold(step_size=0.05, local_steps=100)`. Your own method must be a dataclass
        of plain settings whose class the nodes know too; see `methods` of `client_app`.
    n_clients
        N. The key partition-id of a node's configuration says which client it is, 0, ..., N − 1.
    folder
        Folder of the server's files, which is created.
    name
        Name of the run, which people at the sites read, and which their policies may allow or not. Each run also
        has a random identity, so that two runs of the same name are never mixed up.
    seed, batch_size, sampling
        As for `fedscaffold.run`.
    privacy
        Clipping and noise at the clients, from their own operating systems: `privacy.RecordLevel(...)` in every
        local step, on all rows, or `privacy.ClientLevel(...)` in their messages, with weights that do not
        reveal numbers of rows. A client with a budget in its policy pays before it computes.
    weights
        "rows": w_c in proportion to the clients' numbers of rows, which they report; "uniform"; or N numbers.
    min_clients, attempts, outlier_factor
        When a round may be closed and how long updates may be; see `fedscaffold.federation.RoundRules`.
    backup_client_states
        Whether the server keeps a backup of the client states, N·d numbers on its disk, so that a run with a
        client that lost its disk continues with the same numbers. Otherwise all client states are reset when that
        happens.
    keys
        The public key that each client's node must have, such as {0: "ecdsa-sha2-nistp384 AAAA...", ...}, as in
        the .pub files of node authentication, in PEM or in hexadecimal. Nodes with other keys are ignored.
    pin_node_keys
        Whether a client's node must keep the public key that it had first; first come, first served, so `keys` is
        safer. By default if nodes were registered before they were started, as with node authentication.
    keep_checkpoints
        How many of the newest checkpoints are kept. To return to an earlier round, stop the server and delete the
        later files in folder/checkpoints.
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
        privacy: Privacy | None = None,
        weights: Weights = "rows",
        min_clients: int = 2,
        attempts: int = 5,
        outlier_factor: float | None = 1.75,
        backup_client_states: bool = True,
        keys: Mapping[int, str] | None = None,
        pin_node_keys: bool | None = None,
        keep_checkpoints: int = 5,
        connect_timeout: float = 60.0,
        evaluation: FlowerStrategy | None = None,
    ) -> None:
        self.config = RunConfig(
            name=name, method=method, n_clients=n_clients, dim=1, seed=seed, batches=Batches(batch_size, sampling),
            privacy=privacy,
        )  # fmt: skip
        try:
            check_noise(self.config)
        except Refusal as refusal:  # which every site would answer
            raise InvalidInput(str(refusal)) from None
        if isinstance(privacy, ClientLevel) and isinstance(weights, str) and weights == "rows":
            raise InvalidInput(
                "with privacy=ClientLevel(...) clients must not report numbers of rows; take weights='uniform'"
            )
        self.rules = RoundRules(min_clients=min_clients, attempts=attempts, outlier_factor=outlier_factor)
        self.weights = _check_weights(weights, n_clients)
        self.folder, self.backup_client_states = Path(folder).expanduser(), backup_client_states
        self.keys = None if keys is None else _check_keys(keys, n_clients)
        self.pin_node_keys = pin_node_keys
        self.keep_checkpoints = whole_number("keep_checkpoints", keep_checkpoints, least=1)
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
        """Run, or continue, until `num_rounds` are closed; return the model in the shape of `initial_arrays`.

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
            raise InvalidInput("train_config is not sent to clients; they receive the method's settings")
        whole_number("num_rounds", num_rounds, least=1)
        positive("timeout", timeout)
        theta0 = vector_of(initial_arrays)
        if not np.isfinite(theta0).all():
            raise InvalidInput("initial_arrays hold NaN or infinite values")
        show_protocol_log()
        config = replace(self.config, dim=theta0.size)
        LOG.info("run %s: %s, %d clients, %d parameters", config.name, config.method, config.n_clients, config.dim)
        with open_session(
            self.folder, config, theta0, rules=self.rules, rounds=num_rounds, backup=self.backup_client_states,
            keep_checkpoints=self.keep_checkpoints,
        ) as session:  # fmt: skip
            nodes = Nodes(grid, config, allowed_keys=self.keys, pin_keys=self.pin_node_keys, keys=session.keys)
            given = self._given_weights()
            if session.saved is not None and given is not None and not np.allclose(session.saved.weights, given):
                raise CheckpointMismatch(
                    f"{self.folder} belongs to a run with other weights; choose another name and folder"
                )
            session.begin(lambda: self._resolve_weights(nodes))

            def send(requests: Sequence[TrainRequest]) -> Iterable[Reply]:
                return nodes.send(requests, timeout=timeout, connect_timeout=self.connect_timeout)

            result = Result(arrays=arrays_like(session.ledger.server.theta[0], initial_arrays))

            def evaluate(round: int) -> None:
                if self.evaluation is not None and round > 0:
                    settings = evaluate_config or ConfigRecord()
                    asked = self.evaluation.configure_evaluate(round, result.arrays, settings, grid)
                    replies = grid.send_and_receive(asked, timeout=timeout)
                    if metrics := self.evaluation.aggregate_evaluate(round, replies):
                        result.evaluate_metrics_clientapp[round] = metrics
                if evaluate_fn is not None and (found := evaluate_fn(round, result.arrays)) is not None:
                    result.evaluate_metrics_serverapp[round] = found

            if session.ledger.round == 0:
                evaluate(0)
            while session.ledger.round < num_rounds:
                closed = session.run_round(send)
                round = closed.ledger.round
                LOG.info("round %d of %d: %d clients counted", round, num_rounds, len(closed.counted))
                result.arrays = arrays_like(closed.ledger.server.theta[0], initial_arrays)
                result.train_metrics_clientapp[round] = MetricRecord(
                    {name: sorted(getattr(closed, name)) for name in CLIENT_METRICS}
                )
                evaluate(round)
        return result

    def _given_weights(self) -> Array | None:
        """Return w_c, (N,), with sum one; None if they depend on numbers of rows."""
        n = self.config.n_clients
        if isinstance(self.weights, str):
            return np.full(n, 1.0 / n) if self.weights == "uniform" else None
        return np.asarray(self.weights) / np.sum(self.weights)

    def _resolve_weights(self, nodes: Nodes) -> tuple[Array, IntArray]:
        """Return w_c, (N,), with sum one, and the numbers of rows, 0 if unknown; wait for clients if needed."""
        clients, given = range(self.config.n_clients), self._given_weights()
        if given is not None:
            return given, np.zeros(len(clients), dtype=np.int64)
        for _ in range(self.rules.attempts):
            online = nodes.wait_for(clients, seconds=self.connect_timeout)
            if len(online) == len(clients):
                break
            LOG.warning("waiting for clients %s", sorted(set(clients) - online))
        else:
            raise TooFewClients(
                f"clients {sorted(set(clients) - online)} are not online, and weights='rows' needs the number of "
                "rows of each client before the first round; start again when they are, or give weights"
            )
        reported = [nodes.hellos[client].n_rows for client in clients]
        silent = [client for client in clients if reported[client] is None]
        if silent:
            raise InvalidInput(
                f"the sites of clients {silent} do not report their number of rows, which weights='rows' needs; "
                "give weights as numbers, or 'uniform'"
            )
        rows = np.array(reported, dtype=np.int64)
        return rows / rows.sum(), rows


def _check_weights(weights: Weights, n_clients: int) -> Weights:
    if isinstance(weights, str):
        if weights not in ("rows", "uniform"):
            raise InvalidInput(f"weights must be 'rows', 'uniform' or {n_clients} numbers, got {weights!r}")
        return weights
    if len(weights) != n_clients:
        raise InvalidInput(f"there are {n_clients} clients, but {len(weights)} weights")
    return [positive("a weight", weight) for weight in weights]


def _check_keys(keys: Mapping[int, str], n_clients: int) -> dict[int, str]:
    missing = sorted(set(range(n_clients)) - set(keys))
    if missing or len(keys) != n_clients:
        raise InvalidInput(f"keys must have the key of each client, 0 to {n_clients - 1}; missing: {missing}")
    found = {client: key_in_hexadecimal(key) for client, key in keys.items()}
    if len(set(found.values())) != n_clients:
        raise InvalidInput("keys of different clients must differ")
    return found
