"""Grids of runs: plateaus by number of clients, step size, local steps, batch size and method, in one table."""

from fedscaffold.experiments.sweep.cells import Row
from fedscaffold.experiments.sweep.grid import Cell, Family, Sweep
from fedscaffold.experiments.sweep.loop import sweep

__all__ = ["Cell", "Family", "Row", "Sweep", "sweep"]
