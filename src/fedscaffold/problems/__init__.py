"""Objectives f = Σ_c w_c f_c, one f_c per client."""

from fedscaffold.core.checks import suggest_names
from fedscaffold.problems.differentiable import Differentiable
from fedscaffold.problems.glm import Gamma, Logistic, Poisson, Ridge
from fedscaffold.problems.linear import GarnetTD, LinearSA, MarkovChains
from fedscaffold.problems.multinomial import Multinomial
from fedscaffold.problems.paper import paper
from fedscaffold.problems.streams import LogisticStream, RidgeStream
from fedscaffold.problems.torch_problem import Torch

__all__ = [
    "Differentiable",
    "Gamma",
    "GarnetTD",
    "LinearSA",
    "Logistic",
    "LogisticStream",
    "MarkovChains",
    "Multinomial",
    "Poisson",
    "Ridge",
    "RidgeStream",
    "Torch",
    "paper",
]

for _name in __all__:
    if _name != "MarkovChains":  # a tuple, which has no constructor to replace
        suggest_names(globals()[_name])


def __dir__() -> list[str]:
    return __all__
