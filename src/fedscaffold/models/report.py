"""The content of the page about a fit, and the page itself."""

import math
import os
import time
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fedscaffold.core.display.progress import Progress
from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.storage.files import write_text
from fedscaffold.data.encoding import Encoding
from fedscaffold.data.files import DETECTED, read_table
from fedscaffold.data.reading.csv_file import CsvFormat
from fedscaffold.models.coefficients import fit_coefficients
from fedscaffold.models.compare import ModelComparison, ModelScore, compare_models
from fedscaffold.models.fit import Fit, small_percentage
from fedscaffold.models.heterogeneity import class_counts
from fedscaffold.models.local_models import compare_local_models
from fedscaffold.models.metrics import model_metrics, training_metrics
from fedscaffold.models.model import Model
from fedscaffold.models.planning.distance import slope_length
from fedscaffold.models.planning.planned import PreparedProblem
from fedscaffold.reports.page import ClientRow, ModelRow, ReportContent, fit_page, render
from fedscaffold.reports.page.sizes import format_bytes

BYTES_PER_NUMBER = 8
MAX_NAMED_FEATURES = 12


@dataclass(frozen=True, kw_only=True, eq=False)
class ReportInputs:
    """What the page about a fit says beside the fit itself.

    Parameters
    ----------
    kind
        Kind of model, and why it was chosen.
    command
        How to make the same fit again: a command line or Python code.
    data
        Name of the table; None if it was not a file.
    missing
        What was done with missing values; None if that is not known.
    test
        Name of the test table; None if there is none.
    test_table
        Rows of the test table, a pyarrow Table.
    reading_seconds
        Time that reading the table took; None if that is not known.
    """

    kind: str
    command: str
    data: str | None = None
    missing: str | None = None
    test: str | None = None
    test_table: Any = None
    reading_seconds: float | None = None

    @classmethod
    def of_fit(cls, fit: Fit, test: str | os.PathLike[str] | None = None) -> "ReportInputs":
        """For a fit that was made in Python, with a test table in a .csv or .parquet file."""
        return cls(
            kind=fit.model.kind,
            command=f"fedscaffold.models.fit(problem, settings={fit.settings!r})",
            test=None if test is None else os.fspath(test),
            test_table=None if test is None else read_test_table(test, fit.model),
        )


def read_test_table(path: str | os.PathLike[str], model: Model, text: CsvFormat = DETECTED) -> Any:
    """Test rows as a pyarrow Table; refused where a model with these columns could not score them."""
    table = read_table(path, text)
    try:
        model_metrics(model, table)
    except InvalidInput as error:
        raise InvalidInput(f"{path}: {error}") from None
    return table


def write_report(content: ReportContent, path: str | os.PathLike[str]) -> None:
    """Write the page to a file, which is replaced only once the new one is complete."""
    write_text(path, render(fit_page(content)))


def compared_report(fit: Fit, inputs: ReportInputs, *, progress: Progress = None) -> ReportContent:
    """Everything that the page shows, after comparing with FedAvg, pooled data and clients' own models."""
    began = time.perf_counter()
    content = build_report(fit, compare_models(fit, progress=progress), inputs)
    phases = {} if inputs.reading_seconds is None else {"reading": inputs.reading_seconds}
    phases |= {**fit.seconds, "comparing": time.perf_counter() - began}
    return replace(content, time=[(name, f"{seconds:,.2f} s") for name, seconds in phases.items()])


def build_report(fit: Fit, comparison: ModelComparison, inputs: ReportInputs) -> ReportContent:
    """Compute everything that the page shows.

    Parameters
    ----------
    fit
        The fit that the page is about.
    comparison
        From `Fit.compare`.
    inputs
        What the page says beside the fit, for example from `ReportInputs.of_fit`.
    """
    planned, problem = fit.planned, fit.planned.problem
    norm = slope_length(problem, planned.optimum)
    curve = None if planned.plan is None else planned.plan.curve
    return ReportContent(
        title=f"A federated model of {problem.encoding.target}",
        summary=_headline(fit, comparison),
        request=_request_facts(fit, inputs),
        data=_data_facts(planned),
        classes=tuple(map(str, problem.classes or ())),
        clients=_client_rows(planned, comparison),
        plan=_describe_plan(fit),
        distances=comparison.distances,
        predicted=None if curve is None else np.sqrt(curve) / norm,
        tolerance=planned.aim,
        models=[_model_row(planned, score, inputs.test_table) for score in comparison.scores],
        loss_name=problem.encoding.family.loss,
        cost=_cost_facts(fit),
        provenance=_provenance_facts(fit),
        command=inputs.command,
        coefficients=fit_coefficients(fit),
    )


def _headline(fit: Fit, comparison: ModelComparison) -> str:
    """How far the delivered model is from the pooled one; then how far the rounds came, and those of FedAvg."""
    clients = fit.planned.problem.n_clients
    rounds = f"Scaffold on {clients:,} client{'s' * (clients > 1)}"
    judged = f"({'within' if fit.reached else 'MISSING'} the tolerance of {fit.tolerance_text})"
    averaged = f"FedAvg with the same effort within {comparison.fedavg.relative_distance:.2%}."
    if comparison.before_closing is None:
        return f"{rounds} came within {fit.relative_distance:.2%} of the pooled coefficients {judged}; {averaged}"
    error = fit.error_in_standard_errors
    left = f"{small_percentage(comparison.scaffold.relative_distance)} of their length"
    if error is not None:
        left = f"{small_percentage(error)} of a standard error"
    return (
        f"The model's coefficients are {left} away from those that pooled data would give {judged}. {rounds} came "
        f"within {fit.relative_distance:.2%} of them, and {fit.newton_steps} closed the rest; {averaged}"
    )


def _request_facts(fit: Fit, inputs: ReportInputs) -> list[tuple[str, str]]:
    encoding = fit.planned.problem.encoding
    names = ", ".join(column.name for column in encoding.columns[:MAX_NAMED_FEATURES])
    more = len(encoding.columns) - MAX_NAMED_FEATURES
    handled = {"error": "refused", "mean": "filled with the mean"}
    facts = [
        ("table", inputs.data),
        ("target", encoding.target),
        ("client column", encoding.client),
        ("features", names + (f" and {more} more" if more > 0 else "")),
        ("model", inputs.kind),
        *((f"{role} column", getattr(encoding, role)) for role in ("exposure", "offset", "weight")),
        (
            "intercept",
            "one for each client, which never leaves it" if fit.settings.client_intercepts else "common",
        ),
        ("dispersion", None if fit.settings.dispersion is None else str(fit.settings.dispersion)),
        ("penalty l2", f"{fit.planned.problem.l2:g}"),
        ("missing values", None if inputs.missing is None else handled[inputs.missing]),
        ("tolerance", str(fit.settings.tolerance)),
        ("test table", inputs.test or "none"),
    ]
    return [(name, value) for name, value in facts if value is not None]


def _data_facts(prepared: PreparedProblem) -> list[tuple[str, str]]:
    problem = prepared.problem
    last = " with the intercept" if problem.encoding.intercept else ""
    facts = [
        ("rows", f"{int(problem.sizes.sum()):,}"),
        ("clients", f"{problem.n_clients:,}, of {problem.sizes.min():,} to {problem.sizes.max():,} rows"),
        ("columns", f"{len(problem.encoding.columns)}, as {problem.n_features} numbers{last}"),
    ]
    encoding = problem.encoding
    if encoding.family.log_link:
        facts.append(
            ("target", f"{encoding.family.target}, {math.exp(prepared.target_shift):.5g} per {_unit(encoding)}")
        )
    elif problem.classes is None:
        mean, deviation = prepared.target_shift, prepared.target_scale
        facts.append(("target", f"mean {mean:.5g}, standard deviation {deviation:.5g}"))
    return facts


def _unit(encoding: Encoding) -> str:
    """What a mean rate is per."""
    return "row" if encoding.exposure is None else f"unit of {encoding.exposure}"


def _client_rows(prepared: PreparedProblem, comparison: ModelComparison) -> list[ClientRow]:
    problem = prepared.problem
    counts = class_counts(problem)
    found = compare_local_models(prepared)
    left_out = {
        int(c): (float(a), float(b)) for c, a, b in zip(found.clients, found.common, found.local, strict=True)
    }
    sizes = problem.sizes[:, None] if counts is None else counts
    rows = []
    for c, name in enumerate(problem.client_names):
        common, local = left_out.get(c, (None, None))
        scaffold, fedavg = (float(score.client_losses[c]) for score in (comparison.scaffold, comparison.fedavg))
        own = tuple(sizes[c].tolist())
        rows.append(
            ClientRow(name=str(name), rows=own, scaffold=scaffold, fedavg=fedavg, common=common, local=local)
        )
    return rows


def _describe_plan(fit: Fit) -> str:
    planned = fit.planned
    size = planned.batch_size or "all of a client's"
    batch = f"Each step uses {size} rows."
    if planned.plan is None:
        return f"Nothing was planned: step size, local steps and rounds were given.\n{batch}"
    aim = (
        f"The aim is a squared distance to the pooled model of {planned.target_mse:.3g}: "
        f"{planned.aim:g} times the length of its coefficients, squared, for standardised columns."
    )
    given = ""
    if (planned.plan.method, planned.plan.rounds) != (planned.method, planned.rounds):
        given = (
            f"\nSome of this was given instead: the run took step_size={planned.method.step_size:.4g}, "
            f"local_steps={planned.method.local_steps}, {planned.rounds:,} rounds."
        )
    if fit.trace.rounds > planned.rounds:
        given += f"\nThat did not quite suffice: {fit.trace.rounds - planned.rounds:,} more rounds were run."
    return f"{aim}\n{planned.plan.explain()}\n{batch}{given}"


def _model_row(prepared: PreparedProblem, score: ModelScore, test_table: Any) -> ModelRow:
    return ModelRow(
        name=score.name,
        loss=score.loss,
        distance=score.relative_distance,
        metrics=training_metrics(prepared, score.theta),
        test=None if test_table is None else model_metrics(prepared.model(score.theta), test_table),
    )


def _cost_facts(fit: Fit) -> list[tuple[str, str]]:
    problem, rounds = fit.planned.problem, fit.trace.rounds
    vectors = float(fit.trace.vectors_per_client[-1])
    each = vectors * problem.dim * BYTES_PER_NUMBER
    table = float(problem.sizes.sum()) * len(problem.encoding.columns) * BYTES_PER_NUMBER
    return [
        ("rounds", f"{rounds:,}, of {fit.planned.method.local_steps:,} local steps"),
        ("per client", f"{vectors:,.0f} vectors of {problem.dim:,} numbers, {format_bytes(each)}"),
        ("all clients", f"{format_bytes(each * problem.n_clients)}; FedAvg the same"),
        ("for comparison", f"the features themselves are {format_bytes(table)}"),
        ("gradients per client", f"{fit.trace.gradients_per_client[0, -1]:,.0f}"),
    ]


def _provenance_facts(fit: Fit) -> list[tuple[str, str]]:
    origin = fit.trace.provenance
    versions = ", ".join(f"{name} {number}" for name, number in origin["versions"].items())
    machine = origin["machine"]
    # a fit in a folder has a request, with the rows before y was standardised
    request = fit.model.provenance.get("request")
    rows = fit.planned.problem.fingerprint() if request is None else request["rows"]
    return [
        ("finished", origin["finished"]),
        ("seed", str(fit.settings.seed)),
        ("engine", origin["engine"]),
        ("versions", versions),
        ("machine", f"{machine['system']}, {machine['processor']}, {machine['cores']} cores"),
        ("encoded rows, SHA-256", rows),
    ]
