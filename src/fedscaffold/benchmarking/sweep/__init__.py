"""Grids of runs: plateaus by number of clients, step size, local steps, batch size and method, in one table."""

from fedscaffold.benchmarking.sweep.cells import Row
from fedscaffold.benchmarking.sweep.grid import Cell, Family, Sweep
from fedscaffold.benchmarking.sweep.loop import sweep

__all__ = ["Cell", "Family", "Row", "Sweep", "sweep"]
