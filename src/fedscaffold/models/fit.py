"""Fit a model to a table, and the result of fits and studies: a model, its certificate and standard errors."""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np

from fedscaffold.core import npz, provenance
from fedscaffold.core.checks import choice, set_fields, whole_number
from fedscaffold.core.display import Summarised, rounded_up
from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.files import folder_at, json_value, read_text, write_text
from fedscaffold.core.machine import in_file
from fedscaffold.core.protocols import Engine
from fedscaffold.core.random.stream import Batches
from fedscaffold.core.types import Array
from fedscaffold.data.encoded import EncodedProblem, problem_class
from fedscaffold.data.files import write_table
from fedscaffold.data.tables import load_pyarrow
from fedscaffold.inference import ClosingSums, Summary, summarise_sums
from fedscaffold.inference.closing import Certificate, Covariance, Dispersion, check_dispersion, has_variance
from fedscaffold.inference.random_intercepts import check_random_intercepts, variance_ratio, without_means
from fedscaffold.inference.summary import COLUMNS, summary_to_plain
from fedscaffold.inference.sums import MOST_COEFFICIENTS, ProblemSums, client_intercept
from fedscaffold.inference.training import (
    MAX_EXCHANGES,
    TOLERANCE,
    ErrorPoint,
    Trained,
    Trainer,
    aim,
    parse_tolerance,
    train,
)
from fedscaffold.methods import Scaffold
from fedscaffold.models.coding import Coding, standardize_target
from fedscaffold.models.model import Model, column_spread, in_own_units, own_units
from fedscaffold.privacy.plan import PrivatePlan
from fedscaffold.problems.cox import problems_of_training
from fedscaffold.problems.newton import PENALISE
from fedscaffold.simulation.run_method import run

ROUNDING = 1e-9  # least error that is shown: rounding differs between machines
NUMBERS_PER_SECOND = 2e8  # of a table that a local step reads, on one core; decides between Newton and Scaffold
FORMAT = "fedscaffold results 2"
MODEL, RESULTS, SUMMARY, REPORT = "model.json", "results.json", "summary.txt", "report.html"
CODING, SUMS = "coding.json", "sums.npz"
COEFFICIENTS = ("coefficients.csv", "coefficients.parquet")
FILES = (MODEL, RESULTS, SUMMARY, REPORT, CODING, SUMS, *COEFFICIENTS)
PUBLIC = {
    "rows": (
        "Taken as public: the names and kinds of columns, their ranges and values, and the number of rows. Rows "
        "were used in the noisy sums alone; each site's noise is from its own operating system."
    ),
    "sites": (
        "Taken as public: the names of the sites, and the names, kinds, ranges and values of columns. Nothing of "
        "a site's table left it but its clipped and noisy gradients, not even the number of rows. All sites count "
        "alike."
    ),
}
IN_PARTS = (
    "Each site added a part of the noise, and only the sum over all sites became known. The budget relies on "
    "that: it holds as long as fewer than a third of the sites work together with the coordinator."
)
NOT_MADE = (
    "Not made, since the budget does not cover it: standard errors, the distance to the pooled model, scores on "
    "these rows."
)
UNCOVERED = "standard errors need sums over the rows, which the privacy budget does not cover"
ADDS_UP = "Whatever else is computed from the same rows and given away adds to what is spent."


@dataclass(frozen=True, kw_only=True)
class FitSettings:
    """Settings of a fit.

    Parameters
    ----------
    trainer
        "newton", "scaffold", or "auto", which takes the one that is expected to be faster.
    tolerance
        "se:0.05": the error of optimisation of each coefficient is at most 5 % of its standard error. A number
        between 0 and 1: ‖β − β*‖ ≤ tolerance · ‖β*‖, with β the coefficients of standardised columns, intercepts
        left out.
    max_exchanges
        Most sums over all clients before training stops.
    client_intercepts
        Whether each client has an intercept, as with one indicator column per client. It is fitted with the common
        slopes and never leaves the client. "random": intercepts are draws from a normal distribution, whose
        variance is fitted by restricted likelihood; for linear regression without penalty.
    dispersion
        The factor of the variance in standard errors: None for that of the family (1 for classes and counts);
        "pearson" to estimate it, which makes that of counts a quasi-Poisson regression; or a number.
    engine
        Computes local steps of Scaffold; see `fedscaffold.run`.

    Examples
    --------
    >>> import fedscaffold as fs
    >>> fs.models.FitSettings(tolerance=0.01).trainer
    'auto'
    """

    trainer: Trainer = "auto"
    tolerance: float | str = TOLERANCE
    max_exchanges: int = MAX_EXCHANGES
    client_intercepts: bool | Literal["random"] = False
    dispersion: Dispersion = None
    engine: str | Engine = "auto"

    def __post_init__(self) -> None:
        choice("trainer", self.trainer, ("auto", "newton", "scaffold"))
        unit, number = parse_tolerance(self.tolerance)
        set_fields(
            self,
            tolerance=number if unit == "relative" else self.tolerance,
            max_exchanges=whole_number("max_exchanges", self.max_exchanges, least=1),
            dispersion=check_dispersion(self.dispersion),
        )
        choice("client_intercepts", self.client_intercepts, (True, False, "random"))
        if self.client_intercepts and self.trainer == "scaffold":
            raise InvalidInput("client_intercepts requires trainer='newton' or 'auto'")

    def to_json(self) -> dict[str, Any]:
        """Return the settings as values that JSON can hold."""
        return {name: value for name, value in vars(self).items() if name != "engine"}


class SavedSettings(dict[str, Any]):
    """Settings that were read from a folder, by name."""

    to_json = dict.copy

    def __getattr__(self, name: str) -> Any:
        if name not in self:
            raise AttributeError(name)
        return self[name]


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Fit(Summarised):
    """The result of a fit or of a study: one model, its distance to the pooled one, and standard errors.

    Parameters
    ----------
    coding
        How rows became numbers, and the penalty.
    trained
        The model on encoded columns, its certificate, and how it was trained.
    sites
        Names of the clients.
    n_rows
        Number of rows of all clients together.
    name
        Name of the fit or study.
    settings
        The settings, with a method `to_json`.
    evaluation
        How the model predicts rows that it was not trained on: by site, or metrics by name of a table.
    log
        For each site, all messages that left it, in order; empty for a fit, and if sites keep their own logs.
    received
        Messages that arrived; empty for a fit.
    notes
        Sentences about the result, besides the notes of the training.
    privacy
        How a privacy budget was spent; None without one. The certificate is then unknown.
    in_parts
        Whether sites added parts of the noise to a secure sum.
    variance_ratio
        With random intercepts, their variance over that of rows; else None.

    Examples
    --------
    >>> import numpy as np
    >>> import pandas as pd
    >>> import fedscaffold as fs
    >>> table = pd.DataFrame({"x": np.arange(40.0), "y": 3.0 * np.arange(40.0) + 1.0, "site": ["a", "b"] * 20})
    >>> fit = fs.fit(table, target="y", client="site", l2=0)
    >>> fit.reached, fit.trainer
    (True, 'newton')
    >>> fit.summary().to_frame().loc["x", "coef"].round(3)
    np.float64(3.0)
    >>> fit.model.predict(pd.DataFrame({"x": [10.0]})).round()
    array([31.])
    """

    coding: Coding
    trained: Trained
    sites: tuple[str, ...]
    n_rows: int
    name: str = "fit"
    settings: Any
    evaluation: Mapping[str, Any] = field(default_factory=dict)
    log: Mapping[str, Any] = field(default_factory=dict)
    received: Sequence[Any] = ()
    notes: tuple[str, ...] = ()
    privacy: PrivatePlan | None = None
    in_parts: bool = False
    variance_ratio: float | None = None

    @property
    def theta(self) -> Array:
        """θ for encoded rows, (dim,)."""
        return self.trained.theta

    @property
    def reached(self) -> bool:
        """Whether the certified error is within the tolerance."""
        return self.trained.reached

    @property
    def rounds(self) -> int:
        """Number of exchanges with all clients in the training, certificates included."""
        return self.trained.rounds

    @property
    def trainer(self) -> str:
        """The trainer, "newton", "scaffold", or "noisy gradients" under a privacy budget."""
        return self.trained.trainer

    @property
    def certified_error(self) -> dict[str, float | None]:
        """Distance to the pooled model, from sums over all clients.

        "standard_errors": the largest distance of a coefficient in its standard errors, None if these are not
        known; "relative": relative to the norm of the coefficients, intercepts left out, None under a budget.
        """
        found = self.trained.certificate
        relative = None if self.privacy is not None else found.relative_error
        return {"standard_errors": found.error_in_standard_errors, "relative": relative}

    @property
    def distance_text(self) -> str:
        """The certified error in words; errors below 1e-9, which are rounding, are shown as 1e-9."""
        if self.privacy is not None:
            return "not known"
        errors, relative = self.certified_error["standard_errors"], self.certified_error["relative"]
        if errors is not None:
            return f"{rounded_up(max(errors, ROUNDING))} of a standard error"
        return f"{rounded_up(max(relative or 0.0, ROUNDING))} of the coefficients' length"

    @property
    def in_standard_errors(self) -> bool:
        """Whether the tolerance was checked in standard errors."""
        unit, _ = parse_tolerance(self.settings.tolerance)
        return unit == "se" and self.certified_error["standard_errors"] is not None

    @property
    def checked_tolerance(self) -> float:
        """The number that the certified error was compared with, in standard errors or relative."""
        return aim(self.settings.tolerance, in_standard_errors=self.in_standard_errors)

    @property
    def has_standard_errors(self) -> bool:
        """Whether there are sums of Hessians, and rows enough to estimate a variance."""
        sums = self.trained.certificate.sums
        return sums is not None and has_variance(sums)

    def summary(
        self, cov: Covariance = "nonrobust", *, level: float = 0.95, dispersion: float | str | None = None
    ) -> Summary:
        """Return coefficients in the table's own units with standard errors, tests and intervals.

        Parameters
        ----------
        cov
            "nonrobust", "HC0", "HC1" or "cluster" (by client).
        level
            Confidence level of the intervals.
        dispersion
            "pearson" to estimate it, or a number; None for that of the settings.

        Returns
        -------
        Summary

        Raises
        ------
        InvalidInput
            If there are no sums of Hessians, or too few rows for these standard errors.
        """
        certificate, coding = self.trained.certificate, self.coding
        if self.privacy is not None:
            raise InvalidInput(UNCOVERED)
        if certificate.sums is None or certificate.penalty is None:
            why = "which are not allowed here"
            if coding.dim > MOST_COEFFICIENTS:
                why = f"of all {coding.dim:,} coefficients; at most {MOST_COEFFICIENTS:,} are possible"
            raise InvalidInput(f"standard errors need sums of Hessians, {why}")
        found = summarise_sums(
            certificate.sums,
            certificate.penalty,
            own_units(coding.encoding, target_shift=coding.target_shift, target_scale=coding.target_scale),
            cov=cov,
            level=level,
            dispersion=getattr(self.settings, "dispersion", None) if dispersion is None else dispersion,
            target_scale=coding.target_scale,
            feature_names=coding.encoding.names,
            notes=self._remarks(certificate.sums),
        )
        if self.variance_ratio is None:
            return found
        # least squares on changed rows: the deviation within clients is right, the likelihood is another one
        unknown = dict.fromkeys((each.name for each in fields(found.statistics)), float("nan"))
        within = found.statistics.dispersion
        facts = {
            **found.facts,
            "SD between clients": f"{(self.variance_ratio * within) ** 0.5:.5g}",
            "SD within clients": f"{within**0.5:.5g}",
        }
        return replace(
            found, facts=facts, statistics=replace(found.statistics, **{**unknown, "dispersion": within})
        )

    def _remarks(self, sums: ClosingSums) -> list[str]:
        found, classes = [], self.coding.encoding.classes
        if self.variance_ratio is not None:
            found.append("Clients have random intercepts, whose variance was fitted by restricted likelihood.")
        if self.coding.client_intercepts:
            found.append("Each client has an intercept, which is not shown and never leaves the client.")
            left_out = len(self.sites) - sums.clients
            if left_out:
                were, their = ("client was", "its") if left_out == 1 else ("clients were", "their")
                found.append(f"{left_out:,} {were} left out, since {their} target never varies.")
        if classes is not None:
            which = f"of {classes[1]!r}" if len(classes) == 2 else "of each class"
            found.append(f"Coefficients are log odds {which} against {classes[0]!r}.")
        return found

    @cached_property
    def model(self) -> Model:
        """The model in the table's own units, with standard errors if there are some."""
        coding = self.coding
        vectors = np.reshape(self.theta, (coding.encoding.n_vectors, coding.encoding.dim))
        encoding, equations = in_own_units(
            coding.encoding, vectors, target_shift=coding.target_shift, target_scale=coding.target_scale
        )
        origin: dict[str, Any] = {"name": self.name, "clients": len(self.sites), "rows": self.n_rows}
        if self.privacy is None:
            origin |= {"trainer": self.trainer, "exchanges": self.rounds, "tolerance": self.settings.tolerance}
            origin |= {"versions": provenance.versions()}
        else:
            origin = {**provenance.origin(), "privacy": self.privacy.to_json()}
        return Model(
            encoding=encoding,
            equations=equations,
            provenance=origin,
            standard_errors=summary_to_plain(self.summary()) if self.has_standard_errors else None,
            client_intercepts=coding.client_intercepts,
        )

    def report(self, path: str | os.PathLike[str]) -> None:
        """Write a page about the result, one HTML file that needs no other.

        Parameters
        ----------
        path
            The .html file to write.
        """
        from fedscaffold.reports.page import render

        summary = self.summary() if self.has_standard_errors else None
        spread = None if summary is None else column_spread(summary, self.coding.encoding)
        page = render("fit", fit=self, summary=summary, spread=spread, origin=provenance.origin())
        write_text(path, page)

    def for_sites(self) -> dict[str, Any]:
        """Return the model, its certificate and its coefficients as JSON values, which all sites may have."""
        found: dict[str, Any] = {"study": self.name, "sites": len(self.sites)}
        found["model"] = json.loads(self.model.to_json())
        if self.privacy is not None:
            return {**found, "privacy": self.privacy.to_json()}
        found |= {"rows": self.n_rows, "reached": self.reached, "certified_error": self.certified_error}
        return {**found, "summary": self.model.standard_errors}

    def explain(self) -> str:
        """Return how the model was trained, or what a privacy budget protects and left out, in sentences."""
        if self.privacy is None:
            return "\n".join(self.trained.notes)
        parts = (IN_PARTS,) if self.in_parts else ()
        return "\n".join((self.privacy.explain(), PUBLIC[self.privacy.protect], *parts, NOT_MADE, ADDS_UP))

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write the model, the coding, sums, coefficients, results for programs and the page to a folder.

        `load` reads all of it but `log` and `received`.

        Parameters
        ----------
        folder
            The folder, made if it is missing.
        """
        out, found, trained = folder_at(Path(folder)), self.trained.certificate, self.trained
        self.model.save(out / MODEL)
        self.coding.save(out / CODING)
        arrays = {each.name: getattr(found, each.name) for each in fields(found) if each.name != "sums"}
        arrays |= {} if found.sums is None else {f"sum {name}": one for name, one in found.sums.blocks().items()}
        arrays["model"] = trained.theta
        npz.write(out / SUMS, {name: np.asarray(one) for name, one in arrays.items() if one is not None}, {})
        names = (
            "tolerance",
            "dispersion",
            "evaluate",
        )  # which a plan's JSON leaves out if they are the usual ones
        used = {name: getattr(self.settings, name) for name in names if hasattr(self.settings, name)}
        results = {
            "format": FORMAT,
            "name": self.name,
            "sites": list(self.sites),
            "rows": self.n_rows,
            "reached": self.reached,
            "certified_error": self.certified_error,
            "rounds": self.rounds,
            "trainer": self.trainer,
            "summary": self.model.standard_errors,
            "privacy": None if self.privacy is None else dict(vars(self.privacy)),
            "in_parts": self.in_parts,
            "variance_ratio": self.variance_ratio,
            "settings": {**used, **self.settings.to_json()},
            "training": list(trained.notes),
            "notes": list(self.notes),
            "history": [vars(point) for point in trained.history],
            "evaluation": {
                name: one if isinstance(one, Mapping) else one.to_json() for name, one in self.evaluation.items()
            },
        }
        write_text(out / RESULTS, json.dumps(results, indent=1, allow_nan=False))
        if not self.has_standard_errors:
            values = "\n".join(f"{name}  {value:.4g}" for name, value in self.model.named_coefficients)
            write_text(out / SUMMARY, f"{values}\n\n{self.explain()}\n")
        else:
            summary = self.summary()
            write_text(out / SUMMARY, f"{summary}\n")
            columns = {"coefficient": summary.names} | {name: getattr(summary, name) for name in COLUMNS}
            for name in COEFFICIENTS:
                write_table(load_pyarrow().table(columns), out / name)
        self.report(out / REPORT)

    def _facts(self) -> dict[str, str]:
        facts = {"model": self.model.kind, "clients": f"{len(self.sites):,}"}
        if self.privacy is not None:
            epsilon, delta = f"{self.privacy.epsilon:g}", f"{self.privacy.delta:.2g}"
            return {**facts, "rounds": f"{self.rounds:,}", "epsilon": epsilon, "delta": delta}
        return {
            **facts,
            "rows": f"{self.n_rows:,}",
            "trainer": f"{self.trainer}, {self.rounds:,} exchanges",
            "distance to the pooled model": f"at most {self.distance_text}",
            "tolerance": f"{self.settings.tolerance}, {'reached' if self.reached else 'NOT reached'}",
        }

    def _title(self) -> str:
        return f"{'Fit' if self.privacy is None else 'Private fit'} of {self.coding.encoding.target!r}"


def load(folder: str | os.PathLike[str]) -> Fit:
    """Read a fit or study that `Fit.save` wrote, for example to ask it for another covariance.

    Parameters
    ----------
    folder
        The folder.

    Returns
    -------
    Fit
        Without `log` and `received`, which are not saved.

    Raises
    ------
    InvalidInput
        If the folder does not hold a result of this version, or its files do not belong together.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> import pandas as pd
    >>> import fedscaffold as fs
    >>> rng = np.random.default_rng(0)
    >>> table = pd.DataFrame({"x": rng.normal(size=90), "y": rng.normal(size=90), "site": ["a", "b", "c"] * 30})
    >>> fitted = fs.fit(table, target="y", client="site", l2=0)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     fitted.save(folder)
    ...     again = fs.models.load(folder)
    >>> bool((again.summary("HC1").se == fitted.summary("HC1").se).all())
    True
    """
    out = Path(folder)
    coding = Coding.load(out / CODING)
    try:
        results = json_value(read_text(out / RESULTS, "the results"))
        if not isinstance(results, dict) or results.get("format") != FORMAT:
            raise InvalidInput(f"{out / RESULTS} was not written by this version of fedscaffold")
        arrays, _ = npz.read(out / SUMS)
        theta, kind = arrays.pop("model"), problem_class(coding.encoding).kind
        blocks = {name[4:]: arrays.pop(name) for name in list(arrays) if name.startswith("sum ")}
        sums = ClosingSums.of_blocks(kind, arrays["theta"], blocks) if blocks else None
        found: dict[str, Any] = {name: one if one.ndim else one.item() for name, one in arrays.items()}
        privacy = results["privacy"]
        trained = Trained(
            theta=theta,
            certificate=Certificate(sums=sums, **found),
            reached=results["reached"],
            rounds=results["rounds"],
            trainer=results["trainer"],
            notes=tuple(results["training"]),
            history=tuple(ErrorPoint(**point) for point in results["history"]),
        )
        return Fit(
            coding=coding,
            trained=trained,
            sites=tuple(results["sites"]),
            n_rows=results["rows"],
            name=results["name"],
            settings=SavedSettings(results["settings"]),
            evaluation=results["evaluation"],
            notes=tuple(results["notes"]),
            privacy=None if privacy is None else PrivatePlan(**privacy),
            in_parts=results["in_parts"],
            variance_ratio=results.get("variance_ratio"),
        )
    except (OSError, ValueError, TypeError, KeyError) as error:
        if isinstance(error, InvalidInput):
            raise
        raise InvalidInput(f"{out} does not hold a fit that fedscaffold wrote: {error}") from None


def fit(problem: EncodedProblem, *, settings: FitSettings | None = None, name: str = "fit") -> Fit:
    """Fit a model to the problem of a table: a study whose clients are all in this process.

    Parameters
    ----------
    problem
        From `fedscaffold.models.open_problem`, or from `fedscaffold.data.from_frame` and its relatives.
    settings
        Trainer, tolerance and standard errors.
    name
        Name of the fit.

    Returns
    -------
    Fit

    Raises
    ------
    InvalidInput
        If the table does not determine the coefficients; the message names the columns.

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
    if problem.l2 == 0.0 and problem.n_records <= problem.dim and problem.encoding.family.dispersion:
        raise InvalidInput(
            f"there are {problem.n_records:,} rows for {problem.dim:,} coefficients, so nothing is left to "
            f"estimate the variance from; use fewer columns or more rows, or {PENALISE}"
        )
    standardized, shift, scale = standardize_target(problem)
    own, ratio = settings.client_intercepts is True, None
    if settings.client_intercepts == "random":
        check_random_intercepts(standardized)
        ratio = variance_ratio(standardized)
        standardized = without_means(standardized, ratio)
    if problem.encoding.family.baseline:
        problems = problems_of_training(settings.trainer, client_intercepts=own)
        if problems:
            raise InvalidInput("; ".join(problems))
    if own:
        standardized = without_intercept(standardized)
    sums = LocalSums(
        standardized, names=standardized.encoding.names, n_intercepts=standardized.n_unpenalised,
        client_intercepts=own, engine=settings.engine,
    )  # fmt: skip
    trained = train(
        sums, trainer=settings.trainer, tolerance=settings.tolerance, max_exchanges=settings.max_exchanges
    )
    return Fit(
        coding=Coding.of_problem(standardized, target_shift=shift, target_scale=scale, client_intercepts=own),
        trained=trained,
        sites=tuple(map(str, problem.client_names)),
        n_rows=problem.n_records,
        name=name,
        settings=settings,
        variance_ratio=ratio,
    )


class LocalSums(ProblemSums):
    """The sums of all clients of a problem in this process; see `inference.training.Sums`.

    Parameters
    ----------
    problem, more
        As for `ProblemSums`.
    engine
        Computes local steps; see `fedscaffold.run`.
    """

    exchange_seconds = 1e-3  # of sums in this process, apart from the clients' work

    def __init__(self, problem: Any, *, engine: str | Engine = "auto", **more: Any) -> None:
        super().__init__(problem, **more)
        self.engine = engine
        self.hessians = self.dim <= MOST_COEFFICIENTS
        self.step_seconds = float(problem.x.size) / NUMBERS_PER_SECOND
        self._control_variates: Array | None = None

    @cached_property
    def smoothness(self) -> float:
        """The largest curvature L_c of any client's loss."""
        return float(self.problem.smoothness(Batches()))

    def gradient(self, theta: Array) -> tuple[Array, float]:
        """Return ∇f(θ) and f(θ)."""
        return self.problem.gradient(theta), float(self.problem.loss(theta))

    def scaffold_round(self, theta: Array, step_size: float, local_steps: int) -> Array:
        """Return the model after one round of Scaffold on all rows of each client."""
        trace = run(
            self.problem, Scaffold(step_size=step_size, local_steps=local_steps), rounds=1, theta0=theta,
            control_variates0=self._control_variates, engine=self.engine, record=(),
        )  # fmt: skip
        self._control_variates = trace.control_variates[0]
        return trace.theta[0]


def without_intercept(problem: EncodedProblem) -> EncodedProblem:
    """Return the problem of slopes alone, to which each client adds an intercept.

    Raises
    ------
    InvalidInput
        If there are more than two classes, no feature besides the intercept, or no client whose target varies, or
        if the table lies in a file.
    """
    if problem.vectors > 1:
        raise InvalidInput("client_intercepts does not support more than two classes")
    if in_file(problem.x):
        raise InvalidInput("client_intercepts requires a table that is held in memory")
    if problem.encoding.intercept:
        if problem.n_features == 1:
            raise InvalidInput("there is no feature besides the intercept")
        made = problem.with_records(x=np.ascontiguousarray(problem.x[:, :-1]), n_unpenalised=0)
        made.encoding = replace(problem.encoding, intercept=False)
        problem = made
    zero = np.zeros(problem.dim)
    if all(client_intercept(problem, c, zero) is None for c in range(problem.n_clients)):
        raise InvalidInput(
            f"the target {problem.encoding.target!r} varies in no client, so slopes have no meaning"
        )
    return problem
