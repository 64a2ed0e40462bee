"""Adapter to FedLab's Scaffold: its server handler and its serial trainer of clients."""

from types import SimpleNamespace
from typing import Any

from fedscaffold.conformance.adapters import Adapter
from fedscaffold.conformance.adapters import torch_records as common
from fedscaffold.conformance.task import Array, Task

scaffold = common.without(common.TORCHVISION, "fedlab.contrib.algorithm.scaffold")


class FedLabScaffold(Adapter):
    """A serial trainer that runs the clients of a cohort one after another, on one batch of all their records."""

    def _begin(self, task: Task) -> None:
        self.server = scaffold.ScaffoldServerHandler(
            common.TorchLinearModel(task.theta0), global_round=10**9, sample_ratio=1.0
        )
        self.server.num_clients = task.n_clients
        self.server.setup_optim(lr=1.0)
        self.trainer = scaffold.ScaffoldSerialClientTrainer(common.TorchLinearModel(task.theta0), task.n_clients)
        self.trainer.setup_dataset(SimpleNamespace(get_dataloader=lambda c, batch_size: [common.records(task, c)]))
        self._set_up(task)

    def _set_up(self, task: Task) -> None:
        self.trainer.setup_optim(epochs=task.local_steps[0], batch_size=task.dim, lr=task.step_size)
        self.trainer.criterion = common.half_squared_error

    def reconfigure(self, task: Task) -> None:
        """Take the step size and the local steps of another task; the trainer keeps its control variates."""
        kept = self.trainer.cs
        self._set_up(task)
        self.trainer.cs = kept

    def _round(self, cohort: tuple[int, ...]) -> None:
        self.server.sample_ratio = len(cohort) / self.server.num_clients + 1e-9
        self.trainer.local_process(self.server.downlink_package, cohort)
        for package in self.trainer.uplink_package:
            self.server.load(package)

    def _model(self) -> Array:
        return common.as_array(self.server.model_parameters)

    def _variates(self, client: int) -> tuple[Array, Any]:
        own = self.trainer.cs[client]  # None before its first round
        return common.as_array(self.server.global_c), 0.0 if own is None else common.as_array(own)
