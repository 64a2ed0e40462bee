"""Adapter to PFLlib's SCAFFOLD: its server and client classes, with records that are read from the task."""

from types import SimpleNamespace
from typing import Any

import torch
from flcore.clients import clientbase
from flcore.servers import serverbase
from flcore.servers.serverscaffold import SCAFFOLD

from fedscaffold.conformance.adapters import Adapter
from fedscaffold.conformance.adapters.torch_records import TorchLinearModel, as_array, half_squared_error, records
from fedscaffold.conformance.task import Array, Task


class PFLlibScaffold(Adapter):
    """The server, whose clients have the quadratic loss instead of the cross-entropy."""

    def _begin(self, task: Task) -> None:
        for module in (clientbase, serverbase):
            module.read_client_data = lambda dataset, idx, **unused: list(zip(*records(task, idx), strict=True))
        self.server = SCAFFOLD(_options(task), 0)
        for client in self.server.clients:
            client.loss = half_squared_error

    def _round(self, cohort: tuple[int, ...]) -> None:
        """Do as `train` does."""
        self.server.num_join_clients = self.server.current_num_join_clients = len(cohort)
        self.server.selected_clients = [self.server.clients[c] for c in cohort]
        self.server.send_models()
        for client in self.server.selected_clients:
            client.train()
        self.server.receive_models()
        self.server.aggregate_parameters()

    def _model(self) -> Array:
        return as_array(self.server.global_model.theta)

    def _variates(self, client: int) -> tuple[Array, Array]:
        return as_array(self.server.global_c[0]), as_array(self.server.clients[client].client_c[0])


def _options(task: Task) -> Any:
    """Return the options that `main.py` would parse, with everything off that is no part of Scaffold."""
    off = dict.fromkeys(
        ("random_join_ratio", "few_shot", "time_select", "auto_break", "client_drop_rate", "train_slow_rate",
         "send_slow_rate", "dlg_eval", "num_new_clients", "learning_rate_decay"), 0,
    )  # fmt: skip
    unused = dict.fromkeys(
        ("goal", "save_folder_name", "top_cnt", "eval_gap", "dlg_gap", "batch_num_per_client", "num_classes",
         "fine_tuning_epoch_new", "dataset"), 1,
    )  # fmt: skip
    return SimpleNamespace(
        **off, **unused, device=torch.device("cpu"), global_rounds=1, local_epochs=task.local_steps[0],
        batch_size=task.dim, local_learning_rate=task.step_size, model=TorchLinearModel(task.theta0),
        num_clients=task.n_clients, join_ratio=1.0, algorithm="SCAFFOLD", time_threthold=1e9,
        server_learning_rate=1.0, learning_rate_decay_gamma=1.0,
    )  # fmt: skip
