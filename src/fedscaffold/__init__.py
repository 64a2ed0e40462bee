"""Federated optimisation with Scaffold on stochastic gradients: simulate, predict, deploy."""

from fedscaffold import engines, problems, traces
from fedscaffold.core.errors import CheckpointMismatch, Diverged, FedScaffoldError, InvalidInput, MissingDependency
from fedscaffold.methods import FedAvg, Scaffold
from fedscaffold.run import run
from fedscaffold.traces import Trace

__all__ = [
    "CheckpointMismatch",
    "Diverged",
    "FedAvg",
    "FedScaffoldError",
    "InvalidInput",
    "MissingDependency",
    "Scaffold",
    "Trace",
    "engines",
    "problems",
    "run",
    "traces",
]
__version__ = "0.1.0"
