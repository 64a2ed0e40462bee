"""Federated methods, one file each, all with the interface `fedscaffold.core.protocols.Method`."""

from typing import TYPE_CHECKING, Any

from fedscaffold.core.checks import suggest_names
from fedscaffold.core.imports import load_on_demand

if TYPE_CHECKING:
    from fedscaffold.methods.amplified import AmplifiedScaffold
    from fedscaffold.methods.fedavg import FedAvg
    from fedscaffold.methods.fedlin import FedLin
    from fedscaffold.methods.private.gradient_scaffold import GradientScaffold
    from fedscaffold.methods.proximal.apda import Apda
    from fedscaffold.methods.proximal.fedprox import FedProx
    from fedscaffold.methods.proximal.fedsplit import FedSplit
    from fedscaffold.methods.proxskip import ProxSkip
    from fedscaffold.methods.randprox import RandProx
    from fedscaffold.methods.scaffold import ScaffLSA, Scaffold
    from fedscaffold.methods.scallion import Scallion
    from fedscaffold.methods.server_optimizer import ServerOptimizer
    from fedscaffold.methods.tamuna import Tamuna
    from fedscaffold.methods.two_sided import TwoSidedScaffold
    from fedscaffold.methods.variance_reduced.local_svrg import LocalSvrg
    from fedscaffold.methods.variance_reduced.vr_proxskip import VRProxSkip

__all__ = [
    "AmplifiedScaffold",
    "Apda",
    "FedAvg",
    "FedLin",
    "FedProx",
    "FedSplit",
    "GradientScaffold",
    "LocalSvrg",
    "ProxSkip",
    "RandProx",
    "ScaffLSA",
    "Scaffold",
    "Scallion",
    "ServerOptimizer",
    "Tamuna",
    "TwoSidedScaffold",
    "VRProxSkip",
]

_load = load_on_demand(
    __name__,
    {
        "AmplifiedScaffold": "amplified",
        "Apda": "proximal.apda",
        "FedAvg": "fedavg",
        "FedLin": "fedlin",
        "FedProx": "proximal.fedprox",
        "FedSplit": "proximal.fedsplit",
        "GradientScaffold": "private.gradient_scaffold",
        "LocalSvrg": "variance_reduced.local_svrg",
        "ProxSkip": "proxskip",
        "RandProx": "randprox",
        "ScaffLSA": "scaffold",
        "Scaffold": "scaffold",
        "Scallion": "scallion",
        "ServerOptimizer": "server_optimizer",
        "Tamuna": "tamuna",
        "TwoSidedScaffold": "two_sided",
        "VRProxSkip": "variance_reduced.vr_proxskip",
    },
)


def __getattr__(name: str) -> Any:
    return suggest_names(_load(name)) if name in __all__ else _load(name)


def __dir__() -> list[str]:
    return __all__
