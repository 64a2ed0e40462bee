"""Sweeps: a function that makes problems, a grid of settings, and a table with the plateau of every cell.

`Sweep(problem=function, grid={...})` describes the cells; its `run` runs them, keeps finished ones in a folder,
and returns a `SweepTable`.
"""

import inspect
import itertools
import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import MISSING, dataclass, fields, is_dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from fedscaffold.benchmarking.cells import BatchSize, Cell, chosen_batch, finished, result_folder, text_table
from fedscaffold.benchmarking.fits import Saturation, fit_saturation, reached_plateau
from fedscaffold.core import npz, provenance
from fedscaffold.core.checks import (
    check_method,
    check_problem,
    choice,
    did_you_mean,
    given,
    seed_number,
    shown,
    whole_number,
)
from fedscaffold.core.display import Advance, Progress, new_axes, part_of, progress_bar
from fedscaffold.core.errors import Diverged, InvalidInput
from fedscaffold.core.files import write_frame
from fedscaffold.core.imports import load_optional
from fedscaffold.core.protocols import Engine, Method
from fedscaffold.core.random.stream import Batches
from fedscaffold.core.types import evenly_spaced_clients
from fedscaffold.engines import Ray, choose_engine
from fedscaffold.methods import Scaffold
from fedscaffold.reports.figures import PlateauSeries, draw_plateau_lines, draw_plateaus
from fedscaffold.simulation.clients import open_shard, shard_of
from fedscaffold.simulation.observers import Mse
from fedscaffold.simulation.run_method import run
from fedscaffold.simulation.setup import validate_run
from fedscaffold.theory import predict
from fedscaffold.theory.exact import is_exact

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

Start = Literal["zero", "optimum"]
RUN = ("rounds", "batch_size", "repetitions", "seed", "start")  # settings of runs, which a grid may vary
SYMBOLS = {"step_size": "γ", "local_steps": "H", "batch_size": "B", "n_clients": "N"}


@dataclass(frozen=True, kw_only=True)
class SweepRow:
    """Result of one cell of a sweep.

    Attributes
    ----------
    settings
        All settings of the cell by name: the problem's arguments, the method's name and fields, those of the run.
    outcome
        "stationary"; "moving" if the run was too short, and the plateau is the mean over the last quarter of its
        rounds; "diverged".
    plateau, standard_error, from_round
        Mean squared error from that round on.
    final_mse
        ‖θ − θ*‖² after the last round, mean over the repetitions.
    predicted, predicted_variance, predicted_bias
        E‖θ − θ*‖² on the plateau by theory, tr Cov θ and ‖E θ − θ*‖²; None if theory has no answer.
    seconds
        Duration of the run, compilation and start of workers included.
    message
        For a run that diverged: the round, and a step size that would have been safe.
    provenance
        Engine, versions, machine and time.
    """

    settings: Mapping[str, Any]
    outcome: Literal["stationary", "moving", "diverged"]
    plateau: float | None = None
    standard_error: float | None = None
    from_round: int | None = None
    final_mse: float | None = None
    predicted: float | None = None
    predicted_variance: float | None = None
    predicted_bias: float | None = None
    message: str | None = None
    seconds: float
    provenance: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class _Cell:
    """One cell of a grid: arguments of the problem, the method, and the settings of its run."""

    arguments: Mapping[str, Any]
    method: Method
    rounds: int
    batch_size: BatchSize
    repetitions: int
    seed: int
    start: Start

    def settings(self) -> dict[str, Any]:
        """Return all settings by name, as plain values; of equal names the problem's, then the method's wins."""
        method = provenance.describe(self.method)
        found = {name: getattr(self, name) for name in RUN}
        found |= {"method": method.pop("name"), **method, **self.arguments}
        return {name: _plain(value) for name, value in found.items()}


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Sweep:
    """A grid of runs on the problems that a function makes.

    Parameters
    ----------
    problem
        A function that returns a problem, such as `fedscaffold.problems.RidgeStream` or one of yours.
    grid
        By name, a list of values to vary, or one value for all cells. A name that is a parameter of the function
        goes to it, a field of the method to the method, and "method" or one of the settings below to the run. A
        name that several have goes to the first of these. Equal cells are run once.
    method
        A class of methods, or a method whose other fields all cells share.
    rounds, batch_size, repetitions, seed
        As in `fedscaffold.run`, unless the grid varies them; `batch_size` may be "auto", as in `compare`.
    start
        First model of the runs: "zero", or "optimum" for a short way to the plateau. Control variates start at 0.

    Raises
    ------
    InvalidInput
        If a name of the grid belongs to none of these, or a value cannot be used.

    Examples
    --------
    >>> import numpy as np
    >>> import fedscaffold as fs
    >>> def ridge(n_clients, noise=1.0):
    ...     rng = np.random.default_rng(0)
    ...     x = rng.normal(size=(n_clients, 30, 2))
    ...     return fs.problems.Ridge(x, x.sum(axis=2) + noise * rng.normal(size=(n_clients, 30)), l2=0.1)
    >>> grid = {"n_clients": [4, 8], "step_size": [0.02, 0.05], "local_steps": 5, "batch_size": 2}
    >>> study = fs.benchmarking.Sweep(problem=ridge, grid=grid, rounds=60)
    >>> study
    Sweep(ridge, 4 cells: n_clients 4, 8; step_size 0.02, 0.05)
    >>> len(study.run(engine="reference", progress=False).to_frame())
    4
    """

    problem: Callable[..., Any]
    grid: Mapping[str, Any]
    method: Any = Scaffold
    rounds: int = 200
    batch_size: BatchSize = 10
    repetitions: int = 1
    seed: int = 0
    start: Start = "zero"

    def __post_init__(self) -> None:
        if not callable(self.problem):
            raise InvalidInput(f"problem must be a function that returns a problem, got {given(self.problem)}")
        grid: Any = self.grid
        if not isinstance(grid, Mapping) or not all(isinstance(name, str) for name in grid):
            raise InvalidInput(f"grid must be a dictionary such as {{'n_clients': [10, 100]}}, got {given(grid)}")
        for method in self._values().get("method", [self.method]):
            if not _is_method_class(method):
                check_method(method)
        self._check_names()
        self.cells()

    def __repr__(self) -> str:
        several = {name: values for name, values in self._values().items() if len(values) > 1}
        varied = "; ".join(f"{name} {', '.join(map(_text, values))}" for name, values in several.items())
        return f"Sweep({_name(self.problem)}, {len(self.cells()):,} cells: {varied or 'one of each'})"

    def cells(self) -> list[_Cell]:
        """Return all different cells, the problem's arguments outermost."""
        values, parameters = self._values(), self._parameters()
        ordered = sorted(values, key=lambda name: name not in parameters)  # stable
        found: dict[str, _Cell] = {}
        for chosen in itertools.product(*(values[name] for name in ordered)):
            cell = self._cell(dict(zip(ordered, chosen, strict=True)))
            found.setdefault(json.dumps(cell.settings(), sort_keys=True), cell)
        return list(found.values())

    def run(
        self,
        *,
        out: Path | None = None,
        engine: str | Engine = "auto",
        predict: bool = False,
        progress: Progress = None,
    ) -> "SweepTable":
        """Run every cell and return a table with a row for each.

        Parameters
        ----------
        out
            A folder. Finished cells are kept in its folder "cells", and neither the same call nor another grid
            runs them again; the table is written to "sweep.parquet". Several sweeps may use it at the same time.
        engine, progress
            As in `fedscaffold.run`.
        predict
            Whether to add the plateaus that theory predicts.

        Returns
        -------
        The table.

        Raises
        ------
        InvalidInput
            If a problem cannot be made or a cell does not fit its problem; before any cell is run.
        """
        choice("predict", predict, (True, False))
        choose_engine(engine)
        folder = None if out is None else result_folder(out, ["sweep.parquet"])
        runner = _Runner(self, engine, folder)
        with progress_bar("Sweep", progress) as advance:
            table = SweepTable(runner.rows(advance, predict=predict), _name(self.problem))
        if out is not None:
            write_frame(Path(out) / "sweep.parquet", table.to_frame())
        return table

    def _values(self) -> dict[str, list[Any]]:
        """Return the values of each name in the grid; one value counts as a list of one."""
        found = {}
        for name, values in self.grid.items():
            array = isinstance(values, np.ndarray) and values.ndim > 0
            several = array or isinstance(values, list | tuple | range)
            found[name] = list(values) if several else [values]
            if not found[name]:
                raise InvalidInput(f"{name} in the grid has no values")
        return found

    def _parameters(self) -> Mapping[str, inspect.Parameter]:
        try:
            return inspect.signature(self.problem).parameters
        except (TypeError, ValueError):
            raise InvalidInput(f"the parameters of {_name(self.problem)} are unknown; give a function") from None

    def _check_names(self) -> None:
        """Raise if a name belongs to neither the function, nor a method, nor the run, or if one is missing."""
        parameters = self._parameters()
        owned = {_name(self.problem): list(parameters)}
        for method in self._values().get("method", [self.method]):
            kind = method if isinstance(method, type) else type(method)
            owned[kind.__name__] = _fields(kind)
        owned["run"] = ["method", *RUN]
        known = [name for names in owned.values() for name in names]
        for name in self.grid:
            if name not in known:
                hint = did_you_mean(name, known) or ";"
                choices = "; ".join(f"{owner}: {', '.join(names)}" for owner, names in owned.items())
                raise InvalidInput(f"unknown name {given(name)} in the grid{hint} Known names of {choices}")
        for name, each in parameters.items():
            needed = each.default is each.empty and each.kind not in (each.VAR_KEYWORD, each.VAR_POSITIONAL)
            if needed and name not in self.grid:
                raise InvalidInput(f"{_name(self.problem)} needs {name}; add it to the grid")

    def _cell(self, chosen: dict[str, Any]) -> _Cell:
        arguments = {name: chosen.pop(name) for name in self._parameters() if name in chosen}
        method = chosen.pop("method", self.method)
        kind = method if isinstance(method, type) else type(method)
        own = {name: chosen[name] for name in chosen if name in _fields(kind)}
        runs = {name: chosen.get(name, getattr(self, name)) for name in RUN}
        if isinstance(method, type):
            missing = [
                each.name for each in fields(kind) if each.init and _is_needed(each) and each.name not in own
            ]
            if missing:
                raise InvalidInput(f"{kind.__name__} needs {', '.join(missing)}; add to the grid")
        batch = runs["batch_size"]
        return _Cell(
            arguments=arguments,
            method=method(**own) if isinstance(method, type) else replace(method, **own) if own else method,
            rounds=whole_number("rounds", runs["rounds"], least=1),
            batch_size="auto" if isinstance(batch, str) and batch == "auto" else Batches(batch).size,
            repetitions=whole_number("repetitions", runs["repetitions"], least=1),
            seed=seed_number("seed", runs["seed"]),
            start=choice("start", runs["start"], get_args(Start)),
        )


@dataclass(frozen=True, eq=False, repr=False)
class SweepTable:
    """Rows of a sweep, one for each cell, as text, DataFrame or figure.

    Attributes
    ----------
    rows
        The rows, in the order of the cells.
    title
        Name of the function that made the problems.
    """

    rows: Sequence[SweepRow]
    title: str = ""

    def __repr__(self) -> str:
        return self.table()

    def table(self) -> str:
        """Return a line of text for each cell, with the settings that vary, and one for each saturation."""
        varied = self.varied() or ["method"]
        predicted = any(row.predicted is not None for row in self.rows)
        columns = [*varied, "plateau", *(["predicted"] if predicted else []), "outcome", "seconds"]
        lines = []
        for row in self.rows:
            level = "–" if row.plateau is None else f"{row.plateau:.3g} ± {row.standard_error:.1g}"
            expected = ["–" if row.predicted is None else f"{row.predicted:.3g}"] if predicted else []
            own = [_text(row.settings.get(name, "–")) for name in varied]
            lines.append([*own, level, *expected, row.outcome, f"{row.seconds:.1f}"])
        found = []
        for name, (fit, at) in self.saturations().items():
            if fit is not None:
                theory = "" if at is None else f", predicted N = {at:,.0f}"
                found.append(f"saturation{f' of {name}' if name else ''}: {fit}{theory}")
        return "\n".join([text_table(columns, lines), *found])

    def to_frame(self) -> "pd.DataFrame":
        """Return a DataFrame with a column for each setting and each result; lists are JSON."""
        pd = load_optional("pandas", "tables need pandas", extra="reproduce")
        names = list(dict.fromkeys(name for row in self.rows for name in row.settings))
        columns = {name: [_column(row.settings.get(name)) for row in self.rows] for name in names}
        for each in fields(SweepRow):
            if each.name != "settings":
                columns[each.name] = [_column(getattr(row, each.name)) for row in self.rows]
        frame = pd.DataFrame(columns)
        whole = [name for name, values in columns.items() if _are_whole(values)]  # which pandas turns to floats
        return frame.astype(dict.fromkeys(whole, "Int64"))

    def varied(self) -> list[str]:
        """Return the names of the settings that differ between rows, the number of clients first."""
        first = ["n_clients", "method", "step_size", "local_steps"]
        names = [*first, *(name for row in self.rows for name in row.settings)]
        return [
            name
            for name in dict.fromkeys(names)
            if len({_text(row.settings.get(name, "–")) for row in self.rows}) > 1
        ]

    def series(self) -> dict[str, PlateauSeries]:
        """Return plateaus against the number of clients, or else the first number that varies, by other settings.

        Raises
        ------
        InvalidInput
            If every cell diverged, or no number varies.
        """
        x = self._x()
        saturations = self.saturations()
        found = {}
        for name, rows in self._groups(x).items():
            at, plateau, error, predicted = _columns(rows, x, "plateau", "standard_error", "predicted")
            fit, theory = saturations.get(name, (None, None))
            found[name] = PlateauSeries(
                x=at, plateau=plateau, error=error, predicted=predicted,
                stationary=np.array([row.outcome == "stationary" for row in rows]),
                saturation=(None if fit is None else fit.n_clients, theory),
            )  # fmt: skip
        if not found:
            raise InvalidInput("nothing to draw: every cell diverged; take a smaller step size")
        return found

    def saturations(self) -> dict[str, tuple[Saturation | None, float | None]]:
        """Return the N from which on more clients stop helping, fitted to stationary cells, and predicted."""
        found = {}
        for name, rows in self._groups("n_clients").items() if "n_clients" in self.varied() else ():
            still = [row for row in rows if row.outcome == "stationary"]
            fit = fit_saturation(*_columns(still, "n_clients", "plateau", "standard_error"))
            clients, variance, bias = _columns(rows, "n_clients", "predicted_variance", "predicted_bias")
            ratio = clients * variance / np.where(bias > 0, bias, np.nan)  # where variance and bias are equal
            known = ratio[np.isfinite(ratio)]
            reached = known.size > 0 and known[-1] <= clients[-1]
            found[name] = fit, float(known[-1]) if reached else None
        return found

    def plot(self, ax: "Axes | None" = None) -> "Axes":
        """Draw the plateaus with a legend beside them, by default on axes of a new figure; return the axes."""
        ax = new_axes(ax, width=8.0)
        draw_plateau_lines(ax, self.series(), x=_axis(self._x()))
        return ax

    def draw(self, file: Path) -> None:
        """Draw the plateaus to a PNG, SVG or PDF file."""
        draw_plateaus({self.title: self.series()}, [file], x=_axis(self._x()))

    def _x(self) -> str:
        """Return the name of the number that the figure varies."""
        for name in self.varied():
            if all(_is_positive(row.settings.get(name)) for row in self.rows):
                return name
        raise InvalidInput("nothing to draw: give at least two values of a positive number in the grid")

    def _groups(self, x: str) -> dict[str, list[SweepRow]]:
        """Return the rows that did not diverge, sorted by x, by a label of all settings that vary besides x."""
        names = [name for name in self.varied() if name != x]
        found: dict[str, list[SweepRow]] = {}
        for row in sorted(self.rows, key=lambda row: float(row.settings[x])):
            if row.outcome != "diverged":
                words = [_word(name, row.settings[name]) for name in names if name in row.settings]
                found.setdefault(" ".join(words), []).append(row)
        return found


class _Runner:
    """Cells of a sweep with their problems: runs unfinished ones, and predicts their plateaus."""

    def __init__(self, study: Sweep, engine: str | Engine, folder: Path | None) -> None:
        self.cells, self.engine, self.folder = study.cells(), engine, folder
        arguments = [json.dumps([*map(_plain, cell.arguments.values())]) for cell in self.cells]
        self.groups = [arguments.index(each) for each in arguments]

        def make(group: int) -> Any:
            problem = study.problem(**self.cells[group].arguments)
            check_problem(problem)
            return problem

        self.problem = lru_cache(maxsize=1)(make)  # one at a time, since problems may be large
        self.optimum = lru_cache(maxsize=1)(lambda group: self.problem(group).optimum())
        self.fingerprint = lru_cache(maxsize=1)(  # reads all records, and only names of files need it
            lambda group: None if folder is None else self.problem(group).fingerprint()
        )
        self.identities = [self._checked(cell, group) for cell, group in zip(self.cells, self.groups, strict=True)]

    def _checked(self, cell: _Cell, group: int) -> dict[str, Any]:
        """Return what a cell's result depends on; raise if the cell does not fit its problem or the engine."""
        problem = self.problem(group)
        setup = validate_run(
            problem, cell.method, rounds=cell.rounds, batch_size=chosen_batch(cell.batch_size, problem),
            seed=cell.seed, repetitions=cell.repetitions, engine=self.engine, theta0=None,
            sampling="with_replacement",
        )  # fmt: skip
        if group == 0:  # one problem is enough to see whether the engine supports a method and its batches
            local = setup.engine.shard_engine if isinstance(setup.engine, Ray) else setup.engine
            with open_shard(shard_of(replace(setup, engine=local), 0, problem.n_clients)):
                pass
        return {
            "problem": self.fingerprint(group),
            "method": provenance.describe(cell.method),
            "batches": provenance.describe(setup.batches),
            "engine": setup.engine.name,
            **{name: getattr(cell, name) for name in ("rounds", "repetitions", "seed", "start")},
        }

    def rows(self, advance: Advance, *, predict: bool) -> list[SweepRow]:
        """Return the rows of all cells, in their order."""
        total = len(self.cells)
        rows = []
        engine = choose_engine(self.engine)
        with engine.running() if isinstance(engine, Ray) else nullcontext():  # Ray is started once for all cells
            for k, cell in enumerate(self.cells):
                counting = part_of(advance, 1000 * k, 1000, 1000 * total)  # thousandths of a cell
                facts = finished(self.folder, "cell", self.identities[k], partial(self._measure, k, counting))[1]
                theory = self._forecast(k) if predict else {}
                rows.append(SweepRow(settings=cell.settings(), **facts, **theory))
                advance(1000 * (k + 1), 1000 * total)
        return rows

    def _measure(self, k: int, progress: Advance) -> Cell:
        """Run a cell with `fedscaffold.run` and return the facts of its row."""
        cell, group, identity = self.cells[k], self.groups[k], self.identities[k]
        optimum, begin = self.optimum(group), time.perf_counter()
        found: dict[str, Any]
        try:
            trace = run(
                self.problem(group), cell.method, rounds=cell.rounds, batch_size=identity["batches"]["size"],
                seed=cell.seed, repetitions=cell.repetitions, engine=self.engine, progress=progress,
                theta0=optimum if cell.start == "optimum" else None, record=(Mse(optimum),),
            )  # fmt: skip
            reached, stationary = reached_plateau(trace)
            found = {
                "outcome": "stationary" if stationary else "moving",
                "plateau": reached.mean,
                "standard_error": reached.standard_error,
                "from_round": reached.from_round,
                "final_mse": float(trace.mse[:, -1].mean()),
            }
        except Diverged as error:
            found = {"outcome": "diverged", "message": str(error)}
        origin = {"engine": identity["engine"], **provenance.origin()}
        return {}, {**found, "seconds": time.perf_counter() - begin, "provenance": origin}

    def _forecast(self, k: int) -> dict[str, Any]:
        """Return the fields of a row about the predicted plateau; none without a plateau.

        Of more than 1,000 clients without an exact law, 1,000 are measured: variance falls as 1/N, bias stays.
        """
        parts = {name: self.identities[k][name] for name in ("problem", "method", "batches")}

        def compute() -> Cell:
            problem, method, batch = self.problem(self.groups[k]), self.cells[k].method, parts["batches"]["size"]
            share, most = 1.0, 1000
            if problem.n_clients > most and not is_exact(problem, method, Batches(batch)):
                share = most / problem.n_clients
                problem = problem.subset(evenly_spaced_clients(problem.n_clients, most))
            try:
                found = predict(problem, method, batch_size=batch, accuracy=0.05)
            except InvalidInput:
                return {}, {}
            theory = {"predicted_variance": share * found.variance, "predicted_bias": found.squared_bias}
            return {}, {"predicted": sum(theory.values()), **theory}

        return finished(self.folder, "prediction", parts, compute)[1]


def _is_method_class(method: Any) -> bool:
    return isinstance(method, type) and is_dataclass(method) and hasattr(method, "update_clients")


def _fields(kind: type[Any]) -> list[str]:
    return [each.name for each in fields(kind) if each.init] if is_dataclass(kind) else []


def _is_needed(field: Any) -> bool:
    return field.default is MISSING and field.default_factory is MISSING


def _is_positive(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < math.inf


def _name(function: Any) -> str:
    """Return the name of a function, for titles."""
    whole = function.func if isinstance(function, partial) else function
    return str(getattr(function, "__name__", getattr(whole, "__name__", type(function).__name__)))


def _plain(value: Any) -> Any:
    """Return a value as JSON holds it, or a short text for other values."""
    if isinstance(value, np.ndarray) and value.dtype.kind in "biuf":
        value = value.tolist()
    try:
        return npz.plain({"value": value})["value"]
    except (TypeError, ValueError, RecursionError):
        return shown(value)


def _text(value: Any) -> str:
    """Return a setting as short text."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return "all" if value is None else _name(value) if callable(value) else str(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:g}"


def _word(name: str, value: Any) -> str:
    """Return a setting as a part of a label: γ=0.05; the method by its name alone."""
    return _text(value) if name == "method" else f"{SYMBOLS.get(name, name)}={_text(value)}"


def _axis(name: str) -> str:
    return "number of clients N" if name == "n_clients" else name.replace("_", " ")


def _columns(rows: Sequence[SweepRow], x: str, *names: str) -> Any:
    """Return a setting and some results of these rows, (1 + names, rows); NaN if a result is missing."""
    lines = [[row.settings[x], *(getattr(row, name) for name in names)] for row in rows]
    return np.array(lines, dtype=np.float64).reshape(-1, 1 + len(names)).T


def _are_whole(values: Sequence[Any]) -> bool:
    return any(value is not None for value in values) and all(
        value is None or type(value) is int for value in values
    )


def _column(value: Any) -> Any:
    return json.dumps(value) if isinstance(value, list | Mapping) else value
