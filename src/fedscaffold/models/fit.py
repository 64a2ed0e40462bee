"""Fit a model to a table: a planned run of Scaffold on the table's problem."""

import math
import os
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedscaffold.core import npz as arrays
from fedscaffold.core.display import Progress, Summarised
from fedscaffold.core.files import path_of
from fedscaffold.core.types import Array
from fedscaffold.data.encoded import EncodedProblem
from fedscaffold.inference import Closed, Summary
from fedscaffold.inference.closing import has_variance
from fedscaffold.inference.covariance import Covariance
from fedscaffold.inference.plain import summary_to_plain
from fedscaffold.methods import FedAvg, Scaffold
from fedscaffold.models.model import Model
from fedscaffold.models.planning.distance import RelativeDistance
from fedscaffold.models.planning.planned import FitSettings, PlannedFit, plan_fit
from fedscaffold.models.summaries import close_fit, largest_error, summary_of
from fedscaffold.simulation import Mse, Trace
from fedscaffold.simulation.run_method import run

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from fedscaffold.models.compare import ModelComparison


NEGLIGIBLE = 1e-4


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Fit(Summarised):
    """The result of `fedscaffold.models.fit`: a model, and the run that gave it.

    Attributes
    ----------
    model
        The fitted model, in the table's own units.
    trace
        The run, on standardised columns.
    planned
        The problem that was run, its optimum and its plan.
    settings
        The settings of the call.
    closed
        Coefficients after closing with Newton steps, and the sums that standard errors are computed from; None
        where there are too many coefficients for a Hessian.
    seconds
        Where the time went: finding the pooled model, planning, running and closing.

    Examples
    --------
    >>> import numpy as np
    >>> import pandas as pd
    >>> import fedscaffold as fs
    >>> table = pd.DataFrame({"x": np.arange(40.0), "y": 3.0 * np.arange(40.0) + 1.0, "site": ["a", "b"] * 20})
    >>> problem = fs.data.from_frame(table, target="y", client="site", standardize=True, intercept=True)
    >>> fit = fs.models.fit(problem)
    >>> fit.relative_distance < 0.005
    True
    >>> fit.summary().to_frame().loc["x", "coef"].round(3)
    np.float64(3.0)
    >>> fit.model.predict(pd.DataFrame({"x": [10.0]})).round()
    array([31.])
    """

    model: Model
    trace: Trace
    planned: PlannedFit
    settings: FitSettings
    closed: Closed | None = None
    seconds: Mapping[str, float] = field(default_factory=dict)

    @property
    def theta(self) -> Array:
        """The fitted θ for encoded rows, after closing, (dim,)."""
        return self.trace.theta[0] if self.closed is None else self.closed.theta

    def summary(
        self, cov: Covariance = "nonrobust", *, level: float = 0.95, dispersion: float | str | None = None
    ) -> Summary:
        """Coefficients in the table's own units with standard errors, tests and intervals.

        Parameters
        ----------
        cov
            "nonrobust", "HC0", "HC1" or "cluster" (by client).
        level
            Confidence level of the intervals.
        dispersion
            "pearson" to estimate it, or a number; None for that of the fit's settings.
        """
        own = self.settings.dispersion if dispersion is None else dispersion
        return summary_of(self.planned, self.closed, cov=cov, level=level, dispersion=own)

    @property
    def relative_distance(self) -> float:
        """‖β − β*‖ / ‖β*‖ at the end of the run, before closing: the coefficients' distance to the pooled ones.

        β are the coefficients of standardised columns, without the intercept.
        """
        return float(self.relative_distances[-1])

    @property
    def error_in_standard_errors(self) -> float | None:
        """The largest optimisation error of a coefficient in its standard errors, after closing.

        None where there are no standard errors.
        """
        return largest_error(self.planned, self.closed)

    @property
    def reached(self) -> bool:
        """Whether the fit is within its tolerance: after closing for one in standard errors, else before."""
        error = self.error_in_standard_errors
        if self.settings.standard_errors is None or error is None:
            return self.relative_distance <= self.planned.aim
        return error <= self.settings.standard_errors

    @property
    def newton_steps(self) -> str | None:
        """The number of Newton steps after the run, in words; None where there were none."""
        steps = 0 if self.closed is None else self.closed.steps
        return f"{steps} Newton step{'s' * (steps > 1)}" if steps else None

    @property
    def closing(self) -> str | None:
        """What the Newton steps left, in words; None where there were none."""
        if self.newton_steps is None:
            return None
        error = self.error_in_standard_errors
        if error is None:
            return f"{self.newton_steps}, with too few rows for standard errors"
        return f"{self.newton_steps} left {small_percentage(error)} of a standard error"

    @property
    def relative_distances(self) -> Array:
        """‖β_t − β*‖ / ‖β*‖ after each round, (rounds + 1,)."""
        return self.trace.metrics["relative_distance"][0]

    def compare(self, *, progress: Progress = None) -> "ModelComparison":
        """Compare with FedAvg, which is run with the same settings, and with the pooled model."""
        from fedscaffold.models.compare import compare_models

        return compare_models(self, progress=progress)

    def plot(self, ax: "Axes | None" = None) -> "Axes":
        """Draw the relative distance to the pooled model by round, and the tolerance; return the axes.

        Parameters
        ----------
        ax
            matplotlib axes to draw on; by default those of a new figure.
        """
        from fedscaffold.reports.figures import draw_distances

        return draw_distances({"Scaffold": self.relative_distances}, tolerance=self.planned.aim, ax=ax)

    def report(
        self,
        path: str | os.PathLike[str],
        *,
        test: str | os.PathLike[str] | None = None,
        progress: Progress = None,
    ) -> None:
        """Write one self-contained HTML page about the fit, as `fedscaffold fit` does.

        The page compares the model with FedAvg, which is run for it, with the pooled model, and with models that
        clients would fit to their own rows alone.

        Parameters
        ----------
        path
            The .html file to write.
        test
            A .csv or .parquet file with other rows, on which the models are scored too.
        progress
            As in `fedscaffold.run`.
        """
        from fedscaffold.models.report import ReportInputs, compared_report

        compared_report(self, ReportInputs.of_fit(self, test), progress=progress).save(path)

    def _facts(self) -> dict[str, str]:
        problem = self.planned.problem
        return {
            "model": self.model.kind,
            "clients": f"{problem.n_clients:,}",
            "rows": f"{int(problem.sizes.sum()):,}",
            "rounds": f"{self.trace.rounds:,}",
            "the run's distance to the pooled model": f"{self.relative_distance:.2%}",
            "closing": self.closing or "none",
            "tolerance": f"{self.tolerance_text}, {'reached' if self.reached else 'NOT reached'}",
        }

    @property
    def tolerance_text(self) -> str:
        """The tolerance in words."""
        share = self.settings.standard_errors
        return f"{self.planned.aim:.2%}" if share is None else f"{share:.3g} standard errors"

    def _title(self) -> str:
        return f"Fit of {self.model.encoding.target!r}"


def small_percentage(share: float) -> str:
    """A share as a percentage; one below 0.01 % is only called small."""
    return "less than 0.01%" if share < NEGLIGIBLE else f"{share:.2%}"


def fit(
    problem: EncodedProblem,
    *,
    settings: FitSettings | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    progress: Progress = None,
) -> Fit:
    """Fit a model to a table with Scaffold, planned to come close to the model that pooled rows would give.

    Parameters
    ----------
    problem
        From `fedscaffold.models.open_problem`, or from `fedscaffold.data.from_frame` and its relatives.
    settings
        Tolerance, batch size and seed; step size, local steps and rounds where they should not be planned.
    checkpoint
        Checkpoint path, written from time to time; the same call resumes from it.
    progress
        As in `fedscaffold.run`.

    Examples
    --------
    >>> import numpy as np
    >>> import pandas as pd
    >>> import fedscaffold as fs
    >>> table = pd.DataFrame({"x": np.arange(40.0), "y": 3.0 * np.arange(40.0) + 1.0, "site": ["a", "b"] * 20})
    >>> problem = fs.data.from_frame(table, target="y", client="site", standardize=True, intercept=True)
    >>> fs.models.fit(problem, settings=fs.models.FitSettings(tolerance=0.02)).model.kind
    'ridge'
    """
    settings = settings or FitSettings()
    return run_fit(plan_fit(problem, settings), settings, checkpoint=checkpoint, progress=progress)


def run_fit(
    planned: PlannedFit,
    settings: FitSettings,
    *,
    checkpoint: str | os.PathLike[str] | None = None,
    progress: Progress = None,
    provenance: Mapping[str, Any] | None = None,
) -> Fit:
    """Run what `plan_fit` planned; `provenance` is added to the model's.

    Where rounds were planned and do not suffice, since the plan is a first-order model, a quarter more are run, up
    to twice as many in all.
    """
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "checkpoint.npz" if checkpoint is None else path_of(checkpoint)
        rounds_to_try = [planned.rounds]
        if settings.rounds is None:
            rounds_to_try = [math.ceil(planned.rounds * (1.0 + k / 4.0)) for k in range(5)]
        done = _rounds_in(file)
        for rounds in [t for t in rounds_to_try if t >= done] or rounds_to_try[-1:]:
            trace = run_method(
                planned, planned.method, rounds=rounds, seed=settings.seed, checkpoint=file, progress=progress
            )
            if _is_reached(trace, planned, settings):
                break
    ended = time.perf_counter()
    origin = {**arrays.plain(trace.provenance), "rounds": trace.rounds, "tolerance": settings.tolerance}
    closed = close_fit(planned, trace.theta[0], steps=settings.close, tolerance=settings.standard_errors)
    if closed is not None:
        origin["newton_steps"] = closed.steps
    model = planned.model(trace.theta[0] if closed is None else closed.theta, {**origin, **(provenance or {})})
    if closed is not None and has_variance(closed.sums):
        model = replace(
            model, standard_errors=summary_to_plain(summary_of(planned, closed, dispersion=settings.dispersion))
        )
    seconds = {
        "pooled model": planned.pooled_seconds, "planning": planned.planning_seconds, "running": ended - began,
        "closing": time.perf_counter() - ended,
    }  # fmt: skip
    return Fit(model=model, trace=trace, planned=planned, settings=settings, closed=closed, seconds=seconds)


def run_method(planned: PlannedFit, method: Scaffold | FedAvg, *, rounds: int, seed: int, **more: Any) -> Trace:
    """Run a method on a planned problem, and record its distances to the optimum."""
    return run(
        planned.problem, method, rounds=rounds, batch_size=planned.batch_size, seed=seed,
        record=(Mse(planned.optimum), RelativeDistance(planned.optimum)), **more,
    )  # fmt: skip


def _is_reached(trace: Trace, planned: PlannedFit, settings: FitSettings) -> bool:
    """Whether the run is as close as it aims for, with the intercept where a tolerance is in standard errors."""
    if settings.standard_errors is not None and not settings.close:
        return bool(trace.mse[0, -1] <= planned.target_mse)
    return bool(trace.metrics["relative_distance"][0, -1] <= planned.aim)


def _rounds_in(checkpoint: Path) -> int:
    """Rounds done in an earlier run; 0 where there is no checkpoint, or one that `run` will refuse."""
    try:
        return int(arrays.read(checkpoint)[1]["round"])
    except (OSError, ValueError, KeyError, TypeError):
        return 0
