"""`Study`: the choices of a study, and its run in one process; `conduct` runs it over any transport."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.protocols import Engine
from fedscaffold.core.types import Array
from fedscaffold.data import tables
from fedscaffold.data.files import read_table
from fedscaffold.federation.client.store import MemoryStore
from fedscaffold.federation.study.coordinator import Coordinator, Totals
from fedscaffold.federation.study.plan import Column, StudyPlan, StudySettings
from fedscaffold.federation.study.questions import BINS
from fedscaffold.federation.study.site import SiteRules, StudySite
from fedscaffold.federation.study.status import StatusBoard
from fedscaffold.federation.study.transport import InProcess, Journal, SiteProblems, Transport
from fedscaffold.inference.training import train
from fedscaffold.models.fit import Fit

StudyResult = Fit  # a fit is a study in one process
ALL = "all sites"  # name of the evaluation of all sites together


def conduct(
    plan: StudyPlan,
    transport: Transport,
    *,
    keys: Mapping[str, str] | None = None,
    folder: str | os.PathLike[str] | None = None,
    board: StatusBoard | None = None,
    save: Callable[[Fit], None] = lambda result: None,
) -> Fit:
    """Conduct a study over a transport, from nothing but the sites' answers.

    Parameters
    ----------
    plan
        The plan.
    transport
        Carries messages to the sites.
    keys
        Public keys of the sites that people accepted; None to take the keys that the sites send, in one process.
    folder
        The coordinator's folder, in which every exchange is kept: the same call continues a study that was
        stopped, to the same bits. None keeps nothing.
    board
        Shows how the study stands.
    save
        save(result) is called before the sites are sent the result, after which they may leave.

    Returns
    -------
    Fit
        The model and its certificate.

    Raises
    ------
    SiteProblems
        If a site does not accept the plan or does not answer.
    InvalidInput
        If the data do not determine the model.
    """
    board = board or StatusBoard(folder, plan)
    journal = Journal(transport, None if folder is None else Path(folder) / "exchanges", board.exchanged)
    coordinator = Coordinator(plan, journal, keys=keys, on_phase=board.phase)
    with board.watch():
        coordinator.begin()
        result = _trained(coordinator, board)
        save(result)
        coordinator.finish(result.for_sites())
    return result


def _trained(coordinator: Coordinator, board: StatusBoard) -> Fit:
    plan = coordinator.plan
    if plan.epsilon is not None:
        from fedscaffold.federation.study.private import trained_within_budget

        return trained_within_budget(coordinator, board)
    board.phase("train")
    totals = Totals(coordinator)
    choices: Any = {name: getattr(plan, name) for name in ("trainer", "tolerance", "max_exchanges")}
    trained = train(totals, **choices, look=board.error)
    for note in trained.notes:
        board.note(note)
    evaluation: Mapping[str, Evaluation] = {}
    if plan.evaluate:
        board.phase("evaluate")
        without = train(Totals(coordinator, judged=True), **choices, start=trained.theta)
        total = coordinator.ask("evaluate", without.theta)
        evaluation = evaluation_of(total, coordinator.by_site, plan)
    sums = trained.certificate.sums
    return Fit(
        name=plan.name,
        settings=plan,
        coding=totals.coding,
        trained=trained,
        sites=plan.sites,
        n_rows=sums.rows if sums is not None else plan.rows or 0,
        evaluation=evaluation,
        received=tuple(coordinator.received),
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class Evaluation:
    """Predictions of a model for rows that it was not trained on.

    Parameters
    ----------
    n_rows
        Number of those rows.
    loss, loss_error
        Mean loss and its standard error.
    histogram
        For two classes, rows of the first and of the second class by bin of the predicted probability, (2, bins).
    predicted
        Sum of predicted probabilities by bin, (bins,).
    table
        For more classes, rows of each class (first axis) that the model takes for each (second axis).
    """

    n_rows: int
    loss: float
    loss_error: float
    histogram: Array | None = None
    predicted: Array | None = None
    table: Array | None = None

    @property
    def auc(self) -> float | None:
        """Area under the ROC curve, rows of one bin counted as ties; None without rows of both classes."""
        if self.histogram is None or not self.histogram.sum(axis=1).all():
            return None
        first, second = self.histogram
        below = np.cumsum(first) - first
        return float((second * (below + 0.5 * first)).sum() / (first.sum() * second.sum()))

    @property
    def accuracy(self) -> float | None:
        """Share of rows whose class the model predicts; None for numbers."""
        if self.table is not None:
            return float(np.trace(self.table) / max(self.table.sum(), 1))
        if self.histogram is None:
            return None
        half = self.histogram.shape[1] // 2
        right = self.histogram[0, :half].sum() + self.histogram[1, half:].sum()
        return float(right / max(self.histogram.sum(), 1))

    @property
    def calibration(self) -> list[tuple[float, float, int]]:
        """Mean predicted probability, observed share of the second class, and rows, by bin."""
        if self.histogram is None or self.predicted is None:
            return []
        rows = self.histogram.sum(axis=0)
        return [
            (float(self.predicted[k] / rows[k]), float(self.histogram[1, k] / rows[k]), int(rows[k]))
            for k in np.flatnonzero(rows)
        ]

    def to_json(self) -> dict[str, Any]:
        """Return the evaluation as JSON-compatible values."""
        values = {name: v.tolist() if isinstance(v, np.ndarray) else v for name, v in vars(self).items()}
        return {**values, "auc": self.auc, "accuracy": self.accuracy, "calibration": self.calibration}


def evaluation_of(
    total: Mapping[str, Array], by_site: Mapping[str, Mapping[str, Array]], plan: StudyPlan
) -> dict[str, Evaluation]:
    """Return the evaluation from sums over all sites and, of open sums, from each site's with enough rows."""
    found = {}
    for name, numbers in {ALL: total, **by_site}.items():
        n = round(float(numbers["rows"][0]))
        mean = float(numbers["loss"][0]) / max(n, 1)
        variance = max(float(numbers["squared loss"][0]) / max(n, 1) - mean**2, 0.0)
        K = round(numbers["table"].size ** 0.5) if "table" in numbers else 0
        one = Evaluation(
            n_rows=n, loss=mean, loss_error=(variance / max(n - 1, 1)) ** 0.5,
            histogram=numbers["histogram"].reshape(2, BINS) if "histogram" in numbers else None,
            predicted=numbers.get("predicted"), table=numbers["table"].reshape(K, K) if K else None,
        )  # fmt: skip
        if n >= plan.min_cell:
            found[name] = one
    return found


class Study(StudySettings):
    """A study: one model for sites that keep their tables.

    It has the parameters of `StudySettings`, and a name. `run` conducts it with all sites in this process.

    Parameters
    ----------
    name
        Name of the study.

    Examples
    --------
    >>> import numpy as np
    >>> import pandas as pd
    >>> import fedscaffold as fs
    >>> rng = np.random.default_rng(0)
    >>> def visits(n):
    ...     age = rng.normal(50, 10, n)
    ...     return pd.DataFrame({"age": age, "ill": rng.random(n) < 1 / (1 + np.exp(-(age - 50) / 10))})
    >>> study = fs.federation.Study(target="ill", kind="logistic")
    >>> tables = {"bonn": visits(200), "lyon": visits(300), "oslo": visits(100)}
    >>> result = study.run(tables)
    >>> result.reached
    True
    """

    name: str = "study"

    def plan_for(self, sites: Mapping[str, Any]) -> StudyPlan:
        """Return the plan of the study for some sites, from names and types of their columns, not their rows.

        Under a privacy budget of rows, their number is public and in the plan.

        Parameters
        ----------
        sites
            A table for each site's name.
        """
        given = {
            name: getattr(self, name) for name in StudySettings.model_fields if name not in ("features", "ignore")
        }
        values: dict[str, Any] = {**given, "name": self.name, "sites": tuple(sites)}
        if self.epsilon is not None:
            values |= self._public_numbers(sites)
        if self.target in self.columns:
            usual = "logistic" if self.columns[self.target].type == "category" else "ridge"
            return StudyPlan(**{**values, "kind": self.kind or usual})
        kinds = _column_kinds(next(iter(sites.values())))
        left_out = {*self.ignore, *self.record_columns.values()}
        features = self.features or [name for name in kinds if name not in left_out and name != self.target]
        missing = [name for name in (*features, self.target) if name not in kinds]
        if missing:
            raise InvalidInput(f"the tables have no column {tables.some(missing)}; they have {tables.some(kinds)}")
        strange = [name for name in self.categorical if name not in features]
        if strange:
            raise InvalidInput(f"categorical names {tables.some(strange)}, which is not a feature of the study")
        kind = self.kind or ("logistic" if kinds[self.target] == "category" or self.event else "ridge")
        columns = {}
        for name in (*features, self.target):
            category = name in self.categorical or kinds[name] == "category"
            category = kind == "logistic" if name == self.target else category
            columns[name] = self.columns.get(name, Column(type="category" if category else "number"))
        return StudyPlan(**{**values, "kind": kind, "columns": columns, "categorical": ()})

    def _public_numbers(self, sites: Mapping[str, Any]) -> dict[str, Any]:
        """Return the number of rows, if they are protected, and δ: by default a tenth of one over either."""
        if self.protect == "sites":
            return {"delta": 0.1 / len(sites) if self.delta is None else self.delta}
        rows = sum(tables.arrow_table(table, [self.target]).num_rows for table in sites.values())
        return {"rows": rows, "delta": 0.1 / rows if self.delta is None else self.delta}

    def run(
        self,
        sites: Mapping[str, Any],
        *,
        seed: int = 0,
        rules: SiteRules | None = None,
        engine: str | Engine = "auto",
        folder: str | os.PathLike[str] | None = None,
    ) -> Fit:
        """Conduct the study with all sites in this process: the result that a network would give.

        Parameters
        ----------
        sites
            A table for each site's name: a frame of any library that `data.from_frame` takes, or the path of a
            .csv or .parquet file.
        seed
            Decides which rows are left out to judge the model; the same seed gives the same result.
        rules
            Limits of the sites; by default the limits of the study itself.
        engine
            Computes local steps; see `fedscaffold.run`.
        folder
            The coordinator's folder; see `conduct`.

        Returns
        -------
        Fit
            The model, its certificate, and all that the coordinator received.
        """
        read = {
            str(name): read_table(table) if isinstance(table, str | os.PathLike) else table
            for name, table in sites.items()
        }
        plan = self.plan_for(read)
        limits = rules or SiteRules(
            min_cell=plan.min_cell, min_rows=1, min_sites=2, max_exchanges=plan.max_exchanges
        )
        members = {
            name: StudySite(
                name=name, table=table, rules=limits, engine=engine,
                store=MemoryStore(f"site {k} of seed {seed}".encode()),
            )
            for k, (name, table) in enumerate(read.items())
        }  # fmt: skip
        for site in members.values():
            problems = site.problems(plan)
            if problems:
                raise InvalidInput(f"site {site.name}: {'; '.join(problems)}")
        try:
            result = conduct(plan, InProcess(members), folder=folder)
        except SiteProblems as error:  # whose people are the ones who called this
            logs = {
                site: [str(one.get("text")) for one in members[site].store.audit.read()] for site in error.codes
            }
            raise SiteProblems(
                {site: f"site {site}: {log[-1]}" for site, log in logs.items()}, error.codes
            ) from None
        return replace(result, log={name: site.log for name, site in members.items()})


def _column_kinds(table: Any) -> dict[str, str]:
    """Return "number" or "category" for each column of a table, by its type alone."""
    names = tables.frame_source(table).names
    tables.check_names(names)
    schema = tables.arrow_schema(table, list(names))
    found = {}
    for name in names:
        kind = schema.field(name).type
        text = tables.is_text(kind) or tables.is_dictionary(kind)
        found[name] = "category" if text else "number"
    return found
