"""The program `fedscaffold` and its commands."""

from typing import Annotated

import typer

import fedscaffold
from fedscaffold.cli.commands import (
    compare,
    federate,
    fit,
    inspect,
    plan,
    predict,
    reproduce,
    run,
    score,
    status,
    sweep,
    verify,
)

app = typer.Typer(
    name="fedscaffold",
    help="Federated optimisation with Scaffold on stochastic gradients.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    rich_markup_mode="rich",
)
app.command("fit", epilog=fit.EXAMPLES)(fit.command)
app.command("score", epilog=score.EXAMPLES)(score.command)
app.command("inspect", epilog=inspect.EXAMPLES)(inspect.command)
app.command("run", epilog=run.EXAMPLES)(run.command)
app.command("predict", epilog=predict.EXAMPLES)(predict.command)
app.command("plan", epilog=plan.EXAMPLES)(plan.command)
app.command("compare", epilog=compare.EXAMPLES)(compare.command)
app.command("sweep", epilog=sweep.EXAMPLES)(sweep.command)
app.add_typer(reproduce.app, name="reproduce")
app.command("federate", epilog=federate.EXAMPLES)(federate.command)
app.command("status", epilog=status.EXAMPLES)(status.command)
app.command("verify", epilog=verify.EXAMPLES)(verify.command)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(fedscaffold.__version__)
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Options of the program itself."""


def main() -> None:
    """Run the program; the script `fedscaffold` does it through `cli.start`, which loads this."""
    app()
