"""Options and words that the commands on tables share."""

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from fedscaffold.cli import options
from fedscaffold.core.errors import InvalidInput
from fedscaffold.data.encoded import EncodedProblem
from fedscaffold.data.open import open_problem
from fedscaffold.models.fit import BatchSize

Data = Annotated[Path, typer.Argument(help="The table: a .csv or .parquet file, or a folder of the latter.")]
Target = Annotated[str, typer.Option(help="The column to predict.")]
Client = Annotated[str, typer.Option(help="The column that says whose row it is.")]
Kind = Annotated[str | None, typer.Option(help="ridge or logistic; guessed from the target unless given.")]
Features = Annotated[str | None, typer.Option(help="Columns to predict from, a,b,c; all others unless given.")]
Missing = Annotated[str, typer.Option(help="Missing values: error, or mean (fill in the mean).")]
Tolerance = Annotated[float, typer.Option(help="Relative distance to the pooled model to reach.")]
Batch = Annotated[str, typer.Option(help="Rows per step, 'full' or 'auto'.")]
CacheDir = Annotated[
    Path | None, typer.Option(help="Parquet: keep the encoded records in this folder, not in memory.")
]
Seed = Annotated[int, typer.Option(help="Seed of the rows drawn.")]


def batch_of(text: str) -> BatchSize:
    """A number of rows, None for 'full', or 'auto'."""
    return "auto" if text == "auto" else options.batch_size_of(text)


def open_table(
    data: Path,
    *,
    target: str,
    client: str,
    kind: str | None,
    features: str | None,
    l2: float,
    missing: str,
    cache_dir: Path | None = None,
    max_bytes_in_memory: int = 0,
) -> EncodedProblem:
    """The problem that a file holds."""
    wanted: Any = kind
    filled: Any = missing
    columns = None if features is None else [name.strip() for name in features.split(",") if name.strip()]
    return open_problem(
        data,
        target=target,
        client=client,
        kind=wanted,
        features=columns,
        l2=l2,
        missing=filled,
        cache_dir=cache_dir,
        max_bytes_in_memory=max_bytes_in_memory,
    )


def chosen(problem: EncodedProblem, given: str | None) -> str:
    """The kind of model and, where it was guessed, why."""
    name = problem.encoding.target
    if problem.classes is None:
        return "ridge" if given else f"ridge, since {name} is a number with more than 20 different values"
    many = f"{len(problem.classes)} classes"
    return f"logistic, {many}" if given else f"logistic, since {name} has {many}"


def command_line(context: typer.Context) -> str:
    """The command as it was given, to be given again."""
    words = ["fedscaffold", context.info_name or ""]
    named: list[str] = []
    for parameter in context.command.params:
        value = context.params.get(parameter.name or "")
        source = context.get_parameter_source(parameter.name or "")
        if source is None or source.name != "COMMANDLINE" or value is None:
            continue
        if parameter.param_type_name == "argument":
            words.append(str(value))
        elif isinstance(value, bool):
            named += [parameter.opts[0]] if value else []
        else:
            named += [parameter.opts[0], str(value)]
    return shlex.join([*words, *named])


def check_suffix(path: Path, allowed: Sequence[str], option: str) -> None:
    """Refuse a file name that does not say its format."""
    if path.suffix not in allowed:
        raise InvalidInput(f"{option} must end in {' or '.join(allowed)}, got {path}")
