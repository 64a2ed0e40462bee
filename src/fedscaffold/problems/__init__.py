"""What is minimised: f = Σ_c w_c f_c, one f_c per client."""

from fedscaffold.core.checks import suggest_names
from fedscaffold.problems.autodiff.differentiable import Differentiable
from fedscaffold.problems.linear.garnet import MarkovChains
from fedscaffold.problems.linear.linear_sa import LinearSA
from fedscaffold.problems.linear.td import GarnetTD
from fedscaffold.problems.log_link import Gamma, Poisson
from fedscaffold.problems.logistic import Logistic
from fedscaffold.problems.multinomial import Multinomial
from fedscaffold.problems.paper import paper
from fedscaffold.problems.ridge import Ridge
from fedscaffold.problems.streams.logistic import LogisticStream
from fedscaffold.problems.streams.ridge import RidgeStream

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
