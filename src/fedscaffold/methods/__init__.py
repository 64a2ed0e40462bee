"""Federated methods, one file each, all with the interface `fedscaffold.core.protocols.Method`."""

from fedscaffold.methods.fedavg import FedAvg
from fedscaffold.methods.fedlin import FedLin
from fedscaffold.methods.fedprox import FedProx
from fedscaffold.methods.fedsplit import FedSplit
from fedscaffold.methods.proxskip import ProxSkip
from fedscaffold.methods.scaffold import Scaffold
from fedscaffold.methods.scallion import Scallion
from fedscaffold.methods.server_optimizer import ServerOptimizer
from fedscaffold.methods.tamuna import Tamuna
from fedscaffold.methods.two_sided import TwoSidedScaffold

ScaffLSA = Scaffold  # what Mangold et al. (2024) call it on linear stochastic approximation

__all__ = [
    "FedAvg",
    "FedLin",
    "FedProx",
    "FedSplit",
    "ProxSkip",
    "ScaffLSA",
    "Scaffold",
    "Scallion",
    "ServerOptimizer",
    "Tamuna",
    "TwoSidedScaffold",
]


def __dir__() -> list[str]:
    return __all__
