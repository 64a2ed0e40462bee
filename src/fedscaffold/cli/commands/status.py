"""`fedscaffold status`: how a federated run stands, from its server's folder."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from fedscaffold.cli.errors import FAILED, refusals
from fedscaffold.cli.options import AsJson, print_table
from fedscaffold.core.checks import shown
from fedscaffold.federation.server.session import RunStatus, run_status

EXIT_CODES = {"finished": 0, "running": 3, "stopped": FAILED, "killed": FAILED}
EXAMPLES = (
    "Examples:\n\n"
    "  fedscaffold status /srv/federation/server\n\n"
    "  flwr run . my-federation --stream; fedscaffold status /srv/federation/server --json\n\n"
    "Exit codes: 0 the run has finished, 1 it was stopped by an error or killed, 2 this is not a server's folder, "
    "3 it is running. Flower's own `flwr run` exits with 0 whatever the server's app did."
)


def command(
    folder: Annotated[Path, typer.Argument(help="The folder that was given to the server's Strategy.")],
    as_json: AsJson = False,
) -> None:
    """Show the state of a federated run: its round, whose updates counted, who was rejected and why.

    Reads the server's audit log; the server may be running, stopped or gone. The file metrics.prom in the
    folder has the same numbers in Prometheus' text format.
    """
    with refusals(interrupted="nothing was changed"):
        found = run_status(folder)
        if as_json:
            typer.echo(json.dumps(found.model_dump(), ensure_ascii=True))
        else:
            print_table(f"run {found.name}", _facts(found))
    raise typer.Exit(EXIT_CODES[found.state])


def _facts(found: RunStatus) -> Iterator[tuple[str, str]]:
    """Return what the table shows."""
    yield "state", found.state
    yield "rounds closed", str(found.round)
    yield "identity", found.run
    yield "last entry", found.since
    yield "counted in the last round", ", ".join(map(str, found.counted)) or "none"
    for client, reason in found.refused.items():
        yield f"client {client} rejected", shown(reason, longest=300)
    for client, scale in found.shortened.items():
        yield f"client {client} shortened", f"to {scale:.3g} of its update's length"
    for client, share in found.limited.items():
        yield f"client {client} limited", f"to {share:.3g} of its control variate's length"
    if found.resets:
        yield "resets of all client states", str(found.resets)
    if found.error:
        yield "stopped by", shown(found.error, longest=500)
