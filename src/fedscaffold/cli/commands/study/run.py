"""`fedscaffold study run`: the coordinator conducts the study."""

import signal
from contextlib import ExitStack
from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from fedscaffold.cli.commands.study.progress import ProgressLines, print_result
from fedscaffold.cli.commands.study.signals import ended_by_signal
from fedscaffold.cli.errors import FAILED, RESUMABLE, refusals

EXAMPLES = (
    "Examples:\n\n"
    "  fedscaffold study run cancer.toml --out cancer\n\n"
    "  fedscaffold study run cancer.toml --out cancer --dashboard      a live page in the browser"
)


def command(
    file: Annotated[Path, typer.Argument(metavar="STUDY.toml", help="The study's file.")],
    out: Annotated[Path, typer.Option(help="Folder for the model, the report and everything the study keeps.")],
    dashboard: Annotated[bool, typer.Option("--dashboard", help="Serve a live page about the study.")] = False,
    dashboard_host: Annotated[str, typer.Option(help="Where the page listens; this machine alone.")] = "127.0.0.1",
    dashboard_port: Annotated[int, typer.Option(min=0, max=65535, help="Its port; 0: a free one.")] = 0,
) -> None:
    """Conduct the study: wait for the sites, agree, train, certify, evaluate, report.

    Goes on after any stop, by Ctrl-C, a crash or a reboot, when the same command is given again. Who is waited for
    is said every minute.
    """
    console = Console(highlight=False)

    def tell(sentence: str) -> None:
        console.print(f"{datetime.now():%H:%M:%S} {sentence}", soft_wrap=True, markup=False)

    with refusals(interrupted=RESUMABLE), ended_by_signal(signal.SIGTERM, signal.SIGHUP):
        from fedscaffold.flower.study.link import CoordinatorLink

        link = CoordinatorLink(file, out, tell)
        with ExitStack() as stack:
            if dashboard:
                from fedscaffold.dashboard import serve_dashboard

                page = serve_dashboard(out, host=dashboard_host, port=dashboard_port)
                tell(f"The live page is at {stack.enter_context(page)}")
            found = link.run(ProgressLines(tell))
    print_result(found, out, console)
    if found.state == "stopped":
        raise typer.Exit(FAILED)
