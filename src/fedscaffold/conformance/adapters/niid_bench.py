"""Adapter to NIID-Bench's scaffold: its functions that train the parties of a round and move the server variate.

Its script averages the models between rounds in its main block, which cannot be called; the adapter does that.
"""

import copy
import logging
import sys
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock, patch

import torch
from torch.utils.data import DataLoader, TensorDataset

from fedscaffold.conformance.adapters.torch_records import (
    TorchLinearModel,
    as_array,
    half_squared_error,
    record_counts,
    records,
    without_torchvision,
)
from fedscaffold.conformance.task import Array, NotSupported, Task

for name in ("datasets", "models", "models.mnist_model", "torchvision.models", "torchvision.utils"):  # of images
    sys.modules.setdefault(name, MagicMock())
experiments: Any = without_torchvision("experiments")
experiments.logger = logging.getLogger("niid-bench")
experiments.logger.disabled = True  # it writes two lines per party and round


class QuadraticLoss(torch.nn.Module):
    """The quadratic loss in the place of the cross-entropy, whose targets are whole numbers."""

    def __init__(self, targets: Any) -> None:
        super().__init__()
        self.targets = targets

    def forward(self, predicted: Any, numbers: Any) -> Any:
        """Return ½‖Xθ − y‖², y the targets with these numbers."""
        return half_squared_error(predicted, self.targets[numbers])


class NIIDBenchScaffold:
    """Parties weighted by their numbers of records, as its script does."""

    def __init__(self, task: Task) -> None:
        if not task.has_equal_local_steps:
            raise NotSupported("its parties train the same number of epochs")
        self.counts, self.global_model = record_counts(task), TorchLinearModel(task.theta0)
        self.nets = {c: copy.deepcopy(self.global_model) for c in range(task.n_clients)}
        zero = TorchLinearModel(0.0 * task.theta0)
        self.c_global, self.c_nets = zero, {c: copy.deepcopy(zero) for c in range(task.n_clients)}
        tables = [records(task, c, count) for c, count in enumerate(self.counts)]
        self.loss, first = QuadraticLoss(torch.cat([y for _, y in tables])), 0
        self.loaders = []
        for (x, _), count in zip(tables, self.counts, strict=True):
            data = TensorDataset(x, torch.arange(first, first + count))
            self.loaders.append(DataLoader(data, batch_size=count))
            first += count
        self.options = SimpleNamespace(
            noise=0.0, noise_type="level", n_parties=task.n_clients, dataset="", datadir="", batch_size=0, rho=0.0,
            reg=0.0, epochs=task.local_steps[0], lr=task.step_size, optimizer="sgd", alg="scaffold",
        )  # fmt: skip

    def round(self, cohort: tuple[int, ...]) -> None:
        """Run one communication round with these parties."""
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

    def model(self) -> Array:
        """Return the server's model θ."""
        return as_array(self.global_model.theta)

    def correction(self, client: int) -> Array:
        """Return the correction c − c_i."""
        return as_array(self.c_global.theta) - as_array(self.c_nets[client].theta)


def _no_accuracy(*unused: Any, get_confusion_matrix: bool = False, **other: Any) -> Any:
    """Return what the script's function returns, without the predictions of classes that it needs."""
    return (0.0, None) if get_confusion_matrix else 0.0
