"""Options of the commands on studies, generated from `StudySettings`: names, defaults and help."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from fedscaffold.cli.options import parse_settings, with_settings
from fedscaffold.core.errors import Collector
from fedscaffold.data.settings import parse_setting
from fedscaffold.federation.study.plan import Column, StudySettings, sentences

FLAGS = ("target", "kind", "features", "l2", "tolerance", "sums", "epsilon")
"""Settings that have an option each; all others are given with --set."""
BUDGET = ("epsilon", "delta", "clip", "protect")
KNOWN = tuple(StudySettings.model_fields)
EPILOG = f"--set takes every other setting of a study: {', '.join(name for name in KNOWN if name not in FLAGS)}."


def with_study_options(command: Callable[..., None]) -> Callable[..., None]:
    """Replace a command's parameter `chosen` by options, one for each of `FLAGS`, and --set for other settings.

    The command gets a function that returns the settings by name, or raises if some texts cannot be read.
    """
    about, flags = sentences(StudySettings), dict[str, tuple[Any, Any]]()
    for name in FLAGS:
        default = StudySettings.model_fields[name].get_default()
        shown = str(default) if isinstance(default, str | float) else "none"
        option = typer.Option(f"--{name}", help=f"{about[name]}.", show_default=shown)
        flags[name] = Annotated[str | None, option], None

    def collect(given: dict[str, Any], texts: Sequence[str]) -> Callable[[], dict[str, Any]]:
        parsed = {name: parse_setting(name, text) for name, text in given.items()}
        return lambda: parsed | parse_settings(texts, KNOWN, taken=FLAGS)

    return with_settings("chosen", flags, collect)(command)


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
