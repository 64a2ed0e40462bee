"""Options that several commands share, and options generated from settings."""

import inspect
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass, replace
from functools import partial, wraps
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any

import typer
from rich.cells import cell_len
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from fedscaffold import methods, trackers
from fedscaffold.core.checks import choice, did_you_mean, given
from fedscaffold.core.display import load_matplotlib
from fedscaffold.core.errors import Collector, InvalidInput
from fedscaffold.core.files import check_writable
from fedscaffold.core.imports import missing_extra
from fedscaffold.core.protocols import Method
from fedscaffold.data.settings import CsvFormat, parse_setting
from fedscaffold.engines import choose_engine
from fedscaffold.federation.run_config import find_method
from fedscaffold.problems import LogisticStream, RidgeStream, paper
from fedscaffold.simulation.stages.stationarity import MeanEstimate, Plateau

METHODS = {name.lower(): name for name in methods.__all__} | {"twosided": "TwoSidedScaffold"}  # without hyphens
SHORT_NAMES = (
    "scaffold", "fedavg", "two-sided", "proxskip", "fedlin", "fedprox", "fedsplit", "scallion", "tamuna",
    "local-svrg", "vr-proxskip", "randprox", "amplified-scaffold", "apda",
)  # fmt: skip
UNLESS_GIVEN: dict[str, Any] = {
    "server_step_size": 1.0,
    "proximal_weight": 1.0,
    "compression": "random_k:0.1",
    "share": 0.1,
    "window": 4,
}
PROBLEMS: dict[str, Callable[..., Any]] = {
    "regression": partial(paper, "regression"),
    "classification": partial(paper, "classification"),
    "ridge-stream": partial(RidgeStream, dim=20),
    "logistic-stream": partial(LogisticStream, dim=20),
}
SEARCHED = ("step_size", "local_steps", "communication_probability")
METHOD_NAMES = f"{', '.join(SHORT_NAMES)}, or module.Class of your own"

Problem = Annotated[
    str,
    typer.Option(
        "--problem",
        help="regression or classification (the paper's data; the latter needs scikit-learn), ridge-stream or "
        "logistic-stream (clients that are distributions), or module.function; NAME:FIELD=VALUE,... for more, "
        "such as ridge-stream:dim=50,seed=2.",
    ),
]
OneMethod = Annotated[str, typer.Option("--method", help=f"{METHOD_NAMES}; NAME:FIELD=VALUE,... for more.")]
StepSize = Annotated[float, typer.Option(help="γ.")]
LocalSteps = Annotated[int, typer.Option(help="H, steps between communications.")]
Rounds = Annotated[int, typer.Option(help="T, communications.")]
EngineName = Annotated[
    str,
    typer.Option(
        "--engine",
        help="auto, native, jax, torch, ray, reference; NAME:FIELD=VALUE,... for more, such as native:threads=2.",
    ),
]
Clients = Annotated[int, typer.Option(help="Number of clients, even for the paper's problems.")]
Penalty = Annotated[float, typer.Option("--l2", help="Penalty.")]
BatchSize = Annotated[str, typer.Option(help="Records per step, or 'full'.")]
AnyBatchSize = Annotated[
    str | None, typer.Option(help="Records per step, 'full' or 'auto'.", show_default="10; auto for tables")
]
Seed = Annotated[int, typer.Option(help="Seed of data and noise.")]
Plot = Annotated[Path | None, typer.Option(help="Draw the curves to this file: .png, .svg or .pdf.")]
Methods = Annotated[
    list[str] | None,
    typer.Option(
        "--method",
        help=f"{METHOD_NAMES}, or fednewton (compare only); NAME:FIELD=VALUE,... fixes fields. Repeatable.",
    ),
]
SeveralClients = Annotated[str, typer.Option("--clients", help="Numbers of clients, with commas.")]
SeveralStepSizes = Annotated[
    str | None, typer.Option("--step-size", help="γ, with commas; else compare tries 4/L, 2/L, ...")
]
SeveralLocalSteps = Annotated[str, typer.Option("--local-steps", help="H, with commas; for proxskip 1/p.")]
Repetitions = Annotated[int, typer.Option(help="Independent runs, side by side.")]
ResultFolder = Annotated[
    Path | None, typer.Option("--out", help="Folder for tables and for finished runs, which are not run again.")
]
CSV_SETTINGS = tuple(field.name for field in fields(CsvFormat))
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="Any other setting by its name in Python; repeatable."),
]
CsvSettings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="CSV files: delimiter, decimal or encoding; repeatable."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


def require_packages(*names: str) -> None:
    """Raise before any work, rather than after the computation, if a package is not installed."""
    for name in names:
        if find_spec(name) is None:
            raise missing_extra(f"{name} is not installed", extra="reproduce")


def batch_size_of(text: Any) -> int | None:
    """Parse a batch size: a number of records, or None for 'full'."""
    if text == "full":
        return None
    try:
        return int(text)
    except (TypeError, ValueError):
        raise InvalidInput(f"batch_size must be a whole number or 'full', got {text!r}") from None


def check_file(option: str, path: Path | None, suffixes: Sequence[str]) -> None:
    """Raise, before any work, if a file cannot be written or its name has another suffix; return if it is None."""
    if path is not None:
        if path.suffix not in suffixes:
            raise InvalidInput(f"{option} must end in {', '.join(suffixes[:-1])} or {suffixes[-1]}, got {path}")
        check_writable(path)


def check_figure(plot: Path | None) -> None:
    """Raise if a figure cannot be drawn or written, before any work."""
    check_file("--plot", plot, (".png", ".svg", ".pdf"))
    if plot is not None:
        load_matplotlib()


def numbers_of(option: str, text: str, kind: type[int] | type[float], *, least: float | None = None) -> list[Any]:
    """Parse different numbers separated by commas, each at least `least`."""
    try:
        found = [kind(part) for part in text.split(",")]
    except ValueError:
        what = "whole numbers" if kind is int else "numbers"
        raise InvalidInput(f"{option} must be {what} with commas, such as 1,2; got {text!r}") from None
    if len(set(found)) < len(found):
        raise InvalidInput(f"{option} must be different numbers, got {text!r}")
    if least is not None and min(found) < least:
        raise InvalidInput(f"{option} must be at least {least}, got {text}")
    return found


def candidates_of(
    text: str,
    *,
    step_sizes: Sequence[float],
    local_steps: Sequence[int],
    constants: Mapping[str, Callable[[], float]] | None = None,
) -> list[Method]:
    """Parse NAME or NAME:FIELD=VALUE,... into candidates of a method: a grid over settings that are not given.

    NAME is a short name, the class name of an installed method, or an import path.

    The grid is over the step size and the number of local steps, for methods with random numbers of steps their
    mean 1/p. Other settings that a method needs come from UNLESS_GIVEN if they are not given, or from constants of
    the problem, computed only for methods that need them.
    """
    kind = _method_class(text.partition(":")[0])
    allowed = [field.name for field in fields(kind)]
    name, given = fields_of("--method", text, allowed=allowed)
    given = {name: value for name, value in UNLESS_GIVEN.items() if name in allowed} | given
    given |= {name: of() for name, of in (constants or {}).items() if name in allowed and name not in given}
    missing = [
        each.name
        for each in fields(kind)
        if each.init and each.default is each.default_factory is MISSING and each.name not in (*given, *SEARCHED)
    ]
    if missing:
        example = ",".join(f"{each}=VALUE" for each in missing)
        raise InvalidInput(f"method={name} requires {', '.join(missing)}: {name}:{example}")
    random = "communication_probability" in allowed
    steps = "communication_probability" if random else "local_steps"
    lengths = [given.pop(steps)] if steps in given else [1 / H if random else H for H in local_steps]
    sizes = [given.pop("step_size")] if "step_size" in given else step_sizes
    return [kind(step_size=size, **{steps: length}, **given) for length in lengths for size in sizes]


def _method_class(name: str) -> type[Any]:
    """Return a method by its short name, its class name if installed, or its import path, module.Class."""
    module, _, own = name.rpartition(".")
    try:
        if module:
            found = getattr(import_from_here(module), own)
        else:
            found = find_method(METHODS.get(name.replace("-", "").lower(), name))
    except (ImportError, AttributeError, ValueError) as error:
        why = f" ({error})" if module else ""
        raise InvalidInput(
            f"method must begin with one of {', '.join(SHORT_NAMES)}, with the class name of an installed method, "
            f"or with the import path of one, such as damped.DampedScaffold; got {name!r}{why}"
            f"{did_you_mean(name, SHORT_NAMES)}"
        ) from None
    if not (isinstance(found, type) and is_dataclass(found) and hasattr(found, "update_clients")):
        raise InvalidInput(f"method={name!r} is not a method: {found!r}")
    return found


def engine_of(text: str) -> Any:
    """Parse NAME or NAME:FIELD=VALUE,... into an engine; "auto" is left for the run to decide."""
    if text == "auto":
        return text
    engine: Any = choose_engine(text.partition(":")[0])
    plain = [one.name for one in fields(engine) if isinstance(getattr(engine, one.name), int | str | None)]
    return replace(engine, **fields_of("engine", text, allowed=plain)[1])


def tracker_of(text: str) -> Any:
    """Parse tensorboard:DIR, mlflow:URI or wandb:PROJECT into a tracker."""
    name, _, where = text.partition(":")
    kinds = {"tensorboard": trackers.TensorBoard, "mlflow": trackers.MLflow, "wandb": trackers.Wandb}
    if name not in kinds or not where:
        raise InvalidInput(f"--track must be tensorboard:DIR, mlflow:URI or wandb:PROJECT, got {given(text)}")
    return kinds[name](where)


def problem_of(text: str) -> tuple[Callable[..., Any], dict[str, Any]]:
    """Parse NAME or NAME:FIELD=VALUE,... into a function that makes problems and arguments of it."""
    name, settings = fields_of("--problem", text)
    module, _, own = name.rpartition(".")
    if module and name not in PROBLEMS:
        return imported("--problem", module, own), settings
    function = PROBLEMS[choice("problem", name, tuple(PROBLEMS))]
    function.__name__ = name
    return function, settings


def make_problem(text: str, **usual: Any) -> Any:
    """Return the problem of NAME or NAME:FIELD=VALUE,..., with the usual arguments unless others are given.

    Usual arguments that the function does not take, such as a seed, are left out.
    """
    make, settings = problem_of(text)
    try:
        return make(**{**settings_taken_by(make, usual), **settings})
    except (TypeError, ValueError) as error:  # names that it does not take, among others
        raise error if isinstance(error, InvalidInput) else InvalidInput(f"--problem {text}: {error}") from None


def settings_taken_by(function: Callable[..., Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that are parameters of a function; all if it takes any."""
    parameters = inspect.signature(function).parameters
    takes_any = any(each.kind is each.VAR_KEYWORD for each in parameters.values())
    return {name: value for name, value in settings.items() if takes_any or name in parameters}


def import_from_here(module: str) -> ModuleType:
    """Import a module as `python -m` would, which also looks in the working folder."""
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    return import_module(module)


def imported(option: str, module: str, name: str) -> Any:
    """Import a name from a module, which may be in the working folder; raise if there is none."""
    try:
        return getattr(import_from_here(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise InvalidInput(f"{option} {module}.{name} cannot be imported: {error}") from None


def fields_of(option: str, text: str, *, allowed: Sequence[str] | None = None) -> tuple[str, dict[str, Any]]:
    """Parse NAME or NAME:FIELD=VALUE,... into the name and the values of allowed fields, each once."""
    name, _, rest = text.partition(":")
    given: dict[str, Any] = {}
    for part in rest.split(",") if rest else ():
        field, equals, value = part.partition("=")
        if not equals or field in given or (allowed is not None and field not in allowed):
            some = "fields, each once," if allowed is None else f"some of {', '.join(map(repr, allowed))}"
            hint = "" if field in given else did_you_mean(field, allowed or ())
            raise InvalidInput(f"{option} {text!r}: after the colon, give {some} as NAME=VALUE{hint}")
        given[field] = _value(value)
    return name, given


def _value(text: str) -> int | float | str:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def with_settings(
    replaced: str, flags: Mapping[str, tuple[Any, Any]], collect: Callable[[dict[str, Any], Sequence[str]], Any]
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator that replaces a command's parameter by options for settings; Typer reads the signature.

    Parameters
    ----------
    replaced
        Name of the parameter.
    flags
        By name, the annotation and the default of each option; --set is added for other settings.
    collect
        Makes the parameter's value from the options that were given, by name, and the texts of --set.
    """
    only = inspect.Parameter.KEYWORD_ONLY
    added = [
        inspect.Parameter(name, only, default=default, annotation=kind)
        for name, (kind, default) in {**flags, "settings": (Settings, None)}.items()
    ]

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        own = inspect.signature(command, eval_str=True)
        parameters: list[inspect.Parameter] = []
        for each in own.parameters.values():
            parameters += added if each.name == replaced else [each.replace(kind=only)]

        @wraps(command)
        def with_options(**given: Any) -> None:
            chosen = {name: value for name in flags if (value := given.pop(name)) is not None}
            command(**{replaced: collect(chosen, given.pop("settings") or ())}, **given)

        with_options.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]
        with_options.__annotations__ = {each.name: each.annotation for each in parameters}
        return with_options

    return decorate


def parse_settings(
    texts: Sequence[str] | None, known: Collection[str], taken: Collection[str] = ()
) -> dict[str, Any]:
    """Return the settings of --set NAME=VALUE by name, their values as `parse_setting` reads them.

    Names must be known, each once, and not among those `taken` by options; all problems are reported at once.
    """
    found, problems = dict[str, Any](), Collector("--set")
    for text in texts or ():
        written, equals, value = text.partition("=")
        name = written.strip().replace("-", "_")
        if not equals:
            problems.add(f"--set must be NAME=VALUE, got {text!r}")
        elif name not in known:
            hint = did_you_mean(name, known) or f"; settings are {', '.join(map(repr, known))}"
            problems.add(f"--set does not know {written!r}{hint}")
        elif name in taken:
            problems.add(f"give {name!r} as --{name}, not with --set")
        elif name in found:
            problems.add(f"--set gives {name!r} twice; join values with commas")
        else:
            with problems.catching():
                found[name] = parse_setting(name, value)
    problems.raise_any()
    return found


def csv_format(settings: Mapping[str, Any]) -> CsvFormat:
    """Return the format of CSV files from the settings of --set."""
    return CsvFormat(**{name: settings[name] for name in CSV_SETTINGS if name in settings})


def print_table(
    title: str | None,
    rows: Iterable[Sequence[str | Text]],
    *,
    header: Sequence[str] = (),
    caption: str | None = None,
    left: int = 1,
    widest: int | None = None,
) -> None:
    """Print rows as a table that fits 80 columns, with square brackets as they are.

    Columns with a header are aligned to the right, except the first `left` ones; `widest` cuts long cells.
    """
    console = Console(highlight=False)
    wide = min(cell_len(title or ""), console.width)  # a title of several lines over a narrow table reads badly
    table = Table(title=title and escape(title), show_header=bool(header), caption=caption, min_width=wide)
    for k, name in enumerate(header):
        side: Any = "left" if k < left else "right"
        cut: dict[str, Any] = {"max_width": widest, "overflow": "ellipsis", "no_wrap": k < left} if widest else {}
        table.add_column(escape(name), justify=side, **cut)
    for row in rows:
        table.add_row(*(escape(cell) if isinstance(cell, str) else cell for cell in row))
    console.print(table)


def with_error(found: MeanEstimate | Plateau) -> str:
    """Return a mean ± its standard error."""
    return f"{found.mean:.4g} ± {found.standard_error:.2g}" if found.standard_error else f"{found.mean:.4g}"
