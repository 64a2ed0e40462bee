"""Grids of runs: plateaus by number of clients, step size, local steps, batch size and method, in one table."""

from fedscaffold.benchmarking.sweeps.cells import SweepRow
from fedscaffold.benchmarking.sweeps.grid import Cell, Family, Sweep
from fedscaffold.benchmarking.sweeps.loop import sweep

__all__ = ["Cell", "Family", "Sweep", "SweepRow", "sweep"]
