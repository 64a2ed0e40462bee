"""Federated optimisation with Scaffold on stochastic gradients: simulate, predict, deploy."""

from fedscaffold import engines, models, problems, theory, traces
from fedscaffold.core.errors import CheckpointMismatch, Diverged, FedScaffoldError, InvalidInput, MissingDependency
from fedscaffold.methods import FedAvg, FedLin, ProxSkip, ScaffLSA, Scaffold, TwoSidedScaffold
from fedscaffold.models import Model
from fedscaffold.plan import Plan, plan
from fedscaffold.run import run
from fedscaffold.traces import Trace

__all__ = [
    "CheckpointMismatch",
    "Diverged",
    "FedAvg",
    "FedLin",
    "FedScaffoldError",
    "InvalidInput",
    "MissingDependency",
    "Model",
    "Plan",
    "ProxSkip",
    "ScaffLSA",
    "Scaffold",
    "Trace",
    "TwoSidedScaffold",
    "engines",
    "models",
    "plan",
    "problems",
    "run",
    "theory",
    "traces",
]
__version__ = "0.1.0"
