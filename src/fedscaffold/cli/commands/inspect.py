"""`fedscaffold inspect`: how different a table's clients are, and what that would cost FedAvg."""

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from fedscaffold.cli import options
from fedscaffold.cli import table_options as tables
from fedscaffold.cli.errors import refusals
from fedscaffold.data.open import L2
from fedscaffold.models import compare
from fedscaffold.models.fit import TOLERANCE, Settings, Task, prepare
from fedscaffold.models.heterogeneity import Heterogeneity, class_counts, heterogeneity

EXAMPLES = "Example:\n\n  fedscaffold inspect visits.csv --target readmitted --client hospital"
MOST_SHOWN = 20
MOST_CLASSES = 5


def command(
    data: tables.Data,
    target: tables.Target,
    client: tables.Client,
    kind: tables.Kind = None,
    features: tables.Features = None,
    l2: options.Penalty = L2,
    missing: tables.Missing = "error",
    tolerance: tables.Tolerance = TOLERANCE,
    batch_size: tables.Batch = "auto",
    seed: tables.Seed = 0,
    cache_dir: tables.CacheDir = None,
) -> None:
    """Show a table's clients, how much they differ, and where FedAvg would end.

    FedAvg is run with the step size, local steps and rounds that Scaffold would need for --tolerance.
    """
    with refusals(interrupted="nothing was written"):
        settings = Settings(tolerance=tolerance, batch_size=tables.batch_of(batch_size), seed=seed)
        problem = tables.open_table(
            data,
            target=target,
            client=client,
            kind=kind,
            features=features,
            l2=l2,
            missing=missing,
            cache_dir=cache_dir,
        )
        task = prepare(problem, settings)
        spread = heterogeneity(task.problem, task.optimum)
        averaged = compare.fedavg(task, settings, rounds=task.rounds)
        ends = compare.standing("FedAvg", task, averaged.theta[0])
        best = compare.standing("Pooled", task, task.optimum)
    console = Console(highlight=False)
    console.print(f"Model: {tables.chosen(problem, kind)}", soft_wrap=True, markup=False)
    _print_clients(task, console)
    _print_spread(task, spread, ends, best, console)


def _print_clients(task: Task, console: Console) -> None:
    problem = task.problem
    counts = class_counts(problem)
    classes = (problem.classes or ())[:MOST_CLASSES]
    shown = Table(title=f"{problem.n_clients:,} clients, {int(problem.sizes.sum()):,} rows")
    shown.add_column("client", max_width=20, overflow="ellipsis", no_wrap=True)
    for column in ("rows", *(escape(str(name)) for name in classes)):
        shown.add_column(column, justify="right", max_width=12, overflow="ellipsis")
    for c in range(min(problem.n_clients, MOST_SHOWN)):
        shares = [] if counts is None else [f"{n / problem.sizes[c]:.0%}" for n in counts[c, : len(classes)]]
        shown.add_row(escape(str(problem.client_names[c])), f"{problem.sizes[c]:,}", *shares)
    if problem.n_clients > MOST_SHOWN:
        shown.caption = f"the first {MOST_SHOWN} of {problem.n_clients:,}"
    console.print(shown)


def _print_spread(
    task: Task, spread: Heterogeneity, ends: compare.Standing, best: compare.Standing, console: Console
) -> None:
    scale = task.loss_scale
    sampled = "" if spread.sampled == task.problem.n_clients else f" (from {spread.sampled:,} clients)"
    method = task.method
    facts = Table(title="How different clients are", show_header=False)
    for name, value in (
        ("ζ₁, spread of gradients at the optimum", f"{spread.zeta1:.4g}"),
        ("ζ₂, spread of Hessians at the optimum", f"{spread.zeta2:.4g}{sampled}"),
        ("condition number", f"{spread.condition_number:.4g}"),
        ("plan", f"γ = {method.step_size:.3g}, H = {method.local_steps}, T = {task.rounds:,}"),
        ("FedAvg's distance to the optimum, relative", f"{ends.relative_distance:.2%}"),
        ("FedAvg's loss above the optimum's", f"{ends.loss - best.loss:.3g} (of {best.loss:.4g})"),
        (
            "Scaffold's distance, planned for",
            f"{(task.target_mse**0.5) / float((task.optimum @ task.optimum) ** 0.5):.2%}",
        ),
    ):
        facts.add_row(name, value)
    facts.caption = "for standardised columns" + ("" if scale == 1.0 else "; the loss in the target's own units")
    console.print(facts)
