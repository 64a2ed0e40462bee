"""Cells too small to be divided among workers, many at once: each is one task of Ray."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from fedscaffold.benchmarking.sweeps.cells import SweepRow, forecast, measure
from fedscaffold.benchmarking.sweeps.grid import Cell, Sweep
from fedscaffold.core.protocols import Engine
from fedscaffold.core.types import Array
from fedscaffold.engines import Ray

STEPS_WORTH_SHARDS = 3e8  # half a minute on one processor, where shards take seconds to start
MODELS_WORTH_SHARDS = 1e6  # clients times seeds, so that memory is divided too


def worth_shards(cell: Cell) -> bool:
    """Whether to divide a cell's clients among workers; cohorts of several runs cannot be divided."""
    if cell.seeds > 1 and cell.method.participants(cell.n_clients) < cell.n_clients:
        return False
    return cell.steps() >= STEPS_WORTH_SHARDS or cell.n_clients * cell.seeds >= MODELS_WORTH_SHARDS


def at_once(
    ray: Any, grid: Sweep, cells: Sequence[Cell], engine: Engine, *, predict: bool
) -> Iterator[tuple[Cell, SweepRow]]:
    """Cells and their rows, as they are finished."""
    if not cells or not isinstance(engine, Ray):
        return
    shared = {}
    for n_clients in {cell.n_clients for cell in cells}:
        problem = grid.family(n_clients)
        shared[n_clients] = ray.put((problem, problem.optimum()))
    task = ray.remote(_row).options(num_cpus=getattr(engine.shard_engine, "threads", 1) or 1)
    running = {task.remote(shared[c.n_clients], grid, c, engine.shard_engine, predict): c for c in cells}
    try:
        while running:
            for ref in ray.wait(list(running))[0]:
                yield running.pop(ref), ray.get(ref)
    finally:
        for ref in running:
            ray.cancel(ref)


def _row(shared: tuple[Any, Array], grid: Sweep, cell: Cell, engine: Engine, predict: bool) -> SweepRow:
    problem, optimum = shared
    predicted = forecast(cell, problem) if predict else {}
    return replace(measure(grid, cell, problem, optimum, engine), **predicted)
