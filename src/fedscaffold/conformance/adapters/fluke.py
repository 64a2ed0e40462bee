"""Adapter to fluke's SCAFFOLD: its client and server classes on their channel."""

from typing import Any

import torch
from fluke.algorithms.scaffold import SCAFFOLDClient, SCAFFOLDServer
from fluke.config import OptimizerConfigurator
from fluke.data import FastDataLoader

from fedscaffold.conformance.adapters import Adapter
from fedscaffold.conformance.adapters import torch_records as common
from fedscaffold.conformance.task import Array, Task


class FlukeScaffold(Adapter):
    """Clients weighted by their numbers of records, as fluke does by default."""

    equal_weights = equal_local_steps = ""

    def _begin(self, task: Task) -> None:
        self.rounds = 0
        sgd = OptimizerConfigurator({"name": torch.optim.SGD, "lr": task.step_size})
        self.clients = [
            SCAFFOLDClient(
                index=c, train_set=FastDataLoader(*table, num_labels=1, batch_size=0),
                test_set=None, optimizer_cfg=sgd, loss_fn=common.half_squared_error,
                local_epochs=task.local_steps[c],
            )
            for c, table in enumerate(common.weighted_records(task))
        ]  # fmt: skip
        self.server = SCAFFOLDServer(common.TorchLinearModel(task.theta0), None, self.clients)
        for client in self.clients:
            client.set_channel(self.server.channel)

    def _round(self, cohort: tuple[int, ...]) -> None:
        self.rounds += 1
        eligible = [self.clients[c] for c in cohort]
        self.server.broadcast_model(eligible)
        for client in eligible:
            client.local_update(self.rounds)
        self.server.aggregate(eligible, self.server.receive_client_models(eligible, state_dict=False))

    def _model(self) -> Array:
        return common.as_array(self.server.model.theta)

    def _variates(self, client: int) -> tuple[Array, Any]:
        self.clients[client]._load_from_cache()
        own = self.clients[client].control  # None before its first round
        self.clients[client]._save_to_cache()
        return common.as_array(self.server.control["theta"]), 0.0 if own is None else common.as_array(own["theta"])
