"""Objectives f = Σ_c w_c f_c, one f_c per client."""

from fedscaffold.core.checks import suggest_names
from fedscaffold.problems.differentiable import Differentiable
from fedscaffold.problems.glm import Gamma, Logistic, Poisson, Ridge
from fedscaffold.problems.linear import GarnetTD, LinearSA, MarkovChains
from fedscaffold.problems.multinomial import Multinomial
from fedscaffold.problems.paper import paper
from fedscaffold.problems.streams import LogisticStream, RidgeStream

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
    "paper",
]

for _problem in (
    Differentiable,
    Gamma,
    GarnetTD,
    LinearSA,
    Logistic,
    LogisticStream,
    Multinomial,
    Poisson,
    Ridge,
    RidgeStream,
):
    suggest_names(_problem)


def __dir__() -> list[str]:
    return __all__
