"""A task's quadratic losses as records for PyTorch: ½‖Xθ − y‖², with X_cᵀX_c = A_c and y_c = X_c m_c."""

import sys
from importlib import import_module
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import torch

from fedscaffold.conformance.task import Array, Task

torch.set_default_dtype(torch.float64)
torch.set_num_threads(1)


def without_torchvision(module: str) -> Any:
    """Import a module of a library that needs torchvision, which is not installed, for data sets alone."""
    for name in ("torchvision", "torchvision.datasets", "torchvision.io", "torchvision.transforms"):
        sys.modules.setdefault(name, MagicMock())
    return import_module(module)


class TorchLinearModel(torch.nn.Module):
    """The prediction Xθ, with θ as its only parameter, named "theta"."""

    def __init__(self, theta: Array) -> None:
        super().__init__()
        self.theta = torch.nn.Parameter(torch.tensor(np.asarray(theta)))

    def forward(self, x: Any) -> Any:
        """Return the predictions Xθ for the rows of X, shape (rows,)."""
        return x @ self.theta


def half_squared_error(predicted: Any, target: Any) -> Any:
    """Return ½‖Xθ − y‖², summed over records: rows of zeros change nothing."""
    return 0.5 * ((predicted - target) ** 2).sum()


def records(task: Task, client: int, count: int | None = None) -> tuple[Any, Any]:
    """Return X and y of a client, with `count` rows; the rows beyond the first `dim` are zeros."""
    root = np.linalg.cholesky(task.hessians[client]).T
    x = np.zeros((task.dim if count is None else count, task.dim))
    x[: task.dim] = root
    return torch.tensor(x), torch.tensor(x @ task.minimisers[client])


def record_counts(task: Task) -> list[int]:
    """Return numbers of records in proportion to the weights, each at least `dim`."""
    return [round(1000 * weight) for weight in task.weights]


def as_array(tensor: Any) -> Array:
    """Return a copy of a tensor as an array."""
    return np.array(tensor.detach().cpu().numpy(), dtype=np.float64)
