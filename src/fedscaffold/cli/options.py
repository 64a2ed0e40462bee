"""Options that several commands share."""

from pathlib import Path
from typing import Annotated, Any

import typer

from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.files import check_writable
from fedscaffold.methods import FedAvg, Scaffold

METHODS: dict[str, type[Scaffold] | type[FedAvg]] = {"scaffold": Scaffold, "fedavg": FedAvg}
FIGURES = (".png", ".svg", ".pdf")

Problem = Annotated[str, typer.Option(help="regression or classification.")]
Clients = Annotated[int, typer.Option(help="Number of clients, even.")]
Penalty = Annotated[float, typer.Option("--l2", help="Penalty.")]
BatchSize = Annotated[str, typer.Option(help="Records per step, or 'full'.")]
Seed = Annotated[int, typer.Option(help="Seed of data and noise.")]
Plot = Annotated[Path | None, typer.Option(help="Draw the curves to this file: .png, .svg or .pdf.")]
Simulate = Annotated[int, typer.Option(help="Also simulate so many runs, to compare.")]


def method_of(name: str) -> type[Scaffold] | type[FedAvg]:
    """The method of that name."""
    if name not in METHODS:
        raise InvalidInput(f"method must be one of {', '.join(METHODS)}, got {name!r}")
    return METHODS[name]


def batch_size_of(text: Any) -> int | None:
    """A number of records, or None for 'full'."""
    if text == "full":
        return None
    try:
        return int(text)
    except (TypeError, ValueError):
        raise InvalidInput(f"batch-size must be a whole number or 'full', got {text!r}") from None


def check_figure(plot: Path | None) -> None:
    """Refuse a figure that cannot be written, before any work."""
    if plot is None:
        return
    if plot.suffix not in FIGURES:
        raise InvalidInput(f"--plot must end in {', '.join(FIGURES)}, got {plot}")
    check_writable(plot)
