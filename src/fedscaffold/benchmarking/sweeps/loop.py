"""Runs the cells of a sweep, one after another or many at once on Ray, and skips those that a file has."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedscaffold.benchmarking.sweeps import table
from fedscaffold.benchmarking.sweeps.cells import SweepRow, forecast, measure
from fedscaffold.benchmarking.sweeps.grid import Cell, Key, Sweep
from fedscaffold.benchmarking.sweeps.tasks import at_once, worth_shards
from fedscaffold.core.checks import choice, given
from fedscaffold.core.display.progress import Advance, Progress, progress_bar
from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.protocols import Engine
from fedscaffold.core.storage.files import check_writable, path_of, remove_abandoned
from fedscaffold.engines import Ray, choose_engine

if TYPE_CHECKING:
    import pandas as pd

SECONDS_UNSAVED = 1.0  # finished cells are written when so much time has passed since the last ones were


def sweep(
    grid: Sweep,
    *,
    out: Path | None = None,
    engine: str | Engine = "auto",
    predict: bool = False,
    progress: Progress = None,
    seen: Callable[[SweepRow], None] = lambda row: None,
) -> "pd.DataFrame":
    """Run every cell of a grid, and return a row for each: see `SweepRow` for the columns.

    Parameters
    ----------
    grid
        The cells to run.
    out
        A Parquet file. Finished cells are kept there, and the same call does not run them again; a grid with other
        numbers of clients, methods, batch sizes, rounds or seeds adds to them. Several sweeps may write to a
        file at the same time: each adds its rows to those of the others.
    engine
        As in `fedscaffold.run`. With "ray", cells too small to be worth dividing are run many at once, one on each
        processor; the numbers are the same.
    predict
        Whether to add what theory says of each plateau.
    progress
        As in `fedscaffold.run`; counts local steps.
    seen
        Called with every row, those of earlier calls first.

    Examples
    --------
    >>> import fedscaffold as fs
    >>> from fedscaffold.benchmarking import Family, Sweep, sweep
    >>> grid = Sweep(family=Family(name="ridge-stream", settings={"dim": 2, "spectrum": 1.0}), clients=(4, 8),
    ...              methods=[fs.Scaffold(step_size=0.1, local_steps=2)], batch_sizes=(1,), rounds=20, seed=1)
    >>> table = sweep(grid, engine="reference", progress=False)
    >>> table[["n_clients", "method", "step_size", "rounds"]]
       n_clients    method  step_size  rounds
    0          4  Scaffold        0.1      20
    1          8  Scaffold        0.1      20
    """
    if not isinstance(grid, Sweep):
        raise InvalidInput(f"grid must be a Sweep, got {given(grid)}")
    choice("predict", predict, (True, False))
    chosen = choose_engine(engine)
    table.need_packages()
    grid.check(chosen)
    if out is not None:
        out = path_of(out)
        check_writable(out)
        remove_abandoned(out)
    identity = grid.identity(chosen)
    stored = {row.key(): row for row in (() if out is None else table.read(out, identity))}
    cells = grid.cells()
    with _Kept(out, identity, stored) as kept, progress_bar("Sweep", progress) as advance:
        for cell in cells:
            if cell.key() in kept.rows and not (predict and kept.rows[cell.key()].predicted is None):
                seen(kept.rows[cell.key()])
        for row in _rows(grid, chosen, cells, kept.rows, predict=predict, advance=advance):
            kept.add(row)
            seen(row)
    return table.to_frame(kept.rows[cell.key()] for cell in cells)


class _Kept:
    """Rows by cell, written to a file every second or so and at the end, also after an error."""

    def __init__(self, out: Path | None, identity: dict[str, Any], rows: dict[Key, SweepRow]) -> None:
        self.out, self.identity, self.rows = out, identity, rows
        self.saved, self.at = True, time.monotonic()

    def __enter__(self) -> "_Kept":
        return self

    def __exit__(self, *error: object) -> None:
        self._save()

    def add(self, row: SweepRow) -> None:
        self.rows[row.key()] = row
        self.saved = False
        if time.monotonic() - self.at > SECONDS_UNSAVED:
            self._save()

    def _save(self) -> None:
        if self.out is not None and not self.saved:
            self.rows |= table.merge(self.out, self.identity, self.rows)
        self.saved, self.at = True, time.monotonic()


def _rows(
    grid: Sweep, engine: Engine, cells: Sequence[Cell], done: Mapping[Key, SweepRow], *, predict: bool,
    advance: Advance,
) -> Iterator[SweepRow]:  # fmt: skip
    """The rows that are missing, and those that lack a prediction."""
    missing = [cell for cell in cells if cell.key() not in done]
    lacking = [cell for cell in cells if predict and cell.key() in done and done[cell.key()].predicted is None]
    problem_of = lru_cache(maxsize=1)(grid.family.__call__)
    optimum_of = lru_cache(maxsize=1)(lambda n_clients: problem_of(n_clients).optimum())
    total, before = sum(cell.steps() for cell in missing), 0.0

    def counting(done: int, rounds: int) -> None:
        advance(int(before + cell.steps() * done / rounds), int(total))

    with engine.running() if isinstance(engine, Ray) and missing else nullcontext() as ray:
        small = [] if ray is None else [cell for cell in missing if not worth_shards(cell)]
        for cell, row in at_once(ray, grid, small, engine, predict=predict):
            counting(1, 1)
            before += cell.steps()
            yield row
        keys = {cell.key() for cell in small}
        for cell in sorted([*missing, *lacking], key=lambda cell: cell.n_clients):
            if cell.key() in keys:
                continue
            problem = problem_of(cell.n_clients)
            predicted = forecast(cell, problem) if predict else {}  # first, as it takes little time
            if cell.key() in done:
                row = done[cell.key()]
            else:
                row = measure(grid, cell, problem, optimum_of(cell.n_clients), engine, counting)
                before += cell.steps()
            yield replace(row, **predicted)
