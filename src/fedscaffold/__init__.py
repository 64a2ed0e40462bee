"""Federated optimisation with Scaffold on stochastic gradients: simulate, predict, deploy."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedscaffold import (
        benchmarking,
        conformance,
        dashboard,
        data,
        engines,
        federation,
        flower,
        inference,
        methods,
        models,
        privacy,
        problems,
        simulation,
        sklearn,
        theory,
    )
    from fedscaffold.core.errors import (
        CheckpointMismatch,
        Diverged,
        FedScaffoldError,
        InvalidInput,
        MissingDependency,
        NotStationary,
    )
    from fedscaffold.methods import (
        AmplifiedScaffold,
        Apda,
        FedAvg,
        FedLin,
        FedProx,
        FedSplit,
        LocalSvrg,
        ProxSkip,
        RandProx,
        ScaffLSA,
        Scaffold,
        Scallion,
        ServerOptimizer,
        Tamuna,
        TwoSidedScaffold,
        VRProxSkip,
    )
    from fedscaffold.models import Model
    from fedscaffold.models.from_data import fit
    from fedscaffold.simulation import RichardsonRomberg, Stage, Staged, Trace, richardson_romberg, run, staged
    from fedscaffold.theory import Plan, plan

__all__ = [
    "AmplifiedScaffold",
    "Apda",
    "CheckpointMismatch",
    "Diverged",
    "FedAvg",
    "FedLin",
    "FedProx",
    "FedScaffoldError",
    "FedSplit",
    "InvalidInput",
    "LocalSvrg",
    "MissingDependency",
    "Model",
    "NotStationary",
    "Plan",
    "ProxSkip",
    "RandProx",
    "RichardsonRomberg",
    "ScaffLSA",
    "Scaffold",
    "Scallion",
    "ServerOptimizer",
    "Stage",
    "Staged",
    "Tamuna",
    "Trace",
    "TwoSidedScaffold",
    "VRProxSkip",
    "benchmarking",
    "conformance",
    "dashboard",
    "data",
    "engines",
    "federation",
    "fit",
    "flower",
    "inference",
    "methods",
    "models",
    "plan",
    "privacy",
    "problems",
    "richardson_romberg",
    "run",
    "simulation",
    "sklearn",
    "staged",
    "theory",
]
__version__ = "0.1.0"

_MODULE_OF = {
    "AmplifiedScaffold": "methods",
    "Apda": "methods",
    "CheckpointMismatch": "core.errors",
    "Diverged": "core.errors",
    "FedAvg": "methods",
    "FedLin": "methods",
    "FedProx": "methods",
    "FedScaffoldError": "core.errors",
    "FedSplit": "methods",
    "InvalidInput": "core.errors",
    "LocalSvrg": "methods",
    "MissingDependency": "core.errors",
    "Model": "models",
    "NotStationary": "core.errors",
    "Plan": "theory",
    "ProxSkip": "methods",
    "RandProx": "methods",
    "RichardsonRomberg": "simulation",
    "ScaffLSA": "methods",
    "Scaffold": "methods",
    "Scallion": "methods",
    "ServerOptimizer": "methods",
    "Stage": "simulation",
    "Staged": "simulation",
    "Tamuna": "methods",
    "Trace": "simulation",
    "TwoSidedScaffold": "methods",
    "VRProxSkip": "methods",
    "fit": "models.from_data",
    "plan": "theory",
    "richardson_romberg": "simulation",
    "run": "simulation",
    "staged": "simulation",
}


def __getattr__(name: str) -> Any:
    """Load a public name when it is first used: a Flower client is a new process for every message."""
    if name in _MODULE_OF:
        found = getattr(import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
    elif name in __all__:
        found = import_module(f"{__name__}.{name}")
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return __all__
