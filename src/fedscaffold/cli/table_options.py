"""Options that the commands on tables share, generated from the settings that they set."""

import inspect
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

import typer

from fedscaffold.cli import options
from fedscaffold.core.errors import InvalidInput
from fedscaffold.data.encoded import EncodedProblem
from fedscaffold.data.open import open_problem
from fedscaffold.data.settings import TableSettings, parameter_entries, parse_setting
from fedscaffold.models.fit import FitSettings
from fedscaffold.planning.batches import BatchSize

TABLE_FLAGS = ("target", "client", "kind", "features", "drop", "missing", "l2")
"""Settings of a table that have an option each; all others are given with --set."""
TABLE_SETTINGS = tuple(field.name for field in fields(TableSettings))
FIT_SETTINGS = tuple(field.name for field in fields(FitSettings))
BUDGET_SETTINGS = ("delta", "clip", "step_size", "rounds")

Data = Annotated[Path, typer.Argument(help="The table: a .csv or .parquet file, or a folder of the latter.")]
Epsilon = Annotated[
    float | None,
    typer.Option(help="ε of a privacy budget of every row; δ by --set delta=VALUE.", show_default="none"),
]
BoundsFile = Annotated[
    Path | None,
    typer.Option(
        help="For --epsilon: a TOML file of public ranges and values, target included: age = [0, 120], "
        "sex = ['f', 'm']."
    ),
]
Tolerance = Annotated[
    str, typer.Option(help="'se:0.05' for 5 % of standard errors, or relative distance to the pooled model.")
]


@dataclass(frozen=True)
class TableFlags:
    """Settings of a table and of its fit, as the command line gave them; parsed when they are first used."""

    flags: dict[str, Any]
    texts: Sequence[str]
    known: Collection[str]

    @cached_property
    def table(self) -> dict[str, Any]:
        """The given settings of the table, by name."""
        parsed = {name: parse_setting(name, value) for name, value in self.flags.items()}
        return parsed | {name: value for name, value in self.settings.items() if name in TABLE_SETTINGS}

    @cached_property
    def settings(self) -> dict[str, Any]:
        """The settings that --set gave, by name."""
        return options.parse_settings(self.texts, self.known, taken=self.flags)

    @property
    def target(self) -> str:
        """The column to predict; "" if none is given."""
        return str(self.table.get("target", ""))

    @property
    def client(self) -> str:
        """The column of clients; "" if none is given."""
        return str(self.table.get("client", ""))

    @property
    def cache_dir(self) -> Path | None:
        """The folder of --set cache_dir=..., or None."""
        given = self.settings.get("cache_dir")
        return None if given is None else Path(given)

    def fit_settings(self, **values: Any) -> FitSettings:
        """Return the settings of a fit, with these values unless --set gives others."""
        more = {name: value for name, value in self.settings.items() if name in FIT_SETTINGS}
        if "tolerance" in values:
            values["tolerance"] = parse_number(values["tolerance"])
        return FitSettings(**{**values, **more})

    def open(self, data: Path, *, cache_dir: Path | None = None, max_bytes_in_memory: int = 0) -> EncodedProblem:
        """Return the problem of the table in a file, with its encoded rows kept as `open_problem` does."""
        return open_problem(
            data, cache_dir=cache_dir or self.cache_dir, max_bytes_in_memory=max_bytes_in_memory, **self.table
        )


def with_table_options(
    *flags: str, required: bool = True, more: Collection[str] = (*FIT_SETTINGS, "cache_dir")
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Replace a command's parameter `table` by options, one for each of the flags, and --set for other settings.

    Their help is the first sentence of the setting's documentation. `required` says whether target and client must
    be given, `more` what else --set takes.
    """
    about = parameter_entries(TableSettings.__doc__ or "")
    chosen: dict[str, tuple[Any, Any]] = {}
    for name in flags or TABLE_FLAGS:
        sentence = " ".join(about[name].split("\n", 1)[1].split()).partition(". ")[0].rstrip(".") + "."
        needed = required and name in ("target", "client")
        option: Any = Annotated[str if needed else str | None, typer.Option(f"--{name}", help=sentence)]
        chosen[name] = option, inspect.Parameter.empty if needed else None
    known = (*TABLE_SETTINGS, *more)
    return options.with_settings("table", chosen, lambda flags, texts: TableFlags(flags, texts, known))


def check_source(table: TableFlags, given: set[str], *, is_table: bool) -> None:
    """Raise if a table lacks its columns, or if options were given for the other kind of problem."""
    tables_only = (*(name for name in TABLE_FLAGS if name != "l2"), "settings")
    why = "the paper's problems; a table has its own" if is_table else "a table, and none is given"
    refuse_options(given, ("problem", "clients") if is_table else tables_only, why)
    if is_table and not (table.target and table.client):
        raise InvalidInput("a table needs --target and --client, the columns to predict and of clients")


def refuse_options(given: set[str], names: Collection[str], why: str) -> None:
    """Raise if one of these options was given; `why` says what it is for."""
    for name in names:
        if name in given:
            raise InvalidInput(f"--{'set' if name == 'settings' else name.replace('_', '-')} is for {why}")


def parse_number(text: str) -> Any:
    """Return a number, or the text as it is, such as 'se:0.05', which `FitSettings` checks."""
    try:
        return float(text)
    except ValueError:
        return text


def parse_batch(text: str) -> BatchSize:
    """Return a number of rows, None for 'full', or 'auto'."""
    return "auto" if text == "auto" else options.batch_size_of(text)


def describe_kind(problem: EncodedProblem, given: str | None) -> str:
    """Return the kind of model and, if it was chosen by the target, why."""
    name = problem.encoding.target
    if problem.encoding.family.log_link or problem.encoding.family.baseline:
        return problem.kind
    if problem.classes is None:
        return "ridge" if given else f"ridge, since {name} is a number with more than 20 different values"
    many = f"{len(problem.classes)} classes"
    return f"logistic, {many}" if given else f"logistic, since {name} has {many}"


def given_options(context: typer.Context) -> set[str]:
    """Return the names of the parameters that stand on the command line."""
    sources = {name: context.get_parameter_source(name) for name in context.params}
    return {name for name, source in sources.items() if source is not None and source.name == "COMMANDLINE"}
