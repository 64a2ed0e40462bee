"""`fedscaffold federate`: a whole study on this machine, with a process for each site."""

import signal
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from fedscaffold.cli import table_options as tables
from fedscaffold.cli.commands.study import ProgressLines, ended_by_signal, print_result, say
from fedscaffold.cli.errors import FAILED, refusals
from fedscaffold.core.errors import InvalidInput
from fedscaffold.federation.study.journal import private_folder

EXAMPLES = (
    "Examples:\n\n"
    "  fedscaffold federate bonn.csv graz.csv kiel.parquet --target readmitted\n\n"
    "  fedscaffold federate visits.csv --client hospital --target readmitted --out demo\n\n"
    "  fedscaffold federate bonn.csv graz.csv --target ill --set trainer=newton --set features=age,sex\n\n"
    "--set takes every other setting of a study: fedscaffold.federation.StudySettings lists them.\n\n"
    "The same over several machines: fedscaffold study --help."
)


def command(
    data: Annotated[list[Path], typer.Argument(help="A .csv or .parquet file per site; one file with --client.")],
    target: tables.Target,
    client: Annotated[str | None, typer.Option(help="Split one file by this column, a site per value.")] = None,
    kind: tables.StudyKind = "logistic",
    l2: tables.TablePenalty = None,
    secure: tables.Secure = False,
    epsilon: tables.Epsilon = None,
    bounds: tables.BoundsFile = None,
    settings: tables.Settings = None,
    out: Annotated[
        Path | None, typer.Option(help="A new folder for everything; a temporary one otherwise.")
    ] = None,
) -> None:
    """Run a real study on this machine: a process for each site, which alone reads its table.

    Processes talk over TLS, and sites prove who they are with keys, all made for this run. The study is the one of
    `fedscaffold study`, with the commands of all its people given at once.
    """
    with refusals(interrupted="all processes were ended"), ended_by_signal(signal.SIGTERM):
        from fedscaffold.flower.study.local import LocalStudy, site_files

        chosen = tables.study_settings(
            settings, target=target, kind=kind, l2=l2, secure=secure, epsilon=epsilon, bounds=bounds
        )
        if out is not None and out.exists() and (not out.is_dir() or any(out.iterdir())):
            raise InvalidInput(f"{out} exists and is not empty; give the name of a new folder")
        with tempfile.TemporaryDirectory(prefix="fedscaffold-") as temporary:
            folder = Path(temporary) if out is None else out.resolve()  # sites run in folders of their own
            named = (target, *(chosen.features or ()), *chosen.categorical)
            check = chosen.threshold if chosen.secure else int
            files = site_files(data, client, lambda: private_folder(folder), named, check)
            study = LocalStudy(folder, files, chosen, say)
            found = study.run(ProgressLines())
            print_result(found, study.out, kept=out is not None)
    if found.state == "stopped":
        raise typer.Exit(FAILED)
