"""Adapter to Fed-BioMed's Scaffold: its aggregator, and the local steps that its PyTorch training plan takes."""

import copy
from types import SimpleNamespace
from typing import Any

import torch

from fedscaffold.conformance.adapters import LoopAdapter
from fedscaffold.conformance.adapters.torch_records import TORCHVISION, as_array, sgd_steps, without
from fedscaffold.conformance.task import Array, Task

Scaffold = without(TORCHVISION, "fedbiomed.researcher.aggregators").Scaffold


class FedBiomedScaffold(LoopAdapter):
    """Nodes that keep nothing: the aggregator holds all control variates and sends each node its correction."""

    equal_weights = "its aggregator leaves weights out"
    equal_local_steps = "its aggregator takes one number of updates for all nodes"

    def _begin(self, task: Task) -> None:
        self.theta, self.rounds = {"theta": torch.tensor(task.theta0)}, 0
        nodes = [str(c) for c in range(task.n_clients)]
        self.aggregator = Scaffold(fds=SimpleNamespace(node_ids=lambda: nodes))

    def _round(self, cohort: tuple[int, ...], lost: tuple[int, ...]) -> None:
        args = self.aggregator.create_aggregator_args(self.theta, [str(c) for c in cohort])
        rate = {"theta": self.task.step_size}
        plan = SimpleNamespace(
            local_params=None, get_model_params=lambda **unused: self.theta,
            optimizer=lambda: SimpleNamespace(get_learning_rate=lambda: rate),
        )  # fmt: skip
        local = {c: self._trained(c, args[str(c)]["aggregator_correction"]["theta"]) for c in cohort}
        heard = {str(c): params for c, params in local.items() if c not in lost}
        replies = {node: {"optimizer_args": {"lr": rate}} for node in heard}
        self.theta = self.aggregator.aggregate(
            heard, {}, self.theta, plan, replies, n_updates=self.task.local_steps[0], n_round=self.rounds
        )
        self.rounds += 1

    def _trained(self, client: int, correction: Any) -> dict[str, Any]:
        """Run the node's loop: gradients minus the correction, then the optimizer's step."""
        model = sgd_steps(self.task, client, self._model(), lambda gradient: gradient.sub_(correction))
        return {"theta": model.theta.detach().clone()}

    def _model(self) -> Array:
        return as_array(self.theta["theta"])

    def correction(self, client: int) -> Array:
        """Return minus the vector that the aggregator would send the node, which the node subtracts."""
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
