"""Adapter to NIID-Bench's scaffold: its functions that train the parties of a round and move the server variate.

Its script averages the models between rounds in its main block, which cannot be called; the adapter does that.
"""

import copy
import logging
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
from torch.utils.data import DataLoader, TensorDataset

from fedscaffold.conformance.adapters import Adapter
from fedscaffold.conformance.adapters import torch_records as common
from fedscaffold.conformance.task import Array, Task

IMAGES = (
    *common.TORCHVISION,
    "datasets",
    "models",
    "models.mnist_model",
    "torchvision.models",
    "torchvision.utils",
)
experiments: Any = common.without(IMAGES, "experiments")
experiments.logger = logging.getLogger("niid-bench")
experiments.logger.disabled = True  # it writes two lines per party and round


class QuadraticLoss(torch.nn.Module):
    """The quadratic loss in the place of the cross-entropy, whose targets are whole numbers."""

    def __init__(self, targets: Any) -> None:
        super().__init__()
        self.targets = targets

    def forward(self, predicted: Any, numbers: Any) -> Any:
        """Return ½‖Xθ − y‖², y the targets with these numbers."""
        return common.half_squared_error(predicted, self.targets[numbers])


class NIIDBenchScaffold(Adapter):
    """Parties weighted by their numbers of records, as its script does."""

    equal_weights = ""

    def _begin(self, task: Task) -> None:
        tables, self.global_model = common.weighted_records(task), common.TorchLinearModel(task.theta0)
        self.nets = {c: copy.deepcopy(self.global_model) for c in range(task.n_clients)}
        zero = common.TorchLinearModel(0.0 * task.theta0)
        self.c_global, self.c_nets = zero, {c: copy.deepcopy(zero) for c in self.nets}
        self.counts = [len(y) for _, y in tables]
        self.loss, numbers = QuadraticLoss(torch.cat([y for _, y in tables])), torch.arange(sum(self.counts))
        self.loaders = [
            DataLoader(TensorDataset(x, own), batch_size=len(x))
            for (x, _), own in zip(tables, numbers.split(self.counts), strict=True)
        ]
        self.options = SimpleNamespace(
            noise=0.0, noise_type="level", n_parties=task.n_clients, dataset="", datadir="", batch_size=0, rho=0.0,
            reg=0.0, epochs=task.local_steps[0], lr=task.step_size, optimizer="sgd", alg="scaffold",
        )  # fmt: skip

    def _round(self, cohort: tuple[int, ...]) -> None:
        for c in cohort:
            self.nets[c].load_state_dict(self.global_model.state_dict())
        party = {c: [c] for c in self.nets}

        def loaders(*arguments: Any) -> Any:
            own = arguments[4][0] if len(arguments) > 4 else 0
            return self.loaders[own], None, None, None

        with (
            patch.object(experiments, "args", self.options, create=True),
            patch.object(experiments, "get_dataloader", loaders),
            patch.object(experiments, "compute_accuracy", _no_accuracy),
            patch.object(experiments.nn, "CrossEntropyLoss", lambda: self.loss),
        ):
            experiments.local_train_net_scaffold(
                self.nets, cohort, self.global_model, self.c_nets, self.c_global, self.options, party
            )
        total = sum(self.counts[c] for c in cohort)
        mean = sum(self.counts[c] / total * self.nets[c].theta.detach() for c in cohort)
        self.global_model.load_state_dict({"theta": mean})

    def _model(self) -> Array:
        return common.as_array(self.global_model.theta)

    def _variates(self, client: int) -> tuple[Array, Array]:
        return common.as_array(self.c_global.theta), common.as_array(self.c_nets[client].theta)


def _no_accuracy(*unused: Any, get_confusion_matrix: bool = False, **other: Any) -> Any:
    """Return what the script's function returns, without the predictions of classes that it needs."""
    return (0.0, None) if get_confusion_matrix else 0.0
