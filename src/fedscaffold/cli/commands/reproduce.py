"""`fedscaffold reproduce`: figures of the paper and of the documentation."""

import shutil
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from fedscaffold.cli import options
from fedscaffold.cli.errors import FAILED, RESUMABLE, refusals
from fedscaffold.core.display import load_matplotlib, progress_bar
from fedscaffold.core.files import check_writable, folder_at
from fedscaffold.paper import acceleration as acceleration_study
from fedscaffold.paper import figure1 as figure1_study
from fedscaffold.paper import methods as methods_study
from fedscaffold.paper import million as million_study
from fedscaffold.paper.claims import Claim
from fedscaffold.problems.paper import L2

app = typer.Typer(
    help="Compute the figures of the paper and of the documentation.", no_args_is_help=True, add_completion=False
)

FIGURE1_EXAMPLES = (
    "Examples:\n\n"
    "  fedscaffold reproduce figure1    (full size: a minute or two)\n\n"
    "  fedscaffold reproduce figure1 --clients 10,100    (a quick look)\n\n"
    "  fedscaffold reproduce figure1 --runs 10 --seed 1 --out results/again"
)
MILLION_EXAMPLES = (
    "Examples:\n\n"
    "  fedscaffold reproduce million    (a quarter of an hour of processor time)\n\n"
    "  fedscaffold reproduce million --clients 10,100,1000,10000    (a quick look)"
)
ACCELERATION_EXAMPLES = (
    "Examples:\n\n"
    "  fedscaffold reproduce acceleration    (several minutes)\n\n"
    "  fedscaffold reproduce acceleration --conditions 10,30,100 --clients 10,30,100    (a quick look)"
)
METHODS_EXAMPLES = (
    "Examples:\n\n"
    "  fedscaffold reproduce methods    (half a minute)\n\n"
    "  fedscaffold reproduce methods --out docs/images/methods"
)
MILLION_CLIENTS, ACCELERATION_CLIENTS = (
    ",".join(map(str, study.CLIENTS)) for study in (million_study, acceleration_study)
)
PACKAGES = ("matplotlib", "pandas", "pyarrow")
Folder = Annotated[Path, typer.Option("--out", help="Folder for the figure and the numbers.")]


@app.command("figure1", epilog=FIGURE1_EXAMPLES)
def figure1(
    clients: options.SeveralClients = "10,100,1000,10000",
    runs: Annotated[int, typer.Option(help="Runs per curve.")] = 3,
    seed: options.Seed = 0,
    l2: options.Penalty = L2,
    out: Folder = Path("results/figure1"),
) -> None:
    """Scaffold against FedAvg, ridge and logistic regression, from 10 to 10,000 clients (even numbers).

    Writes figure1.png and .svg, figure1.parquet and .csv, claims.json and claims.md to the folder. Ends
    with exit code 1 if one of the paper's claims does not hold. After an interruption the same command
    resumes where it stopped.
    """
    with refusals(interrupted=RESUMABLE):
        numbers = options.numbers_of("--clients", clients, int)
        settings = figure1_study.Figure1Settings(clients=numbers, runs=runs, seed=seed, l2=l2)
        options.require_packages("sklearn", *PACKAGES)
        curves, found = _reproduce("Figure 1", figure1_study, settings, out, figure1_study.claims)
    cells: dict[tuple[str, int], dict[str, str]] = {}
    for curve in curves:
        plateau, stationary = curve.reached
        row = cells.setdefault((curve.kind, curve.n_clients), {})
        row[curve.method] = f"{plateau.mean:.3g} ± {plateau.standard_error:.1g}{'' if stationary else ' *'}"
    options.print_table(
        "Plateau of the squared error, ± standard error",
        ((kind, f"{n:,}", row["Scaffold"], row["FedAvg"]) for (kind, n), row in cells.items()),
        header=("problem", "N", "Scaffold", "FedAvg"),
        caption="* still moving: last quarter of the rounds",
    )
    _conclude(found, out, title="The paper's claims")


@app.command("million", epilog=MILLION_EXAMPLES)
def million(
    clients: options.SeveralClients = MILLION_CLIENTS,
    out: Folder = Path("results/million"),
) -> None:
    """Plateau against the number of clients, measured and predicted: ridge falls as 1/N, logistic saturates.

    Writes million.png and .svg, a Parquet file for each problem, and claims.json to the folder. Ends with exit
    code 1 if a claim does not hold. After an interruption the same command resumes where it stopped.
    """
    with refusals(interrupted=RESUMABLE):
        settings = million_study.MillionSettings(clients=options.numbers_of("--clients", clients, int))
        options.require_packages("sklearn", *PACKAGES)
        for name in ("million.png", "million.svg"):
            check_writable(folder_at(out) / name)
        with progress_bar("Million", None) as advance:
            lines = million_study.lines(million_study.simulate(settings, out=out, advance=advance))
        found = million_study.claims(lines)
        million_study.save(lines, found, settings, out)
    _conclude(found, out)


@app.command("acceleration", epilog=ACCELERATION_EXAMPLES)
def acceleration(
    conditions: Annotated[str, typer.Option(help="Condition numbers, three or more, with commas.")] = ",".join(
        f"{each:g}" for each in acceleration_study.CONDITIONS
    ),
    clients: options.SeveralClients = ACCELERATION_CLIENTS,
    out: Folder = Path("results/acceleration"),
) -> None:
    """Answer the paper's open question by measurement: √κ communications together with linear speed-up?

    Scaffold, ProxSkip and FedLin with stochastic gradients: rounds against the condition number, gradients per
    client against the number of clients (three or more), measured and predicted. Writes acceleration.png and .svg,
    acceleration.parquet and .csv, and claims.json to the folder. Ends with exit code 1 if a claim does not hold.
    After an interruption the same command resumes where it stopped.
    """
    with refusals(interrupted=RESUMABLE):
        settings = acceleration_study.AccelerationSettings(
            conditions=options.numbers_of("--conditions", conditions, float),
            clients=options.numbers_of("--clients", clients, int),
        )
        options.require_packages(*PACKAGES)
        claims = partial(acceleration_study.claims, settings=settings)
        _, found = _reproduce("Acceleration", acceleration_study, settings, out, claims)
    _conclude(found, out)


@app.command("methods", epilog=METHODS_EXAMPLES)
def methods(
    out: Annotated[Path, typer.Option(help="Folder for the figures.")] = Path("results/methods"),
) -> None:
    """Draw the figures of the pages on Scaffold, TwoSidedScaffold, FedLin and FedAvg.

    Writes PNG files to the folder, the same on every machine but for rounding. Other methods' figures are drawn by
    `python -m benchmarks.method_figures` in the source tree.
    """
    with refusals(interrupted="figures already drawn are in the folder"):
        load_matplotlib()
        for name in methods_study.FIGURES:
            check_writable(folder_at(out) / f"{name}.png")
        with progress_bar("Methods", None) as advance:
            methods_study.draw(out, advance=advance)
    typer.echo(f"Figures are in {out}")


def _reproduce(
    title: str, study: Any, settings: Any, out: Path, claims: Callable[[Any], Sequence[Claim]]
) -> tuple[Any, Sequence[Claim]]:
    """Run a study, keep unfinished runs in the folder until it is saved, and return its runs and claims."""
    unfinished = folder_at(folder_at(out) / "unfinished")
    with progress_bar(title, None) as advance:
        runs = study.simulate(settings, scratch=unfinished, advance=advance)
    found = claims(runs)
    study.save(runs, found, settings, out)
    shutil.rmtree(unfinished)
    return runs, found


def _conclude(found: Sequence[Claim], out: Path, *, title: str | None = None) -> None:
    """Print the claims and the folder; exit with code 1 if a claim does not hold."""
    colours = {True: "green", False: "red", None: "yellow"}
    rows = ((each.claim, each.measured, Text(each.verdict, style=colours[each.holds])) for each in found)
    options.print_table(title, rows, header=("claim", "measured", "holds"), left=3)
    typer.echo(f"Figure, numbers and claims are in {out}")
    if any(claim.holds is False for claim in found):
        raise typer.Exit(FAILED)
