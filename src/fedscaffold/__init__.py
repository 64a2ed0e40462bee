"""Federated optimisation with Scaffold on stochastic gradients: simulate, predict, deploy."""

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedscaffold import engines, models, problems, theory, traces
    from fedscaffold.core.errors import (
        CheckpointMismatch,
        Diverged,
        FedScaffoldError,
        InvalidInput,
        MissingDependency,
        NotStationary,
    )
    from fedscaffold.methods import FedAvg, FedLin, ProxSkip, ScaffLSA, Scaffold, TwoSidedScaffold
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

_ERRORS = (
    "CheckpointMismatch", "Diverged", "FedScaffoldError", "InvalidInput", "MissingDependency", "NotStationary",
)  # fmt: skip
_METHODS = ("FedAvg", "FedLin", "ProxSkip", "ScaffLSA", "Scaffold", "TwoSidedScaffold")
_FUNCTIONS = ("plan", "richardson_romberg", "run", "staged")  # called like the modules that they are in
_PLACES = {
    **dict.fromkeys(_ERRORS, "core.errors"),
    **dict.fromkeys(_METHODS, "methods"),
    **{name: name for name in _FUNCTIONS},
    "Model": "models",
    "Plan": "plan",
    "RichardsonRomberg": "richardson_romberg",
    "Stage": "staged",
    "Staged": "staged",
    "Trace": "traces",
}


class _Front(ModuleType):
    """Loads what is asked for when it is asked for: a Flower client is a new process for every message."""

    def __getattr__(self, name: str) -> Any:
        if name in _PLACES:
            found = getattr(import_module(f"{__name__}.{_PLACES[name]}"), name)
            setattr(self, name, found)
            return found
        if name in __all__:
            return import_module(f"{__name__}.{name}")
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def __setattr__(self, name: str, value: Any) -> None:
        """Python puts a module that was imported here; of those that are called like a function, the function."""
        if name in _FUNCTIONS and isinstance(value, ModuleType):
            value = getattr(value, name)
        super().__setattr__(name, value)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *__all__})


sys.modules[__name__].__class__ = _Front
