"""Adapter to FL4Health's Scaffold: its client, with data, model and optimizer of the task, and its strategy."""

import logging
from pathlib import Path
from typing import Any

import torch
from flwr.common import Code, FitRes, Status, ndarrays_to_parameters, parameters_to_ndarrays
from torch.utils.data import DataLoader, TensorDataset

from fedscaffold.conformance.adapters import LossyAdapter
from fedscaffold.conformance.adapters import torch_records as common
from fedscaffold.conformance.task import Array, Task

ScaffoldClient: Any = common.without(
    ["wandb", "wandb.wandb_run"], "fl4health.clients.scaffold_client"
).ScaffoldClient
Scaffold: Any = common.without([], "fl4health.strategies.scaffold").Scaffold
logging.getLogger("flwr").setLevel(logging.ERROR)  # it writes several lines per client and round


class Client(ScaffoldClient):
    """A client that has all of its records in one batch."""

    def __init__(self, task: Task, number: int) -> None:
        super().__init__(Path(), [], torch.device("cpu"))
        self.task, self.number = task, number

    def get_model(self, config: Any) -> torch.nn.Module:
        """Return the linear model."""
        return common.TorchLinearModel(self.task.theta0)

    def get_optimizer(self, config: Any) -> torch.optim.Optimizer:
        """Return plain gradient steps."""
        return torch.optim.SGD(self.model.parameters(), lr=self.task.step_size)

    def get_criterion(self, config: Any) -> Any:
        """Return the quadratic loss, as a module."""
        criterion = torch.nn.Module()
        criterion.forward = common.half_squared_error
        return criterion

    def get_data_loaders(self, config: Any) -> tuple[Any, Any]:
        """Return one batch, for training and for validation."""
        data = DataLoader(TensorDataset(*common.records(self.task, self.number)), batch_size=self.task.dim)
        return data, data


class FL4HealthScaffold(LossyAdapter):
    """Clients that receive and send the packed parameters of the strategy, which averages them without weights."""

    equal_weights = "its strategy averages without weights"
    equal_local_steps = ""

    def _begin(self, task: Task) -> None:
        self.rounds, self.clients = 0, [Client(task, c) for c in range(task.n_clients)]
        self.strategy = Scaffold(
            initial_parameters=ndarrays_to_parameters([task.theta0]), model=common.TorchLinearModel(task.theta0)
        )
        self.packed = self.strategy.initial_parameters

    def _round(self, cohort: tuple[int, ...], lost: tuple[int, ...]) -> None:
        self.rounds += 1
        self.strategy.fraction_fit = len(cohort) / len(self.clients)
        results: list[Any] = []
        for c in cohort:
            config = {"current_server_round": self.rounds, "local_steps": self.task.local_steps[c]}
            arrays, count, _ = self.clients[c].fit(parameters_to_ndarrays(self.packed), config)
            if c not in lost:
                reply = FitRes(Status(Code.OK, ""), ndarrays_to_parameters(arrays), count, {})
                results.append((self.clients[c], reply))
        self.packed, _ = self.strategy.aggregate_fit(self.rounds, results, [])

    def _model(self) -> Array:
        return self.strategy.server_model_weights[0]

    def _variates(self, client: int) -> tuple[Array, Array]:
        server, own = self.strategy.server_control_variates, self.clients[client].client_control_variates
        return server[0], (server if own is None else own)[0]  # one without takes the server's at its first round
