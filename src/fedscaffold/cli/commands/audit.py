"""`fedscaffold audit`: attack a private run, and compare what the attack finds with what the accountant says."""

from typing import Annotated, Any

import typer
from rich.console import Console

from fedscaffold.benchmarking.privacy_audit import audit_privacy
from fedscaffold.cli import options
from fedscaffold.cli.errors import FAILED, refusals

EXAMPLES = (
    "Examples:\n\n"
    "  fedscaffold audit    (some seconds)\n\n"
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
    local_steps: Annotated[int, typer.Option(help="Local steps in a round.")] = 5,
    rounds: Annotated[int, typer.Option(help="Rounds.")] = 20,
    canaries: Annotated[
        int, typer.Option(help="Records or clients that the attacker looks for, at least 40.")
    ] = 1000,
    delta: Annotated[float, typer.Option(help="δ of the bounds.")] = 1e-5,
    seed: options.Seed = 0,
) -> None:
    """Attack a private run of this program with many canaries, and compare with what the accountant says.

    The attacker sees every message of one run, or every sum of messages, and tells which records or clients were
    in it; from how often it is right follows a lower bound on ε, which must not exceed the accountant's. Ends with
    exit code 1 if it does.
    """
    what: Any = protect
    with refusals(interrupted="nothing was written"):
        found = audit_privacy(
            noise_multiplier=noise_multiplier, local_steps=local_steps, rounds=rounds, canaries=canaries,
            delta=delta, seed=seed, protect=what,
        )  # fmt: skip
    Console(highlight=False).print(str(found), soft_wrap=True)
    if not found.passed:
        raise typer.Exit(FAILED)
