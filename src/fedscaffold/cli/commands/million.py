"""`fedscaffold reproduce million`: plateaus from ten clients to a million."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from fedscaffold.cli import options
from fedscaffold.cli.commands.reproduce import claims_table, need_packages
from fedscaffold.cli.errors import FAILED, refusals
from fedscaffold.core.files import check_writable, folder_at, replacing
from fedscaffold.core.progress import progress_bar
from fedscaffold.engines import choose_engine
from fedscaffold.paper import million as experiment

EXAMPLES = (
    "Examples:\n\n"
    "  fedscaffold reproduce million    (a quarter of an hour of processor time)\n\n"
    "  fedscaffold reproduce million --clients 10,100,1000,10000    (a quick look)\n\n"
    "  fedscaffold reproduce million --engine ray"
)
FIGURES = ("million.png", "million.svg")


def command(
    clients: Annotated[str, typer.Option(help="Numbers of clients, with commas.")] = ",".join(
        map(str, experiment.CLIENTS)
    ),
    out: Annotated[Path, typer.Option(help="Folder for the figure and the numbers.")] = Path("results/million"),
    seed: Annotated[int, typer.Option(help="Seed of data and noise.")] = 0,
    engine: Annotated[str, typer.Option(help="numba or ray.")] = "numba",
) -> None:
    """Plateau against the number of clients, measured and predicted: ridge falls as 1/N, logistic saturates.

    Writes million.png and .svg, a Parquet file for each problem, and claims.json to the folder. Ends with exit
    code 1 if a claim does not hold. After an interruption the same command goes on where it stopped.
    """
    with refusals(interrupted="the same command goes on where it stopped"):
        settings = experiment.MillionSettings(clients=options.numbers_of("--clients", clients, int), seed=seed)
        chosen = choose_engine(engine)
        need_packages()
        folder_at(out)
        for name in FIGURES:
            check_writable(out / name)
        with progress_bar("Million", None) as advance:
            frame = experiment.simulate(settings, out=out, engine=chosen, advance=advance)
        found = experiment.lines(frame)
        claims = experiment.claims(found)
        experiment.draw(found, [out / name for name in FIGURES])
        content = {"settings": asdict(settings), "claims": [asdict(claim) for claim in claims]}
        with replacing(out / "claims.json") as temporary:
            temporary.write_text(json.dumps(content, indent=2) + "\n")
    console = Console()
    console.print(claims_table(claims))
    console.print(f"Figure and numbers are in {out}", highlight=False, soft_wrap=True)
    if any(claim.holds is False for claim in claims):
        raise typer.Exit(FAILED)
