"""`fedscaffold audit`: attack a private run, and compare the bound that the attack finds with the accountant's."""

from typing import Annotated, Any

import typer

from fedscaffold.benchmarking.privacy_audit import audit_privacy
from fedscaffold.cli.errors import FAILED, refusals

EXAMPLES = (
    "Examples:\n\n"
    "  fedscaffold audit    # some seconds\n\n"
    "  fedscaffold audit --noise-multiplier 10 --canaries 2000\n\n"
    "  fedscaffold audit --protect clients --noise-multiplier 6 --rounds 10"
)


def command(
    protect: Annotated[
        str, typer.Option(help="records, or clients, whose messages get noise in parts.")
    ] = "records",
    noise_multiplier: Annotated[
        float, typer.Option(help="Noise of a sum of clipped gradients or messages, in units of the clip.")
    ] = 20.0,
    rounds: Annotated[int, typer.Option(help="Rounds.")] = 20,
    canaries: Annotated[
        int, typer.Option(help="Records or clients that the attacker looks for, at least 40.")
    ] = 1000,
) -> None:
    """Attack a private run of this program with many canaries, and compare with the accountant's bound.

    The attacker sees every message of one run, or every sum of messages, and guesses which records or clients took
    part; the number of right guesses gives a lower bound on ε, which must not exceed the accountant's. Ends with
    exit code 1 if it does.
    """
    settings: dict[str, Any] = {"rounds": rounds, "canaries": canaries, "protect": protect}
    with refusals(interrupted="nothing was written"):
        found = audit_privacy(noise_multiplier=noise_multiplier, **settings)
    typer.echo(found)
    if not found.passed:
        raise typer.Exit(FAILED)
