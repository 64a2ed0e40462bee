"""Options of the commands on studies, generated from `StudySettings`: names, defaults and help."""

import difflib
import inspect
import tomllib
from collections.abc import Callable, Sequence
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, get_origin

import typer

from fedscaffold.core.errors import Collector
from fedscaffold.data.settings import split_names
from fedscaffold.federation.study.plan import Column, StudySettings, sentences

FLAGS = ("target", "kind", "features", "categorical", "l2", "tolerance", "sums", "epsilon")
"""Settings that have an option each; all others are given with --set."""
BUDGET = ("epsilon", "delta", "clip", "protect")
KNOWN = tuple(StudySettings.model_fields)
EPILOG = f"--set takes every other setting of a study: {', '.join(name for name in KNOWN if name not in FLAGS)}."


def with_study_options(command: Callable[..., None]) -> Callable[..., None]:
    """Replace a command's parameter `chosen` by options, one for each of `FLAGS`, and --set for other settings.

    Typer reads the options from the signature. The command gets a function that returns the settings by name, or
    raises if some texts cannot be read.
    """
    about = sentences(StudySettings)

    def parameter(name: str) -> inspect.Parameter:
        default = StudySettings.model_fields[name].get_default()
        shown = str(default) if isinstance(default, str | float) else "none"
        option = typer.Option(f"--{name}", help=f"{about[name]}.", show_default=shown)
        kind: Any = Annotated[str | None, option]
        return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=kind)

    more = typer.Option("--set", metavar="NAME=VALUE", help="Any other setting by its name; repeatable.")
    several: Any = Annotated[list[str] | None, more]
    added = [*map(parameter, FLAGS)]
    added.append(inspect.Parameter("settings", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=several))
    own = inspect.signature(command, eval_str=True)
    parameters: list[inspect.Parameter] = []
    for each in own.parameters.values():
        parameters += added if each.name == "chosen" else [each.replace(kind=inspect.Parameter.KEYWORD_ONLY)]

    @wraps(command)
    def with_options(**given: Any) -> None:
        flags = {name: value for name in FLAGS if (value := given.pop(name)) is not None}
        texts = given.pop("settings") or ()
        command(chosen=lambda: parse_settings(flags, texts), **given)

    with_options.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]
    with_options.__annotations__ = {each.name: each.annotation for each in parameters}
    return with_options


def parse_settings(flags: dict[str, str], texts: Sequence[str]) -> dict[str, Any]:
    """Return the settings of options and of --set by name, not yet checked; raise with all problems of --set."""
    found, problems = {name: _value(name, text) for name, text in flags.items()}, Collector("--set")
    for text in texts:
        written, equals, value = text.partition("=")
        name = written.strip().replace("-", "_")
        close = difflib.get_close_matches(name, KNOWN, n=1)
        if not equals:
            problems.add(f"--set must be NAME=VALUE, got {text!r}")
        elif name not in KNOWN:
            hint = f"did you mean {close[0]!r}?" if close else f"settings are {', '.join(map(repr, KNOWN))}"
            problems.add(f"--set does not know {written!r}; {hint}")
        elif name in FLAGS:
            problems.add(f"give {name!r} as --{name}, not with --set")
        elif name in found:
            problems.add(f"--set gives {name!r} twice; join values with commas")
        else:
            found[name] = _value(name, value)
    problems.raise_any()
    return found


def _value(name: str, text: str) -> Any:
    """Return the value of a setting from text: names with commas, a value of TOML, or the text itself."""
    if get_origin(StudySettings.model_fields[name].annotation) is tuple or name == "features":
        return split_names(text)
    if name in ("target", "event", "kind"):
        return text
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def plan_from(
    chosen: dict[str, Any], *, name: str, sites: Sequence[str], like: Path | None, rows: int | None = None
) -> Any:
    """Return the plan of a study from its settings, with a codebook from names or from a table's columns.

    Parameters
    ----------
    chosen
        Settings by name.
    name, sites
        Names of the study and of its sites.
    like
        A table with the columns of the sites' tables, of which only names and types are read; None if the settings
        name all columns.
    rows
        Number of rows of all sites together, which is public under a privacy budget of rows.
    """
    from fedscaffold.data.files import read_table
    from fedscaffold.federation.study.plan import StudyPlan
    from fedscaffold.federation.study.study import Study

    settings, problems = Study(name=name, **chosen), Collector("the study")
    if len(set(sites)) < len(sites):
        problems.add("sites must have different names")
    private, by_rows = settings.epsilon is not None, settings.protect == "rows"
    if (rows is not None) != (private and by_rows):
        problems.add("--rows, the public number of rows of all sites, is for a budget of rows, which needs it")
    if like is None and settings.target not in settings.columns:
        if settings.kind is None or not settings.features:
            problems.add("pass kind=... and features=..., or --like with a table that has the sites' columns")
        kinds: dict[str, Any] = dict.fromkeys(settings.features or (), "number")
        kinds |= dict.fromkeys(settings.categorical, "category")
        kinds[settings.target] = "category" if settings.kind == "logistic" else "number"
        entries = {each: settings.columns.get(each, Column(type=kind)) for each, kind in kinds.items()}
        chosen = {**chosen, "columns": entries, "features": None, "categorical": ()}
    problems.raise_any()
    budget = {each: chosen[each] for each in BUDGET if each in chosen}
    rest = {each: value for each, value in chosen.items() if each not in BUDGET}
    table = None if like is None else read_table(like)
    plan = Study(name=name, **rest).plan_for(dict.fromkeys(sites, table))
    if not private:
        return plan
    delta = 0.1 / (rows or len(sites))  # unless it is given
    return StudyPlan(**{**plan.model_dump(), "delta": delta, **budget, "rows": rows})
