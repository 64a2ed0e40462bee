"""The network, its data and how it is trained: plain PyTorch, but for the optimizer that it is given."""

from functools import cache
from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch.nn import functional

from fedscaffold.data import partition
from fedscaffold.flower.torch import CorrectedSGD, TrainingTask

Data = tuple[torch.Tensor, torch.Tensor]


def network(seed: int) -> torch.nn.Module:
    """64 pixels, 32 hidden units, 10 digits; the same first weights for the same seed."""
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10))


@cache
def digits() -> tuple[Data, Data]:
    """(pixels, digits) to learn from, and of every fourth image, to test on."""
    pixels, labels = load_digits(return_X_y=True)
    x, y = torch.tensor(pixels / 16.0, dtype=torch.float32), torch.tensor(labels)
    new = torch.arange(len(y)) % 4 == 3
    return (x[~new], y[~new]), (x[new], y[new])


def data_of(client: int, config: Any) -> Data:
    """One client's images: with a small alpha each digit is with few clients."""
    (x, y), _ = digits()
    owners = partition.dirichlet(
        y.numpy(), n_clients=config["clients"], alpha=config["alpha"], seed=0, min_rows=20
    )
    own = np.flatnonzero(owners == client)
    return x[own], y[own]


def train(model: torch.nn.Module, optimizer: CorrectedSGD, task: TrainingTask, data: Data) -> None:
    """A training loop as any other; `task.rows` draws each step's images from the run's seed."""
    x, y = data
    for rows in task.rows(len(y)):
        optimizer.zero_grad()
        functional.cross_entropy(model(x[rows]), y[rows]).backward()
        optimizer.step()


def accuracy(model: torch.nn.Module) -> float:
    """On the images to test on."""
    _, (x, y) = digits()
    model.eval()
    with torch.no_grad():
        return float((model(x).argmax(dim=1) == y).double().mean())
