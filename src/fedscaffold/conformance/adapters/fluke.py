"""Adapter to fluke's SCAFFOLD: its client and server classes on their channel."""

import torch
from fluke.algorithms.scaffold import SCAFFOLDClient, SCAFFOLDServer
from fluke.config import OptimizerConfigurator
from fluke.data import FastDataLoader

from fedscaffold.conformance.adapters.torch_records import (
    TorchLinearModel,
    as_array,
    half_squared_error,
    record_counts,
    records,
)
from fedscaffold.conformance.task import Array, Task


class FlukeScaffold:
    """Clients weighted by their numbers of records, as fluke does by default."""

    def __init__(self, task: Task) -> None:
        self.rounds = 0
        sgd = OptimizerConfigurator({"name": torch.optim.SGD, "lr": task.step_size})
        self.clients = [
            SCAFFOLDClient(
                index=c, train_set=FastDataLoader(*records(task, c, count), num_labels=1, batch_size=0),
                test_set=None, optimizer_cfg=sgd, loss_fn=half_squared_error, local_epochs=task.local_steps[c],
            )
            for c, count in enumerate(record_counts(task))
        ]  # fmt: skip
        self.server = SCAFFOLDServer(TorchLinearModel(task.theta0), None, self.clients)
        for client in self.clients:
            client.set_channel(self.server.channel)

    def round(self, cohort: tuple[int, ...]) -> None:
        """Run one communication round with these clients."""
        self.rounds += 1
        eligible = [self.clients[c] for c in cohort]
        self.server.broadcast_model(eligible)
        for client in eligible:
            client.local_update(self.rounds)
        self.server.aggregate(eligible, self.server.receive_client_models(eligible, state_dict=False))

    def model(self) -> Array:
        """Return the server's model θ."""
        return as_array(self.server.model.theta)

    def correction(self, client: int) -> Array:
        """Return the correction c − c_i; a client that never took part has no c_i yet."""
        self.clients[client]._load_from_cache()
        own = self.clients[client].control
        self.clients[client]._save_to_cache()
        return as_array(self.server.control["theta"]) - (0.0 if own is None else as_array(own["theta"]))
