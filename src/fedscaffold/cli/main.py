"""The program `fedscaffold`: its commands by name, each loaded when it is asked for.

Loading all of them takes a second, so that the list of commands is kept here, with a sentence for each.
"""

import re
from collections.abc import Iterable
from importlib import import_module
from typing import Annotated, Any

import click
import typer
from typer.core import TyperArgument, TyperCommand, TyperGroup
from typer.main import get_command
from typer.utils import get_params_from_function

import fedscaffold
from fedscaffold.cli.start import loading

SUMMARIES = {
    "fit": "Fit one model to a table whose rows belong to clients, as a study would.",
    "score": "Predict new rows: a value, or a class and the probability of each.",
    "inspect": "Show a table's clients, how much they differ, and where FedAvg would end.",
    "run": "Run one method on a synthetic problem and print where it gets.",
    "predict": "Predict the error by round and the plateau, on one of the paper's problems.",
    "plan": "Find the cheapest way to a target, on a table or one of the paper's problems, and explain it.",
    "compare": "Compare methods on a table or one of the paper's problems, each with the best settings of a grid.",
    "sweep": "Run a grid: numbers of clients × methods × step sizes × local steps × batch sizes.",
    "study": "Run a study: one model for sites that keep their tables, which never leave them.",
    "federate": "Run a real study on this machine: a process for each site, which alone reads its table.",
    "status": "Show the state of a federated run: its round, whose updates counted, who was rejected and why.",
    "verify": "Check every numbered statement of the paper, its appendix too, by simulation or computation.",
    "audit": "Attack a private run of this program with many canaries, and compare with the accountant's bound.",
    "conformance": "Put an implementation of Scaffold through checks whose answers are known exactly.",
    "reproduce": "Compute the figures of the paper and of the documentation.",
}
"""The first sentence of each command's help; the file of a command has its name, in `cli/commands`."""


class Commands(TyperGroup):
    """The commands of `SUMMARIES`; listing them loads none, running one loads it alone."""

    def make_context(self, info_name: str | None, args: list[str], *more: Any, **extra: Any) -> click.Context:
        """Return the context of a call, which keeps the words of the command line as `meta["words"]`."""
        words = ["fedscaffold", *args]
        context = super().make_context(info_name, args, *more, **extra)
        context.meta["words"] = words
        return context

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        """Return the command that the words name; raise with a similar name if there is none."""
        if args[0] not in SUMMARIES and not args[0].startswith("-"):
            raise _unknown("command", args[0], SUMMARIES, ctx)
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command; an unknown option raises with the one that it probably stands for, such as --lr."""
        try:
            return super().invoke(ctx)
        except click.NoSuchOption as error:
            at = error.ctx or ctx
            raise _unknown("option", error.option_name, [each.opts[0] for each in at.command.params], at) from None

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all commands, in the order of the help page."""
        return list(SUMMARIES)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return the command of a name, from its file, or None."""
        return _load(cmd_name) if cmd_name in SUMMARIES else None

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the help page, with the sentences of `SUMMARIES` in place of the commands."""
        listed: list[click.Command] = [TyperCommand(name, help=text) for name, text in SUMMARIES.items()]
        page = TyperGroup(
            name=self.name, commands=listed, params=self.params, help=self.help, rich_markup_mode="rich"
        )
        page.format_help(ctx, formatter)


def _unknown(what: str, name: str, known: Iterable[str], ctx: click.Context) -> click.UsageError:
    """Return the error for an unknown command or option, which suggests a known one."""
    from fedscaffold.core.checks import similar_name

    words = {each.lstrip("-").replace("-", "_"): each for each in known}
    meant = similar_name(name.lstrip("-").replace("-", "_"), words)
    hint = f"; did you mean {words[meant]}?" if meant else ""
    return click.UsageError(f"there is no {what} {name}{hint}", ctx)


def _load(name: str) -> click.Command:
    """Return a command from its file, which has a function `command`, or an `app` with further commands."""
    with loading():
        module = import_module(f"fedscaffold.cli.commands.{name}")
    app: typer.Typer | None = getattr(module, "app", None)
    if app is None:
        app = typer.Typer(pretty_exceptions_enable=False, add_completion=False, rich_markup_mode="rich")
        app.command(name, epilog=module.EXAMPLES)(module.command)
    found: Any = get_command(app)
    found.suggest_commands = False  # Click does already
    for each in (found, *getattr(found, "commands", {}).values()):
        _complete_help(each)
    return found


def _complete_help(command: click.Command) -> None:
    """Join lines of a paragraph, which Rich would break again, mark examples, and give arguments their help.

    The newest Click drops what Typer says of arguments.
    """
    paragraphs = (command.help or "").split("\n\n")
    command.help = "\n\n".join(" ".join(each.split()) for each in paragraphs)
    command.epilog = re.sub(r"^ *(?=fedscaffold )", "$ ", command.epilog or "", flags=re.MULTILINE)
    if command.callback is not None:
        declared = get_params_from_function(command.callback)
        for parameter in command.params:
            if isinstance(parameter, TyperArgument):
                parameter.help = declared[str(parameter.name)].default.help


app = typer.Typer(
    name="fedscaffold",
    cls=Commands,
    help="Federated optimisation with Scaffold on stochastic gradients.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    rich_markup_mode="rich",
)


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
    """Take the options of the program itself."""


def main() -> None:
    """Run the program; the script `fedscaffold` does it through `cli.start`, which loads this."""
    app()
