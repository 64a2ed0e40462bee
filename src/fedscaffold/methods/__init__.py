"""Federated methods, one file each, all with the interface `fedscaffold.core.protocols.Method`."""

from fedscaffold.methods.amplified import AmplifiedScaffold
from fedscaffold.methods.fedavg import FedAvg
from fedscaffold.methods.fedlin import FedLin
from fedscaffold.methods.proximal.apda import Apda
from fedscaffold.methods.proximal.fedprox import FedProx
from fedscaffold.methods.proximal.fedsplit import FedSplit
from fedscaffold.methods.proxskip import ProxSkip
from fedscaffold.methods.randprox import RandProx
from fedscaffold.methods.scaffold import Scaffold
from fedscaffold.methods.scallion import Scallion
from fedscaffold.methods.server_optimizer import ServerOptimizer
from fedscaffold.methods.tamuna import Tamuna
from fedscaffold.methods.two_sided import TwoSidedScaffold
from fedscaffold.methods.variance_reduced.local_svrg import LocalSvrg
from fedscaffold.methods.variance_reduced.vr_proxskip import VRProxSkip

ScaffLSA = Scaffold  # what Mangold et al. (2024) call it on linear stochastic approximation

__all__ = [
    "AmplifiedScaffold",
    "Apda",
    "FedAvg",
    "FedLin",
    "FedProx",
    "FedSplit",
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


def __dir__() -> list[str]:
    return __all__
