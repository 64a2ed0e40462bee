"""`fedscaffold federate`: a whole study on this machine, with a process for each site."""

import signal
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from fedscaffold.cli.commands.study import SpokenBoard, ended_by_signal, print_result, say
from fedscaffold.cli.errors import refusals
from fedscaffold.cli.study_options import EPILOG, with_study_options
from fedscaffold.core.errors import InvalidInput

EXAMPLES = (
    "Examples:\n\n"
    "  fedscaffold federate bonn.csv graz.csv kiel.parquet --target readmitted\n\n"
    "  fedscaffold federate visits.csv --client hospital --target readmitted --out demo\n\n"
    "  fedscaffold federate bonn.csv graz.csv --target ill --sums open --features age,sex --set trainer=newton\n\n"
    f"{EPILOG}\n\n"
    "The same over several machines: fedscaffold study --help."
)


@with_study_options
def command(
    data: Annotated[list[Path], typer.Argument(help="A .csv or .parquet file per site; one file with --client.")],
    chosen: Callable[[], dict[str, Any]],
    client: Annotated[str | None, typer.Option(help="Split one file by this column, a site per value.")] = None,
    out: Annotated[
        Path | None, typer.Option(help="A new folder for everything; a temporary one otherwise.")
    ] = None,
) -> None:
    """Run a real study on this machine: a process for each site, which alone reads its table.

    Processes talk over TLS, and sites prove who they are with keys, all made for this run. The study is the one of
    `fedscaffold study`, with the commands of all its people given at once.
    """
    with refusals(interrupted="all processes were ended"), ended_by_signal(signal.SIGTERM):
        from fedscaffold.federation.study.plan import StudySettings
        from fedscaffold.federation.study.transport import private_folder
        from fedscaffold.flower.study.run import LocalStudy, site_files

        settings = StudySettings(**chosen())
        if out is not None and out.exists() and (not out.is_dir() or any(out.iterdir())):
            raise InvalidInput(f"{out} exists and is not empty; give the name of a new folder")
        with tempfile.TemporaryDirectory(prefix="fedscaffold-") as temporary:
            folder = Path(temporary) if out is None else out.resolve()  # sites run in separate folders
            named = (settings.target, *(settings.features or ()), *settings.categorical)
            files = site_files(data, client, lambda: private_folder(folder), named)
            study = LocalStudy(folder, files, settings, say)
            study.run(board_of=SpokenBoard)
            print_result(study.out, kept=out is not None)
