"""`fedscaffold inspect`: how different a table's clients are, and what that would cost FedAvg."""

import typer

from fedscaffold.cli import table_options as tables
from fedscaffold.cli.errors import refusals
from fedscaffold.cli.options import print_table
from fedscaffold.models.heterogeneity import ClientsReport, inspect_clients
from fedscaffold.models.planning.planned import TOLERANCE

EXAMPLES = "Example:\n\n  fedscaffold inspect visits.csv --target readmitted --client hospital"


@tables.with_table_options()
def command(
    data: tables.Data,
    table: tables.TableFlags,
    tolerance: tables.Tolerance = TOLERANCE,
) -> None:
    """Show a table's clients, how much they differ, and where FedAvg would end.

    FedAvg is run with the step size, local steps and rounds that Scaffold would need for --tolerance.
    """
    with refusals(interrupted="nothing was written"):
        settings = table.fit_settings(tolerance=tolerance)
        problem = table.open(data)
        found = inspect_clients(problem, settings)
    typer.echo(f"Model: {tables.describe_kind(problem, table.table.get('kind'))}")
    _print_clients(found)
    _print_differences(found)


def _print_clients(found: ClientsReport) -> None:
    problem, counts, most = found.planned.problem, found.class_counts, 20
    names = [str(each) for each in (problem.classes or ())[:5]]
    rows = []
    for c in range(min(problem.n_clients, most)):
        shares = [] if counts is None else [f"{n / problem.sizes[c]:.0%}" for n in counts[c, : len(names)]]
        rows.append((str(problem.client_names[c]), f"{problem.sizes[c]:,}", *shares))
    print_table(
        f"{problem.n_clients:,} clients, {int(problem.sizes.sum()):,} rows",
        rows,
        header=("client", "rows", *names),
        widest=20,
        caption=f"the first {most} of {problem.n_clients:,}" if problem.n_clients > most else None,
    )


def _print_differences(found: ClientsReport) -> None:
    planned, spread, fedavg, pooled = found.planned, found.heterogeneity, found.fedavg, found.pooled
    sampled = "" if spread.sampled == planned.problem.n_clients else f" (from {spread.sampled:,} clients)"
    method = planned.method
    own_units = "" if planned.loss_scale == 1.0 else "; the loss in the target's own units"
    facts = (
        ("ζ₁, spread of gradients at the optimum", f"{spread.zeta1:.4g}"),
        ("ζ₂, spread of Hessians at the optimum", f"{spread.zeta2:.4g}{sampled}"),
        ("condition number", f"{spread.condition_number:.4g}"),
        ("plan", f"γ = {method.step_size:.3g}, H = {method.local_steps}, T = {planned.rounds:,}"),
        ("FedAvg's distance to the optimum, relative", f"{fedavg.relative_distance:.2%}"),
        ("FedAvg's loss above the optimum's", f"{fedavg.loss - pooled.loss:.3g} (of {pooled.loss:.4g})"),
        ("Scaffold's distance, planned for", f"{found.tolerance:.2%}"),
    )
    print_table("How different clients are", facts, caption="for standardised columns" + own_units)
