"""The page about a fit: the fit, compared with FedAvg, with pooled data and with clients' own models."""

import math
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedscaffold.core.display import Progress, rounded_up
from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.files import write_text
from fedscaffold.core.types import Array
from fedscaffold.data.files import read_table
from fedscaffold.data.settings import DETECTED, CsvFormat
from fedscaffold.inference import Summary
from fedscaffold.models.compare import ModelComparison, compare_models
from fedscaffold.models.fit import Fit, small_percentage
from fedscaffold.models.heterogeneity import class_counts
from fedscaffold.models.local_models import compare_local_models
from fedscaffold.models.metrics import model_metrics, training_metrics
from fedscaffold.models.model import Model
from fedscaffold.models.planning.distance import slope_length
from fedscaffold.models.summaries import column_spread
from fedscaffold.reports.page import format_bytes, render


@dataclass(frozen=True, kw_only=True, eq=False)
class ReportInputs:
    """Facts about a fit that the fit itself does not know.

    Parameters
    ----------
    kind
        Kind of model, and why it was chosen.
    command
        How to make the same fit again: a command line or Python code.
    data
        Name of the table; None if it was not a file.
    missing
        Treatment of missing values, "error" or "mean"; None if that is not known.
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
        """Return the facts about a fit that was made in Python; `test` is a .csv or .parquet file."""
        return cls(
            kind=fit.model.kind,
            command=f"fedscaffold.models.fit(problem, settings={fit.settings!r})",
            test=None if test is None else os.fspath(test),
            test_table=None if test is None else read_test_table(test, fit.model),
        )


def read_test_table(path: str | os.PathLike[str], model: Model, text: CsvFormat = DETECTED) -> Any:
    """Read test rows as a pyarrow Table; raise if a model with these columns cannot score them."""
    table = read_table(path, text)
    try:
        model_metrics(model, table)
    except InvalidInput as error:
        raise InvalidInput(f"{path}: {error}") from None
    return table


@dataclass(frozen=True, kw_only=True, eq=False)
class FitReport:
    """Everything that the page about a fit shows.

    Attributes
    ----------
    fit
        The fit.
    comparison
        Its model, FedAvg's and the pooled one.
    inputs
        Facts that the fit does not know.
    metrics, test_metrics
        Metrics of each model by its name, on the fitted rows and on the test rows; None if there are no test rows.
    together, alone
        Loss on rows left out of the fit, of the common model and of each client's own, (clients,); NaN for clients
        that were not compared, or have too few rows for a model.
    seconds
        Duration of each phase.
    """

    fit: Fit
    comparison: ModelComparison
    inputs: ReportInputs
    metrics: Mapping[str, Mapping[str, float]]
    test_metrics: Mapping[str, Mapping[str, float]] | None
    together: Array
    alone: Array
    seconds: Mapping[str, float]

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the page to a file, which is replaced only once the new one is complete."""
        write_text(path, render("fit", report=self))

    @property
    def headline(self) -> str:
        """Distance of the delivered model to the pooled one, then of the rounds, and of FedAvg's."""
        fit, comparison = self.fit, self.comparison
        clients = fit.planned.problem.n_clients
        rounds = f"Scaffold on {clients:,} client{'s' * (clients > 1)}"
        judged = f"({'within' if fit.reached else 'MISSING'} the tolerance of {fit.tolerance_text})"
        averaged = f"FedAvg with the same effort within {comparison.fedavg.relative_distance:.2%}."
        near = f"came within {fit.relative_distance:.2%}"
        if comparison.before_closing is None:
            return f"{rounds} {near} of the pooled coefficients {judged}; {averaged}"
        error = fit.error_in_standard_errors
        left = f"{small_percentage(comparison.scaffold.relative_distance)} of their length"
        if error is not None:
            left = f"{small_percentage(error)} of a standard error"
        return (
            f"The model's coefficients are {left} away from those that pooled data would give {judged}. {rounds} "
            f"{near} of them, and {fit.newton_steps} closed the rest; {averaged}"
        )

    @cached_property
    def summary(self) -> Summary | None:
        """Coefficients with standard errors; None if there are none."""
        return None if self.fit.model.standard_errors is None else self.fit.summary()

    @property
    def spread(self) -> Array:
        """Standard deviations of the columns of `summary`."""
        assert self.summary is not None
        return column_spread(self.summary, self.fit.planned.problem.encoding)

    @property
    def closing(self) -> str:
        """Distance of the coefficients to the pooled ones, before and after closing."""
        closed = self.fit.closed
        assert closed is not None  # standard errors come from its sums
        distance = rounded_up(closed.distance_before)
        ended = f"The run ended at most {distance} standard errors from the pooled coefficients"
        if self.fit.closing is None:
            return f"{ended}, and no Newton step followed."
        return f"{ended}; {self.fit.closing}, from sums of gradients and Hessians over clients."

    @cached_property
    def counts(self) -> NDArray[np.int64]:
        """Rows of each client by class, or in all for a numeric target, (clients, classes or 1)."""
        found = class_counts(self.fit.planned.problem)
        return self.fit.planned.problem.sizes[:, None] if found is None else found

    @property
    def predicted(self) -> Array | None:
        """The plan's relative distances by round, intercept included; None if nothing was planned."""
        planned = self.fit.planned
        if planned.plan is None or planned.plan.curve is None:
            return None
        return np.sqrt(planned.plan.curve) / slope_length(planned.problem, planned.optimum)

    @property
    def data(self) -> dict[str, str]:
        """Rows, clients, columns and target of the table."""
        prepared, problem = self.fit.planned, self.fit.planned.problem
        encoding, family = problem.encoding, problem.encoding.family
        last = " with the intercept" if encoding.intercept else ""
        facts = {
            "rows": f"{int(problem.sizes.sum()):,}",
            "clients": f"{problem.n_clients:,}, of {problem.sizes.min():,} to {problem.sizes.max():,} rows",
            "columns": f"{len(encoding.columns)}, as {problem.n_features} numbers{last}",
        }
        if family.log_link:
            unit = "row" if encoding.exposure is None else f"unit of {encoding.exposure}"
            facts["target"] = f"{family.target}, {math.exp(prepared.target_shift):.5g} per {unit}"
        elif problem.classes is None:
            mean, deviation = prepared.target_shift, prepared.target_scale
            facts["target"] = f"mean {mean:.5g}, standard deviation {deviation:.5g}"
        return facts

    @property
    def cost(self) -> dict[str, str]:
        """Rounds, and numbers sent and received; a number has eight bytes."""
        problem, trace = self.fit.planned.problem, self.fit.trace
        vectors = float(trace.vectors_per_client[-1])
        each = vectors * problem.dim * 8
        table = float(problem.sizes.sum()) * len(problem.encoding.columns) * 8
        return {
            "rounds": f"{trace.rounds:,}, of {self.fit.planned.method.local_steps:,} local steps",
            "per client": f"{vectors:,.0f} vectors of {problem.dim:,} numbers, {format_bytes(each)}",
            "all clients": f"{format_bytes(each * problem.n_clients)}; FedAvg the same",
            "for comparison": f"the features themselves are {format_bytes(table)}",
            "gradients per client": f"{trace.gradients_per_client[0, -1]:,.0f}",
        }

    @property
    def time(self) -> dict[str, str]:
        """Duration of each phase as text."""
        return {name: f"{seconds:,.2f} s" for name, seconds in self.seconds.items()}

    @property
    def rows_digest(self) -> str:
        """SHA-256 of the encoded rows; of a fit in a folder, of the rows before y was standardised."""
        request = self.fit.model.provenance.get("request")
        return self.fit.planned.problem.fingerprint() if request is None else request["rows"]


def compared_report(fit: Fit, inputs: ReportInputs, *, progress: Progress = None) -> FitReport:
    """Compare a fit with FedAvg, with pooled data and with clients' own models.

    Parameters
    ----------
    fit
        The fit that the page is about.
    inputs
        Facts that the fit does not know, for example from `ReportInputs.of_fit`.
    progress
        As in `fedscaffold.run`.
    """
    began = time.perf_counter()
    planned, comparison = fit.planned, compare_models(fit, progress=progress)
    found = compare_local_models(planned)
    together, alone = np.full((2, planned.problem.n_clients), np.nan)
    together[found.clients], alone[found.clients] = found.common, found.local
    metrics = {score.name: training_metrics(planned, score.theta) for score in comparison.scores}
    test = None if inputs.test_table is None else {
        score.name: model_metrics(planned.model(score.theta), inputs.test_table) for score in comparison.scores
    }  # fmt: skip
    phases = {} if inputs.reading_seconds is None else {"reading": inputs.reading_seconds}
    return FitReport(
        fit=fit,
        comparison=comparison,
        inputs=inputs,
        metrics=metrics,
        test_metrics=test,
        together=together,
        alone=alone,
        seconds=phases | {**fit.seconds, "comparing": time.perf_counter() - began},
    )
