"""Adapter to FL-bench's SCAFFOLD: its server, and the one worker that plays all clients in its serial mode."""

from collections import OrderedDict
from functools import partial
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch

from fedscaffold.conformance.adapters import Adapter
from fedscaffold.conformance.adapters import torch_records as common
from fedscaffold.conformance.task import Array, Task

UNUSED = (*common.TORCHVISION, "pynvml", "ray", "ray.actor", "torchvision.models", "torchvision.io.image")
scaffold: Any = common.without(UNUSED, "src.server.scaffold")
trainer: Any = common.without([], "src.utils.trainer")


class FLBenchScaffold(Adapter):
    """The server and its trainer; data sets, logs and files are left out."""

    def _begin(self, task: Task) -> None:
        self.theta0, options = torch.tensor(task.theta0), _options(task)

        def start(server: Any, args: Any) -> None:
            server.args, server.client_num, server.train_clients = args, task.n_clients, range(task.n_clients)
            server.public_model_params = OrderedDict(theta=self.theta0.clone())
            server.client_local_epoches = task.local_steps
            for kept in ("clients_personal_model_params", "client_optimizer_states", "client_lr_scheduler_states",
                         "client_metrics"):  # fmt: skip
                setattr(server, kept, {c: {} for c in range(task.n_clients)})
            server.verbose, server.current_epoch = False, 0

        with patch.object(scaffold.FedAvgServer, "__init__", start):
            self.server = scaffold.SCAFFOLDServer(options)
        tables = [common.records(task, c) for c in range(task.n_clients)]
        rows = [list(range(c * task.dim, (c + 1) * task.dim)) for c in range(task.n_clients)]
        self.trainer = trainer.FLbenchTrainer(
            server=self.server, client_cls=scaffold.SCAFFOLDClient, mode=trainer.MODE.SERIAL, num_workers=0,
            init_args={
                "model": common.TorchLinearModel(task.theta0), "lr_scheduler_cls": None, "args": options,
                "optimizer_cls": partial(torch.optim.SGD, lr=task.step_size), "device": torch.device("cpu"),
                "dataset": _Records(*(torch.cat(parts) for parts in zip(*tables, strict=True))),
                "data_indices": [{"train": own, "val": [], "test": []} for own in rows], "return_diff": True,
            },
        )  # fmt: skip
        self.trainer.worker.criterion = common.half_squared_error

    def _round(self, cohort: tuple[int, ...]) -> None:
        self.server.selected_clients = list(cohort)
        self.server.aggregate_client_updates(self.trainer.train())

    def _model(self) -> Array:
        return common.as_array(self.server.public_model_params["theta"])

    def correction(self, client: int) -> Array:
        """Return the correction c − c_i that the server sends in its next package."""
        package = self.server.package(client)
        return common.as_array(package["c_global"][0]) - common.as_array(package["c_local"][0])


class _Records(torch.utils.data.TensorDataset):
    """The records of all clients, with the two modes that FL-bench switches."""

    def train(self) -> None:
        """Do nothing: records are not transformed."""

    eval = train


def _options(task: Task) -> Any:
    tests = SimpleNamespace(client=SimpleNamespace(train=False, val=False, test=False))
    common = SimpleNamespace(
        buffers="global", batch_size=task.dim, local_epoch=task.local_steps[0], test=tests,
        reset_optimizer_on_global_epoch=True, client_side_evaluation=False,
    )  # fmt: skip
    optimizer = SimpleNamespace(lr=task.step_size)
    return SimpleNamespace(common=common, optimizer=optimizer, scaffold=SimpleNamespace(global_lr=1.0))
