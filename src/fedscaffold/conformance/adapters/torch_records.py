"""A task's quadratic losses as records for PyTorch: ½‖Xθ − y‖², with X_cᵀX_c = A_c and y_c = X_c m_c."""

import sys
from collections.abc import Iterable
from importlib import import_module
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import torch

from fedscaffold.conformance.task import Array, Task

torch.set_default_dtype(torch.float64)
torch.set_num_threads(1)


TORCHVISION = ("torchvision", "torchvision.datasets", "torchvision.io", "torchvision.transforms")


def without(names: Iterable[str], module: str) -> Any:
    """Import a module of a library without packages that it needs for data sets and logs alone."""
    for name in names:
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


def weighted_records(task: Task) -> list[tuple[Any, Any]]:
    """Return the records of all clients, in numbers that are proportional to the weights."""
    return [records(task, c, round(1000 * weight)) for c, weight in enumerate(task.weights)]


def sgd_steps(task: Task, client: int, theta: Any, correct: Any = None, after: Any = None) -> TorchLinearModel:
    """Return the model after a client's local steps; `correct` changes gradients, `after` the model, in place."""
    model = theta if isinstance(theta, torch.nn.Module) else TorchLinearModel(theta)
    sgd = torch.optim.SGD(model.parameters(), lr=task.step_size)
    x, y = records(task, client)
    for _ in range(task.local_steps[client]):
        sgd.zero_grad()
        half_squared_error(model(x), y).backward()
        if correct is not None:
            correct(model.theta.grad)
        sgd.step()
        if after is not None:
            after(model)
    return model


def as_array(tensor: Any) -> Array:
    """Return a copy of a tensor as an array."""
    return np.array(tensor.detach().cpu().numpy(), dtype=np.float64)
