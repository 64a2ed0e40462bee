"""Federated optimisation with Scaffold on stochastic gradients: simulate, predict, deploy."""

from fedscaffold import engines, models, problems, theory, traces
from fedscaffold.core.errors import (
    CheckpointMismatch,
    Diverged,
    FedScaffoldError,
    InvalidInput,
    MissingDependency,
    NotStationary,
)
from fedscaffold.methods import FedAvg, FedLin, ProxSkip, ScaffLSA, Scaffold, ServerOptimizer, TwoSidedScaffold
from fedscaffold.models import Model
from fedscaffold.plan import Plan, plan
from fedscaffold.richardson_romberg import RichardsonRomberg, richardson_romberg
from fedscaffold.run import run
from fedscaffold.staged import Stage, Staged, staged
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
    "NotStationary",
    "Plan",
    "ProxSkip",
    "RichardsonRomberg",
    "ScaffLSA",
    "Scaffold",
    "ServerOptimizer",
    "Stage",
    "Staged",
    "Trace",
    "TwoSidedScaffold",
    "engines",
    "models",
    "plan",
    "problems",
    "richardson_romberg",
    "run",
    "staged",
    "theory",
    "traces",
]
__version__ = "0.1.0"
