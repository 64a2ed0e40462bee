"""`fedscaffold verify`: every numbered statement of the paper against measurement or computation."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from fedscaffold.cli import options
from fedscaffold.cli.errors import FAILED, refusals
from fedscaffold.core.display import progress_bar
from fedscaffold.paper import verify as experiment
from fedscaffold.paper.verify import rows as report
from fedscaffold.paper.verify.rows import FAILURES, StatementRow

EXAMPLES = (
    "Examples:\n\n"
    "  fedscaffold verify    # a minute or two\n\n"
    "  fedscaffold verify --full --out results/verify    # ten minutes: smaller errors, more clients"
)


def command(
    full: Annotated[
        bool, typer.Option("--full", help="More repetitions, and as many clients as the paper.")
    ] = False,
    out: Annotated[Path | None, typer.Option(help="Folder for verify.md and verify.json.")] = None,
) -> None:
    """Check every numbered statement of the paper, its appendix too, by simulation or computation.

    Identities and matrix bounds are computed, all else is simulated, inside a statement's conditions and, on the
    paper's experiment, outside. A row that is not judged says why: Remark 4.11's open question, and claims about
    Figure 1 for numbers of clients and draws of the data that only --full has. That more clients stop helping is
    tested without --full too, on small logistic problems with a few hundred clients and ten times as many. A row
    has a claim, the setting, the predicted value or bound, the measured value with its standard error and, for a
    bound, its share of it, and a verdict. If the paper's text is wrong, the row judges the corrected formula and
    says how the printed one does. Ends with exit code 1 if a row fails or is too noisy to judge.
    """
    begin = time.perf_counter()
    with refusals(interrupted="nothing was written"):
        options.require_packages("sklearn")
        if out is not None:
            report.check_folder(out)
        with progress_bar("Statements", None) as advance:
            rows = experiment.verify(experiment.FULL if full else experiment.DEFAULT, advance=advance)
        if out is not None:
            report.save(rows, out, {"full": full, "seconds": round(time.perf_counter() - begin, 1)})
    show(rows, Console())
    if out is not None:
        typer.echo(f"The table is in {out}")
    if experiment.failures(rows):
        raise typer.Exit(FAILED)


def show(rows: Sequence[StatementRow], console: Console) -> None:
    """Print the rows as a table that fits 80 columns, and one sentence."""
    table = Table(title="The paper's statements, measured", show_lines=True)
    table.add_column("statement", min_width=9, max_width=14)
    table.add_column("claim, [dim]setting[/dim], [bold]measurement[/bold]", ratio=1)
    table.add_column("verdict", min_width=11, max_width=11)
    for row in rows:
        colour = "red" if row.verdict in FAILURES else "green" if row.verdict == "holds" else "yellow"
        lines = [escape(row.claim), f"[dim]{escape(row.setting)}[/dim]", f"[bold]{escape(_numbers(row))}[/bold]"]
        lines += [escape(note) for note in (report.printed_text(row), report.missed_text(row)) if note]
        table.add_row(row.statement, "\n".join(lines), f"[{colour}]{row.verdict}[/{colour}]")
    console.print(table)
    console.print(report.summary(rows), highlight=False, soft_wrap=True)


def _numbers(row: StatementRow) -> str:
    if row.relation == "is":
        return report.measured_text(row)
    return f"measured {report.measured_text(row)}; predicted {report.predicted_text(row)}"
