"""Options that the commands on tables share."""

import csv
import inspect
import shlex
from collections.abc import Callable, Sequence
from dataclasses import MISSING, asdict, dataclass, fields
from functools import partial, wraps
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from fedscaffold.cli import options
from fedscaffold.core.errors import InvalidInput
from fedscaffold.data.encoded import EncodedProblem
from fedscaffold.data.open import open_problem
from fedscaffold.data.options import TableOptions
from fedscaffold.data.public.bounds import Bounds
from fedscaffold.data.reading.csv_file import CsvFormat
from fedscaffold.models.planning.planned import TOLERANCE, BatchSize

TABS = {"tab": "\t", "\\t": "\t"}

Data = Annotated[Path, typer.Argument(help="The table: a .csv or .parquet file, or a folder of the latter.")]
Target = Annotated[str, typer.Option(help="The column to predict.")]
Client = Annotated[str, typer.Option(help="The column that says whose row it is.")]
Kind = Annotated[
    str | None,
    typer.Option(help="ridge, logistic, poisson or gamma; one of the first two by the target unless given."),
]
Exposure = Annotated[
    str | None, typer.Option(help="poisson, gamma: the column of exposures, such as days under observation.")
]
Offset = Annotated[str | None, typer.Option(help="The column of numbers that are added to the margins.")]
Weight = Annotated[str | None, typer.Option(help="The column of the rows' weights.")]
Features = Annotated[str | None, typer.Option(help="Columns to predict from, a,b,c; all others unless given.")]
Drop = Annotated[str | None, typer.Option(help="Columns to leave out, a,b,c.")]
Categorical = Annotated[str | None, typer.Option(help="Columns of numbers to take as categories, a,b,c.")]
Reference = Annotated[
    list[str] | None,
    typer.Option(
        metavar="COLUMN=LEVEL",
        help="Level that a category's others are compared with.",
        show_default="most frequent",
    ),
]
Dates = Annotated[str | None, typer.Option(help="Take these parts of dates: year,month,weekday.")]
Missing = Annotated[str, typer.Option(help="Missing values: error, or mean (fill in the mean).")]
MinRows = Annotated[int, typer.Option(help="Refuse clients with fewer rows.")]
MaxCategories = Annotated[int, typer.Option(help="Refuse text columns with more different values.")]
Delimiter = Annotated[str | None, typer.Option(help="CSV: the character between fields.", show_default="detected")]
Decimal = Annotated[str | None, typer.Option(help="CSV: the decimal mark.", show_default="detected")]
CsvEncoding = Annotated[
    str | None, typer.Option("--encoding", help="CSV: utf-8, latin-1, ...", show_default="detected")
]
Secure = Annotated[bool, typer.Option("--secure", help="The coordinator learns only sums over all sites.")]
SecureThreshold = Annotated[
    int | None, typer.Option(help="Sites that a secure sum needs to its end.", show_default="two thirds")
]
Epsilon = Annotated[float | None, typer.Option(help="ε of a privacy budget of every row.", show_default="none")]
Protect = Annotated[str, typer.Option(help="For --epsilon: rows; or sites, each table as a whole.")]
Delta = Annotated[
    float | None, typer.Option(help="δ of the budget.", show_default="0.1 over the rows of the largest client")
]
BoundsFile = Annotated[
    Path | None,
    typer.Option(
        help="For --epsilon: a TOML file of public ranges and values, target included: age = [0, 120], "
        "sex = ['f', 'm']."
    ),
]
Clip = Annotated[float | None, typer.Option(help="For --epsilon: largest norm of a row's gradient; else chosen.")]
SiteClip = Annotated[
    float | None, typer.Option(help="For --epsilon: largest norm of a row's gradient or a site's message.")
]
TablePenalty = Annotated[float | None, typer.Option("--l2", help="Penalty.", show_default="1/rows")]
Tolerance = Annotated[
    str, typer.Option(help="'se:0.05' for 5 % of standard errors, or relative distance to the pooled model.")
]
Batch = Annotated[str, typer.Option(help="Rows per step, 'full' or 'auto'.")]
CacheDir = Annotated[
    Path | None, typer.Option(help="Parquet: keep the encoded rows in this folder, not in memory.")
]
Seed = Annotated[int, typer.Option(help="Seed of the rows drawn.")]
ClientIntercepts = Annotated[
    bool,
    typer.Option("--client-intercepts", help="Give each client an intercept of its own, which never leaves it."),
]


@dataclass(frozen=True, kw_only=True)
class TableFlags:
    """The options that say how to read a table and how closely to fit it."""

    target: Target
    client: Client
    kind: Kind = None
    exposure: Exposure = None
    offset: Offset = None
    weight: Weight = None
    features: Features = None
    drop: Drop = None
    categorical: Categorical = None
    reference: Reference = None
    dates: Dates = None
    l2: TablePenalty = None
    missing: Missing = "error"
    min_rows: MinRows = TableOptions.min_rows
    max_categories: MaxCategories = TableOptions.max_categories
    tolerance: Tolerance = TOLERANCE
    client_intercepts: ClientIntercepts = False
    cache_dir: CacheDir = None
    delimiter: Delimiter = None
    decimal: Decimal = None
    encoding: CsvEncoding = None

    def open(self, data: Path, *, cache_dir: Path | None, max_bytes_in_memory: int = 0) -> EncodedProblem:
        """The problem of the table in a file, with its encoded rows kept as `open_problem` says."""
        kind: Any = self.kind
        missing: Any = self.missing
        dates: Any = parse_names(self.dates) or ()
        return open_problem(
            data,
            target=self.target,
            client=self.client,
            kind=kind,
            exposure=self.exposure,
            offset=self.offset,
            weight=self.weight,
            features=parse_names(self.features),
            drop=parse_names(self.drop) or (),
            categorical=parse_names(self.categorical) or (),
            reference=parse_reference(self.reference),
            dates=dates,
            l2="auto" if self.l2 is None else self.l2,
            missing=missing,
            min_rows=self.min_rows,
            max_categories=self.max_categories,
            cache_dir=cache_dir,
            max_bytes_in_memory=max_bytes_in_memory,
            **asdict(self.text),
        )

    @property
    def text(self) -> CsvFormat:
        """How CSV files are to be read."""
        return csv_format(self.delimiter, self.decimal, self.encoding)

    def opener(self, data: Path) -> Callable[..., EncodedProblem]:
        """A function of `cache_dir` and `max_bytes_in_memory` that opens the table."""
        return partial(self.open, data)


TABLES_ONLY = tuple(field.name for field in fields(TableFlags) if field.name != "l2")


def refuse_unfit(given: set[str], *, is_table: bool, paper_only: Sequence[str]) -> None:
    """Refuse options that were given for the other kind of problem: a table, or one of the paper's."""
    for name in paper_only if is_table else TABLES_ONLY:
        if name in given:
            why = "the paper's problems; a table has its own" if is_table else "a table, and none is given"
            raise InvalidInput(f"--{name.replace('_', '-')} is for {why}")


def with_table_options(**defaults: Any) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Replace a command's parameter `table` by the options of `TableFlags`, some with other defaults.

    Typer reads the options from the signature, so that they stand once for all commands.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        hints = get_type_hints(TableFlags, include_extras=True)
        own = inspect.signature(command, eval_str=True)
        added = []
        for field in fields(TableFlags):
            usual = inspect.Parameter.empty if field.default is MISSING else field.default
            added.append(
                inspect.Parameter(
                    field.name,
                    inspect.Parameter.KEYWORD_ONLY,
                    default=defaults.get(field.name, usual),
                    annotation=hints[field.name],
                )
            )
        parameters: list[inspect.Parameter] = []
        for parameter in own.parameters.values():
            if parameter.name == "table":
                parameters += added
            else:
                parameters.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY))

        @wraps(command)
        def with_options(**given: Any) -> None:
            table = TableFlags(**{field.name: given.pop(field.name) for field in fields(TableFlags)})
            command(table=table, **given)

        with_options.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]
        with_options.__annotations__ = {each.name: each.annotation for each in parameters}
        return with_options

    return decorate


def load_bounds(path: Path | None) -> dict[str, Any] | None:
    """Public bounds from a file; None where none is given."""
    return None if path is None else Bounds.load(path)


def csv_format(delimiter: str | None, decimal: str | None, encoding: str | None) -> CsvFormat:
    """How CSV files are to be read; a tab may be written as a word."""
    return CsvFormat(delimiter=TABS.get(delimiter or "", delimiter), decimal=decimal, encoding=encoding)


def parse_names(text: str | None) -> list[str] | None:
    """Names separated by commas, without the spaces around them; a name with a comma stands in quotes."""
    if text is None:
        return None
    (row,) = csv.reader([text], skipinitialspace=True)
    return [name.strip() for name in row if name.strip()]


def parse_reference(given: Sequence[str] | None) -> dict[str, str]:
    """Parse COLUMN=LEVEL, each column once."""
    found: dict[str, str] = {}
    for text in given or ():
        column, equals, level = text.partition("=")
        if not equals or not column or column in found:
            raise InvalidInput(f"--reference must be COLUMN=LEVEL, each column once; got {text!r}")
        found[column] = level
    return found


def parse_number(text: str) -> Any:
    """A number, or the text as it is, such as 'se:0.05' or 'pearson', which `FitSettings` checks."""
    try:
        return float(text)
    except ValueError:
        return text


def parse_batch(text: str) -> BatchSize:
    """A number of rows, None for 'full', or 'auto'."""
    return "auto" if text == "auto" else options.batch_size_of(text)


def describe_kind(problem: EncodedProblem, given: str | None) -> str:
    """The kind of model and, where it was guessed, why."""
    name = problem.encoding.target
    if problem.encoding.family.log_link:
        return problem.kind
    if problem.classes is None:
        return "ridge" if given else f"ridge, since {name} is a number with more than 20 different values"
    many = f"{len(problem.classes)} classes"
    return f"logistic, {many}" if given else f"logistic, since {name} has {many}"


def command_line(context: typer.Context) -> str:
    """The command as it was given, quoted for a shell."""
    words = ["fedscaffold", context.info_name or ""]
    named: list[str] = []
    for parameter in context.command.params:
        value = context.params.get(parameter.name or "")
        if value is None or not is_given(context, parameter.name or ""):
            continue
        if parameter.param_type_name == "argument":
            words.append(str(value))
        elif isinstance(value, bool):
            named += [parameter.opts[0]] if value else []
        elif isinstance(value, list | tuple):
            named += [word for each in value for word in (parameter.opts[0], str(each))]
        else:
            named += [parameter.opts[0], str(value)]
    return shlex.join([*words, *named])


def is_given(context: typer.Context, name: str) -> bool:
    """Whether an option stands on the command line."""
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def check_suffix(path: Path, allowed: Sequence[str], option: str) -> None:
    """Refuse a file name that does not end in one of the allowed suffixes."""
    if path.suffix not in allowed:
        raise InvalidInput(f"{option} must end in {' or '.join(allowed)}, got {path}")
