"""`fedscaffold reproduce`: figures of the paper and of the documentation."""

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from fedscaffold.cli import options
from fedscaffold.cli.errors import FAILED, RESUMABLE, refusals
from fedscaffold.core.display import progress_bar
from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.files import check_writable, folder_at
from fedscaffold.paper import figure1 as figure1_study
from fedscaffold.paper import million as million_study
from fedscaffold.paper.claims import Claim
from fedscaffold.problems.paper import L2

app = typer.Typer(
    help="Compute the figures of the paper and of the documentation.", no_args_is_help=True, add_completion=False
)
FIGURE1_EXAMPLES = (
    "Examples:\n\n"
    "  fedscaffold reproduce figure1    # full size: a minute or two\n\n"
    "  fedscaffold reproduce figure1 --clients 10,100 --seeds 40    # a quick look, 40 draws of the data\n\n"
    "  fedscaffold reproduce figure1 --informative default    # scikit-learn's default in the bottom row\n\n"
    "  fedscaffold reproduce figure1 --runs 10 --seed 7 --out results/again"
)
MILLION_EXAMPLES = (
    "Examples:\n\n"
    "  fedscaffold reproduce million    # a quarter of an hour of processor time\n\n"
    "  fedscaffold reproduce million --clients 10,100,1000,10000    # a quick look"
)
MILLION_CLIENTS = ",".join(map(str, million_study.CLIENTS))
PACKAGES = ("sklearn", "matplotlib", "pandas", "pyarrow")
Folder = Annotated[Path, typer.Option("--out", help="Folder for the figure and the numbers.")]


@app.command("figure1", epilog=FIGURE1_EXAMPLES)
def figure1(
    clients: options.SeveralClients = "10,100,1000,10000",
    runs: Annotated[int, typer.Option(help="Runs per curve.")] = 3,
    seed: options.Seed = 0,
    l2: options.Penalty = L2,
    informative: Annotated[
        str,
        typer.Option(
            help="Informative features of both halves of the classification data; default: scikit-learn's."
        ),
    ] = "2,10",
    seeds: Annotated[
        int,
        typer.Option(
            help="Draws of the regression data, N up to 1,000, for the share with Scaffold below FedAvg."
        ),
    ] = 1,
    out: Folder = Path("results/figure1"),
) -> None:
    """Scaffold against FedAvg, ridge and logistic regression, from 10 to 10,000 clients (even numbers).

    Writes figure1.png and .svg, figure1.parquet and .csv, claims.json and claims.md to the folder; with --seeds
    also draws.csv, by the exact law: a quarter of a second per draw at N = 10, four at N = 1,000. Ends
    with exit code 1 if one of the paper's claims does not hold. After an interruption the same command
    resumes where it stopped.
    """
    with refusals(interrupted=RESUMABLE):
        numbers = options.numbers_of("--clients", clients, int)
        first, second = _informative(informative)
        settings = figure1_study.Figure1Settings(
            clients=numbers, runs=runs, seed=seed, l2=l2, informative=(first, second), seeds=seeds
        )
        options.require_packages(*PACKAGES)
        unfinished = folder_at(folder_at(out) / "unfinished")
        with progress_bar("Figure 1", None) as advance:
            curves = figure1_study.simulate(settings, scratch=unfinished, advance=advance)
        drawn: list[figure1_study.DataDraw] = []
        if seeds > 1:
            with progress_bar("Draws", None) as advance:
                drawn = figure1_study.draws(settings, advance=advance)
        found = figure1_study.claims(curves, drawn)
        figure1_study.save(curves, found, settings, out, drawn)
        shutil.rmtree(unfinished)
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
        options.require_packages(*PACKAGES)
        for name in ("million.png", "million.svg"):
            check_writable(folder_at(out) / name)
        with progress_bar("Million", None) as advance:
            lines = million_study.lines(million_study.simulate(settings, out=out, advance=advance))
        found = million_study.claims(lines)
        million_study.save(lines, found, settings, out)
    _conclude(found, out)


def _informative(text: str) -> list[int]:
    """Parse two numbers of features with a comma, or "default": make_classification's, 2 for both halves."""
    numbers = [2, 2] if text == "default" else options.numbers_of("--informative", text, int)
    if len(numbers) != 2:
        raise InvalidInput(f"--informative takes two numbers such as 2,10, or default, got {text!r}")
    return numbers


def _conclude(found: Sequence[Claim], out: Path, *, title: str | None = None) -> None:
    """Print the claims and the folder; exit with code 1 if a claim does not hold."""
    colours = {True: "green", False: "red", None: "yellow"}
    rows = ((each.claim, each.measured, Text(each.verdict, style=colours[each.holds])) for each in found)
    options.print_table(title, rows, header=("claim", "measured", "holds"), left=3)
    typer.echo(f"Figure, numbers and claims are in {out}")
    if any(claim.holds is False for claim in found):
        raise typer.Exit(FAILED)
