"""Training, standard errors, intervals and tests from sums over clients."""

from fedscaffold.inference.closing import NewtonStep, newton_step
from fedscaffold.inference.summarise import Closed, Coordinates, close, summarise, summarise_sums
from fedscaffold.inference.summary import Summary, WaldTest
from fedscaffold.inference.sums import ClosingSums, client_sums, closing_sums

__all__ = [
    "Closed",
    "ClosingSums",
    "Coordinates",
    "NewtonStep",
    "Summary",
    "WaldTest",
    "client_sums",
    "close",
    "closing_sums",
    "newton_step",
    "summarise",
    "summarise_sums",
]


def __dir__() -> list[str]:
    return __all__
