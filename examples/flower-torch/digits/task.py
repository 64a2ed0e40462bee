"""The network, its data, and both as a client's problem."""

from functools import cache
from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_digits

import fedscaffold as fs
from fedscaffold.data import partition

Data = tuple[torch.Tensor, torch.Tensor]


def network(seed: int) -> torch.nn.Module:
    """Return a network of 64 pixels, 32 hidden units and 10 digits, with initial weights from the seed."""
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10))


@cache
def digits() -> tuple[Data, Data]:
    """Return (pixels, digits) for training, and of every fourth image for testing."""
    pixels, labels = load_digits(return_X_y=True)
    x, y = torch.tensor(pixels / 16.0, dtype=torch.float32), torch.tensor(labels)
    new = torch.arange(len(y)) % 4 == 3
    return (x[~new], y[~new]), (x[new], y[new])


def data_of(client: int, config: Any) -> Data:
    """Return one client's images; with a small alpha few clients have each digit."""
    (x, y), _ = digits()
    owners = partition.dirichlet(
        y.numpy(), n_clients=config["clients"], alpha=config["alpha"], seed=0, min_rows=20
    )
    own = np.flatnonzero(owners == client)
    return x[own], y[own]


def problem_of(data: Data) -> fs.problems.Torch:
    """Return one client's training: the engine draws each step's images from the run's seed."""
    return fs.problems.Torch(network(seed=0), torch.nn.CrossEntropyLoss(reduction="none"), [data])


def accuracy(model: torch.nn.Module) -> float:
    """Return the accuracy on the test images."""
    _, (x, y) = digits()
    model.eval()
    with torch.no_grad():
        return float((model(x).argmax(dim=1) == y).double().mean())
