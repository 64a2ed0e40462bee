"""`fedscaffold reproduce`: figures of the paper."""

import json
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from fedscaffold.cli.errors import FAILED, refusals
from fedscaffold.core.errors import InvalidInput, MissingDependency
from fedscaffold.core.files import replacing
from fedscaffold.core.progress import progress_bar
from fedscaffold.paper import figure1 as experiment
from fedscaffold.paper.claims import Claim
from fedscaffold.problems.paper import L2 as PAPER_L2

if TYPE_CHECKING:
    import pandas as pd

app = typer.Typer(help="Compute a figure of the paper anew.", no_args_is_help=True)

EXAMPLES = (
    "Examples:\n\n"
    "  fedscaffold reproduce figure1    (full size: a minute or two)\n\n"
    "  fedscaffold reproduce figure1 --clients 10,100    (a quick look)\n\n"
    "  fedscaffold reproduce figure1 --runs 10 --seed 7 --out results/again"
)


@app.command("figure1", epilog=EXAMPLES)
def figure1(
    clients: Annotated[
        str, typer.Option(help="Numbers of clients, each even, with commas.")
    ] = "10,100,1000,10000",
    runs: Annotated[int, typer.Option(help="Runs per curve.")] = 3,
    out: Annotated[Path, typer.Option(help="Folder for the figure and the numbers.")] = Path("results/figure1"),
    seed: Annotated[int, typer.Option(help="Seed of data and noise.")] = 0,
    l2: Annotated[float, typer.Option(help="Penalty; the paper does not give it.")] = PAPER_L2,
    threads: Annotated[int | None, typer.Option(help="Threads; all cores by default.")] = None,
) -> None:
    """Scaffold against FedAvg, ridge and logistic regression, from 10 to 10,000 clients.

    Writes figure1.png and .svg, figure1.parquet and .csv, claims.json and claims.md to the folder. Ends
    with exit code 1 if one of the paper's claims does not hold. After an interruption the same command
    goes on where it stopped.
    """
    with refusals(interrupted="the same command goes on where it stopped"):
        settings = experiment.Figure1Settings(
            clients=_numbers(clients), runs=runs, seed=seed, l2=l2, threads=threads
        )
        need_packages()
        scratch = _folder(out) / "unfinished"
        scratch.mkdir(exist_ok=True)
        with progress_bar("Figure 1", None) as advance:
            curves = experiment.simulate(settings, scratch=scratch, advance=advance)
        found = experiment.claims(curves)
        experiment.draw(curves, [out / "figure1.png", out / "figure1.svg"])
        _write_numbers(experiment.to_frame(curves), out)
        _write_claims(found, settings, out)
        shutil.rmtree(scratch)
    _print(found, curves, out)
    if any(claim.holds is False for claim in found):
        raise typer.Exit(FAILED)


def _numbers(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise InvalidInput(f"--clients must be whole numbers with commas, such as 10,100; got {text!r}") from None


def need_packages() -> None:
    """Fail now rather than after the computation."""
    try:
        import matplotlib  # noqa: F401
        import pandas  # noqa: F401
        import pyarrow  # noqa: F401
        import sklearn  # noqa: F401
    except ImportError as error:
        raise MissingDependency(f"{error.name} is not installed; pip install 'fedscaffold[reproduce]'") from None


def _folder(path: Path) -> Path:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidInput(f"cannot make the folder {path}: {error.strerror}") from None
    return path


def _write_numbers(frame: "pd.DataFrame", out: Path) -> None:
    with replacing(out / "figure1.parquet") as temporary:
        frame.to_parquet(temporary, index=False)
    with replacing(out / "figure1.csv") as temporary:
        frame.to_csv(temporary, index=False)


def _write_claims(found: list[Claim], settings: experiment.Figure1Settings, out: Path) -> None:
    content = {"settings": asdict(settings), "claims": [asdict(claim) for claim in found]}
    with replacing(out / "claims.json") as temporary:
        temporary.write_text(json.dumps(content, indent=2) + "\n")
    lines = ["| claim | measured | holds |", "|---|---|---|"]
    lines += [f"| {claim.claim} | {claim.measured} | {_verdict(claim)} |" for claim in found]
    with replacing(out / "claims.md") as temporary:
        temporary.write_text("\n".join(lines) + "\n")


def _plateau(curve: experiment.PanelCurve) -> str:
    mean, error, *_ = curve.plateau
    return f"{mean:.3g} ± {error:.1g}{'' if curve.stationary else ' *'}"


def _verdict(claim: Claim) -> str:
    return {True: "yes", False: "NO", None: "not tested"}[claim.holds]


def claims_table(found: list[Claim], *, title: str | None = None) -> Table:
    """Claims, what was measured, and whether they hold."""
    table = Table(title=title)
    for column in ("claim", "measured", "holds"):
        table.add_column(column)
    for claim in found:
        colour = {True: "green", False: "red", None: "yellow"}[claim.holds]
        table.add_row(claim.claim, claim.measured, f"[{colour}]{_verdict(claim)}[/{colour}]")
    return table


def _print(found: list[Claim], curves: list[experiment.PanelCurve], out: Path) -> None:
    console = Console()
    plateaus = Table(
        title="Plateau of the squared error, ± standard error",
        caption="* still moving: last quarter of the rounds",
    )
    for column in ("problem", "N", "Scaffold", "FedAvg"):
        plateaus.add_column(column, justify="left" if column == "problem" else "right")
    values = {(curve.kind, curve.n_clients, curve.method): _plateau(curve) for curve in curves}
    for kind, n_clients in dict.fromkeys((curve.kind, curve.n_clients) for curve in curves):
        pair = (values[kind, n_clients, name] for name in ("Scaffold", "FedAvg"))
        plateaus.add_row(kind, f"{n_clients:,}", *pair)
    console.print(plateaus)
    console.print(claims_table(found, title="The paper's claims"))
    console.print(f"Figure, numbers and claims are in {out}", highlight=False, soft_wrap=True)
