"""`fedscaffold compare`: methods against each other at equal cost, each with its best settings."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from fedscaffold.benchmarking import FedNewton, compare
from fedscaffold.benchmarking.cells import chosen_batch, result_folder
from fedscaffold.benchmarking.comparison import FILES, Candidate
from fedscaffold.cli import options
from fedscaffold.cli import table_options as tables
from fedscaffold.cli.errors import RESUMABLE, refusals
from fedscaffold.cli.prepare import prepare_problem
from fedscaffold.core.checks import whole_number
from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.protocols import Problem
from fedscaffold.core.random.stream import Batches
from fedscaffold.core.types import evenly_spaced_clients

EXAMPLES = (
    "Examples:\n\n"
    "  fedscaffold compare --method scaffold --method fedavg --reach 1e-2,1e-3\n\n"
    "  fedscaffold compare --method scaffold --method proxskip --clients 10,40 --reach 1e-3 --out c\n\n"
    "  fedscaffold compare visits.csv --target ill --client hospital --method scaffold --method fednewton\n\n"
    "  fedscaffold compare --method scaffold:participation=0.1 --method fedavg:step_size=0.05 --record loss\n\n"
    "NAME:FIELD=VALUE,... fixes a field of the method; step size and local steps that are not fixed are searched."
)


@tables.with_table_options("target", "client", "l2", required=False, more=("cache_dir", "tolerance"))
def command(
    context: typer.Context,
    table: tables.TableFlags,
    data: Annotated[
        Path | None, typer.Argument(help="A table: a .csv or .parquet file. Without: one of the paper's problems.")
    ] = None,
    method: options.Methods = None,
    problem: options.Problem = "classification",
    clients: options.SeveralClients = "100",
    reach: Annotated[
        str | None,
        typer.Option(
            "--reach",
            "--squared-error",
            help="Squared errors, or values of --record, to reach, with commas. Without: the budget is used up.",
            show_default="for tables 5 % of standard errors",
        ),
    ] = None,
    record: Annotated[str, typer.Option(help="Compare by mse (squared error) or loss.")] = "mse",
    rounds: Annotated[
        int | None, typer.Option(help="Budget of rounds.", show_default="1000 if no budget is given")
    ] = None,
    gradients: Annotated[float | None, typer.Option(help="Budget of gradients per client.")] = None,
    step_size: options.SeveralStepSizes = None,
    local_steps: options.SeveralLocalSteps = "1,4,16,64,256",
    batch_size: options.AnyBatchSize = None,
    repetitions: options.Repetitions = 10,
    seed: options.Seed = 0,
    plot: options.Plot = None,
    out: options.ResultFolder = None,
) -> None:
    """Compare methods on a table or one of the paper's problems, each with the best settings of a grid.

    All candidates see the same draws. For each method, number of clients and value to reach, prints the candidate
    with the fewest rounds and the one with the fewest gradients per client; without --reach, the smallest value
    when the budget is used up. With --out the same command resumes after an interruption; methods can be added.
    """
    given = tables.given_options(context)
    advice = RESUMABLE if out else "with --out FOLDER the same command could resume"
    with refusals(interrupted=advice):
        targets = [] if reach is None else options.numbers_of("--reach", reach, float)
        tables.check_source(table, given, is_table=data is not None)
        whole_number("repetitions", repetitions, least=1)
        batch = tables.parse_batch(batch_size or ("10" if data is None else "auto"))
        sizes = [] if step_size is None else options.numbers_of("--step-size", step_size, float)
        lengths = options.numbers_of("--local-steps", local_steps, int, least=1)
        unknown = {"smoothness": lambda: 1e100, "strong_convexity": lambda: 1e-100}  # before there is a problem
        _methods(method, sizes or [1.0], lengths, unknown)  # rejects a wrong method before data are made
        options.check_figure(plot)
        cells = None if out is None else result_folder(out, FILES)
        problems: list[Any]
        if data is None:
            numbers = options.numbers_of("--clients", clients, int)
            made = options.make_problem(problem, n_clients=max(numbers), seed=seed, **table.table)
            # the smaller ones are parts of the largest, so that f is nearly the same for all
            parts = (evenly_spaced_clients(made.n_clients, n) for n in sorted(numbers)[:-1])
            problems = [*map(made.subset, parts), made]
        else:
            prepared = prepare_problem(table.open(data), table.fit_settings())
            problems = [prepared.problem]
            targets = targets or ([prepared.target_mse] if record == "mse" else [])
        largest: Problem = problems[-1]
        batches = Batches(chosen_batch(batch, largest))
        constants = {
            "smoothness": lambda: largest.smoothness(Batches()),
            "strong_convexity": lambda: _strong_convexity(largest),
        }
        # from 4/L, too large for most methods, down to 4/(512 L)
        sizes = sizes or [float(f"{4.0 / 2**k / largest.smoothness(batches):.2g}") for k in range(10)]
        found = compare(
            problems, _methods(method, sizes, lengths, constants), gradients=gradients, targets=targets,
            rounds=1000 if rounds is None and gradients is None else rounds, record=record, batch_size=batch,
            seed=seed, repetitions=repetitions, cells=cells,
        )  # fmt: skip
        if out is not None:
            plain = {name: str(each) if isinstance(each, Path) else each for name, each in context.params.items()}
            found.save(out, {**plain, "reach": targets, "step_size": sizes, "local_steps": lengths})
        typer.echo(found.table())
        if out is not None:
            typer.echo(f"Tables are in {out}")
        if plot is not None:
            found.draw(plot)


def _strong_convexity(problem: Problem) -> float:
    """Return μ of the clients' losses, for methods that need it; raise if it is zero."""
    found = problem.strong_convexity()
    if found == 0.0:
        raise InvalidInput(
            "some client's loss is not strongly convex, and the method needs a positive strong_convexity; give a "
            "penalty with --l2, or a value with --method NAME:strong_convexity=VALUE"
        )
    return found


def _methods(
    texts: Iterable[str] | None,
    sizes: Sequence[float],
    lengths: Sequence[int],
    constants: Mapping[str, Callable[[], float]],
) -> dict[str, Sequence[Candidate]]:
    named = list(texts or ())
    if not named or len(set(named)) < len(named):
        raise InvalidInput("give different methods, for example --method scaffold --method fedavg")
    return {
        text: [FedNewton()]
        if text == "fednewton"
        else options.candidates_of(text, step_sizes=sizes, local_steps=lengths, constants=constants)
        for text in named
    }
