"""Adapter to Fed-BioMed's Scaffold: its aggregator, and the local steps that its PyTorch training plan takes."""

import copy
from types import SimpleNamespace
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

Scaffold = without_torchvision("fedbiomed.researcher.aggregators").Scaffold


class FedBiomedScaffold:
    """Nodes that keep nothing: the aggregator holds all control variates and sends each node its correction."""

    def __init__(self, task: Task) -> None:
        if not (task.has_equal_weights and task.has_equal_local_steps):
            raise NotSupported("its aggregator leaves weights out and takes one number of updates for all nodes")
        self.task, self.theta, self.rounds = task, {"theta": torch.tensor(task.theta0)}, 0
        nodes = [str(c) for c in range(task.n_clients)]
        self.aggregator = Scaffold(fds=SimpleNamespace(node_ids=lambda: nodes))

    def reconfigure(self, task: Task) -> None:
        """Take the step size and the local steps of another task."""
        self.task = task

    def round(self, cohort: tuple[int, ...]) -> None:
        """Run one communication round with these clients."""
        self.round_with_lost_replies(cohort, ())

    def round_with_lost_replies(self, cohort: tuple[int, ...], lost: tuple[int, ...]) -> None:
        """Run one round in which the nodes of `lost` train, but their replies do not reach the aggregator."""
        args = self.aggregator.create_aggregator_args(self.theta, [str(c) for c in cohort])
        rate = {"theta": self.task.step_size}
        plan = SimpleNamespace(
            local_params=None, get_model_params=lambda **unused: self.theta,
            optimizer=lambda: SimpleNamespace(get_learning_rate=lambda: rate),
        )  # fmt: skip
        local = {str(c): self._trained(c, args[str(c)]["aggregator_correction"]["theta"]) for c in cohort}
        heard = {node: params for node, params in local.items() if int(node) not in lost}
        replies = {node: {"optimizer_args": {"lr": rate}} for node in heard}
        self.theta = self.aggregator.aggregate(
            heard, {}, self.theta, plan, replies, n_updates=self.task.local_steps[0], n_round=self.rounds
        )
        self.rounds += 1

    def _trained(self, client: int, correction: Any) -> dict[str, Any]:
        """Run the node's loop: gradients minus the correction, then the optimizer's step."""
        model = TorchLinearModel(as_array(self.theta["theta"]))
        sgd = torch.optim.SGD(model.parameters(), lr=self.task.step_size)
        x, y = records(self.task, client)
        for _ in range(self.task.local_steps[client]):
            sgd.zero_grad()
            half_squared_error(model(x), y).backward()
            model.theta.grad.sub_(correction)
            sgd.step()
        return {"theta": model.theta.detach().clone()}

    def model(self) -> Array:
        """Return the server's model θ."""
        return as_array(self.theta["theta"])

    def correction(self, client: int) -> Array:
        """Minus what the aggregator would send the node, which the node subtracts."""
        args = self.aggregator.create_aggregator_args(self.theta, [str(client)])
        return -as_array(args[str(client)]["aggregator_correction"]["theta"])

    def save_server(self) -> Any:
        """Return the model and the aggregator's control variates."""
        return copy.deepcopy((self.theta, self.rounds, self.aggregator.__dict__ | {"_fds": None}))

    def restart_server(self, saved: Any) -> None:
        """Start a new aggregator with that state."""
        nodes = self.aggregator._fds
        self.theta, self.rounds, state = copy.deepcopy(saved)
        self.aggregator = Scaffold(fds=nodes)
        self.aggregator.__dict__.update(state | {"_fds": nodes})
