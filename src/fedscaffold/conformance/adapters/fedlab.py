"""Adapter to FedLab's Scaffold: its server handler and its serial trainer of clients."""

from typing import Any

import torch

from fedscaffold.conformance.adapters.torch_records import (
    TorchLinearModel,
    as_array,
    half_squared_error,
    records,
    without_torchvision,
)
from fedscaffold.conformance.task import Array, NotSupported, Task

scaffold = without_torchvision("fedlab.contrib.algorithm.scaffold")


class OneBatch:
    """A data set whose loaders have one batch: all records of the client."""

    def __init__(self, task: Task) -> None:
        self.task = task

    def get_dataloader(self, client: int, batch_size: int) -> list[tuple[Any, Any]]:
        """Return the client's only batch."""
        return [records(self.task, client)]


class FedLabScaffold:
    """A serial trainer that runs the clients of a cohort one after another."""

    def __init__(self, task: Task) -> None:
        if not (task.has_equal_weights and task.has_equal_local_steps):
            raise NotSupported("its clients have equal weights and the same number of epochs")
        self.server = scaffold.ScaffoldServerHandler(
            TorchLinearModel(task.theta0), global_round=10**9, sample_ratio=1.0
        )
        self.server.num_clients = task.n_clients
        self.server.setup_optim(lr=1.0)
        self.trainer = scaffold.ScaffoldSerialClientTrainer(TorchLinearModel(task.theta0), task.n_clients)
        self.trainer.setup_dataset(OneBatch(task))
        self.trainer.setup_optim(epochs=task.local_steps[0], batch_size=task.dim, lr=task.step_size)
        self.trainer.criterion = half_squared_error

    def reconfigure(self, task: Task) -> None:
        """Take the step size and the local steps of another task; the trainer keeps its control variates."""
        kept = self.trainer.cs
        self.trainer.setup_optim(epochs=task.local_steps[0], batch_size=task.dim, lr=task.step_size)
        self.trainer.criterion, self.trainer.cs = half_squared_error, kept

    def round(self, cohort: tuple[int, ...]) -> None:
        """Run one communication round with these clients."""
        self.server.sample_ratio = len(cohort) / self.server.num_clients + 1e-9
        self.trainer.local_process(self.server.downlink_package, cohort)
        for package in self.trainer.uplink_package:
            self.server.load(package)

    def model(self) -> Array:
        """Return the server's model θ."""
        return as_array(self.server.model_parameters)

    def correction(self, client: int) -> Array:
        """Return the correction c − c_i; a client that never took part has no c_i yet."""
        own = self.trainer.cs[client]
        return as_array(self.server.global_c - (torch.zeros_like(self.server.global_c) if own is None else own))
