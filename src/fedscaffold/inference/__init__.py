"""Training, standard errors, intervals and tests from sums over clients."""

from fedscaffold.inference.closing import Certificate, newton_step
from fedscaffold.inference.summarise import Coordinates, summarise, summarise_sums
from fedscaffold.inference.summary import Summary, WaldTest
from fedscaffold.inference.sums import ClosingSums, client_sums, closing_sums

__all__ = [
    "Certificate",
    "ClosingSums",
    "Coordinates",
    "Summary",
    "WaldTest",
    "client_sums",
    "closing_sums",
    "newton_step",
    "summarise",
    "summarise_sums",
]


def __dir__() -> list[str]:
    return __all__
