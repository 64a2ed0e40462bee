"""Running a method on a problem: one round, many rounds, where client state lives, and what a run leaves.

Read in this order: `run` (the loop), `rounds` (one round), `block` (the clients' half of a round), `clients` and
`client_store` (where client state lives), `trace` (the result).
"""

from fedscaffold.simulation.availability import AvailabilityTable, Markov, Periodic
from fedscaffold.simulation.observers import Loss, Mse, TailAverage
from fedscaffold.simulation.run import run
from fedscaffold.simulation.stages.richardson_romberg import RichardsonRomberg, richardson_romberg
from fedscaffold.simulation.stages.staged import Stage, Staged, staged
from fedscaffold.simulation.stages.stationarity import Plateau
from fedscaffold.simulation.trace import Trace

__all__ = [
    "AvailabilityTable",
    "Loss",
    "Markov",
    "Mse",
    "Periodic",
    "Plateau",
    "RichardsonRomberg",
    "Stage",
    "Staged",
    "TailAverage",
    "Trace",
    "richardson_romberg",
    "run",
    "staged",
]


def __dir__() -> list[str]:
    return __all__
