"""Plateaus of runs, also of those that ended before they were stationary."""

from typing import NamedTuple

from fedscaffold.simulation import Trace
from fedscaffold.simulation.stages.stationarity import Plateau, plateau


class ReachedPlateau(NamedTuple):
    """Mean squared error at the end of a run, and whether the run was stationary there."""

    plateau: Plateau
    stationary: bool


def reached_plateau(trace: Trace) -> ReachedPlateau:
    """The plateau of a trace's squared errors; of the last quarter of its rounds where the run was still moving.

    Parameters
    ----------
    trace
        Of a run that recorded "mse".
    """
    found = trace.plateau()
    if found is not None:
        return ReachedPlateau(found, True)
    return ReachedPlateau(plateau(trace.mse, trace.rounds * 3 // 4), False)
