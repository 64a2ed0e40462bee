"""`fedscaffold inspect`: how different a table's clients are, and what that would cost FedAvg."""

import typer

from fedscaffold.cli import table_options as tables
from fedscaffold.cli.errors import refusals
from fedscaffold.cli.options import print_table
from fedscaffold.cli.prepare import (
    PreparedProblem,
    class_counts,
    heterogeneity,
    plan_beside_fedavg,
    prepare_problem,
)
from fedscaffold.core.types import Array
from fedscaffold.data.encoded import EncodedProblem
from fedscaffold.planning import Plan

EXAMPLES = "Example:\n\n  fedscaffold inspect visits.csv --target readmitted --client hospital"


@tables.with_table_options()
def command(
    data: tables.Data,
    table: tables.TableFlags,
) -> None:
    """Show a table's clients, how much they differ, and where FedAvg would end.

    FedAvg is run with the step size, local steps and rounds that Scaffold would need for the tolerance of a fit.
    """
    with refusals(interrupted="nothing was written"):
        settings = table.fit_settings()
        problem = table.open(data)
        prepared = prepare_problem(problem, settings)
        plan, fedavg = plan_beside_fedavg(prepared)
    typer.echo(f"Model: {tables.describe_kind(problem, table.table.get('kind'))}")
    _print_clients(prepared.problem)
    _print_differences(prepared, plan, fedavg)


def _print_clients(problem: EncodedProblem) -> None:
    counts, most = class_counts(problem), 20
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


def _print_differences(prepared: PreparedProblem, plan: Plan, fedavg: Array) -> None:
    spread, method = heterogeneity(prepared.problem, prepared.optimum), plan.method
    sampled = "" if spread.sampled == prepared.problem.n_clients else f" (from {spread.sampled:,} clients)"
    pooled = prepared.loss(prepared.optimum)
    own_units = "" if prepared.loss_scale == 1.0 else "; the loss in the target's own units"
    facts = (
        ("ζ₁, spread of gradients at the optimum", f"{spread.zeta1:.4g}"),
        ("ζ₂, spread of Hessians at the optimum", f"{spread.zeta2:.4g}{sampled}"),
        ("condition number", f"{spread.condition_number:.4g}"),
        ("plan", f"γ = {method.step_size:.3g}, H = {method.local_steps}, T = {plan.rounds:,}"),
        ("FedAvg's distance to the optimum, relative", f"{prepared.relative_distance(fedavg):.2%}"),
        ("FedAvg's loss above the optimum's", f"{prepared.loss(fedavg) - pooled:.3g} (of {pooled:.4g})"),
        ("Scaffold's distance, planned for", f"{prepared.aim:.2%}"),
    )
    print_table("How different clients are", facts, caption="for standardised columns" + own_units)
