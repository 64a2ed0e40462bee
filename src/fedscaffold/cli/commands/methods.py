"""`fedscaffold reproduce methods`: the figures of the methods' documentation."""

from pathlib import Path
from typing import Annotated

import typer

from fedscaffold.cli.errors import refusals
from fedscaffold.core.errors import InvalidInput, MissingDependency
from fedscaffold.core.files import check_writable
from fedscaffold.core.progress import progress_bar
from fedscaffold.paper.method_figures import methods as experiment

EXAMPLES = (
    "Examples:\n\n"
    "  fedscaffold reproduce methods    (a minute or two)\n\n"
    "  fedscaffold reproduce methods --out docs/images/methods"
)


def command(
    out: Annotated[Path, typer.Option(help="Folder for the figures.")] = Path("results/methods"),
) -> None:
    """Draw what each method is for: some of the clients, unequal steps, server step sizes, √κ, vectors sent.

    Writes PNG files to the folder. The same figures come out on every machine, but for rounding.
    """
    with refusals(interrupted="figures already drawn are in the folder"):
        try:
            import matplotlib  # noqa: F401
        except ImportError:
            raise MissingDependency("figures need matplotlib; pip install 'fedscaffold[reproduce]'") from None
        try:
            out.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InvalidInput(f"cannot make the folder {out}: {error.strerror}") from None
        for name in experiment.FIGURES:
            check_writable(out / f"{name}.png")
        with progress_bar("Methods", None) as advance:
            experiment.draw(out, advance=advance)
    typer.echo(f"Figures are in {out}")
