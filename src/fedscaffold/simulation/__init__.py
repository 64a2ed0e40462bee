"""Running a method on a problem: one round, many rounds, where client state lives, and the result.

Read in this order: `setup` (all settings in one object), `run_method` (the loop), `rounds` (one round),
`block` (the clients' half of a round), `clients` (where client state lives), `trace` (the result).
"""

from typing import TYPE_CHECKING

from fedscaffold.core.imports import load_on_demand

if TYPE_CHECKING:
    from fedscaffold.simulation.availability import AvailabilityTable, Markov, Periodic
    from fedscaffold.simulation.observers import Accuracy, ClientLosses, Loss, Mse, TailAverage, WorstLoss
    from fedscaffold.simulation.run_method import run
    from fedscaffold.simulation.stages.richardson_romberg import RichardsonRomberg, richardson_romberg
    from fedscaffold.simulation.stages.staged import Stage, Staged, staged
    from fedscaffold.simulation.stages.stationarity import Plateau
    from fedscaffold.simulation.trace import Trace

__all__ = [
    "Accuracy",
    "AvailabilityTable",
    "ClientLosses",
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
    "WorstLoss",
    "richardson_romberg",
    "run",
    "staged",
]

__getattr__ = load_on_demand(
    __name__,
    {
        "Accuracy": "observers",
        "AvailabilityTable": "availability",
        "ClientLosses": "observers",
        "Loss": "observers",
        "Markov": "availability",
        "Mse": "observers",
        "Periodic": "availability",
        "Plateau": "stages.stationarity",
        "RichardsonRomberg": "stages.richardson_romberg",
        "Stage": "stages.staged",
        "Staged": "stages.staged",
        "TailAverage": "observers",
        "Trace": "trace",
        "WorstLoss": "observers",
        "richardson_romberg": "stages.richardson_romberg",
        "run": "run_method",
        "staged": "stages.staged",
    },
)


def __dir__() -> list[str]:
    return __all__
