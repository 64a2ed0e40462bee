"""`fedscaffold study`: one model for sites that keep their tables, a command for each person who takes part."""

import typer

from fedscaffold.cli.commands.study import accept, invite, join, new, run, status

app = typer.Typer(
    help="Run a study: one model for sites that keep their tables, which never leave them.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    rich_markup_mode="rich",
)
for name, module in (
    ("new", new), ("invite", invite), ("join", join), ("accept", accept), ("run", run), ("status", status)
):  # fmt: skip
    app.command(name, epilog=module.EXAMPLES)(module.command)
