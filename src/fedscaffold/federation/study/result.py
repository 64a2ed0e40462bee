"""What a study ends with."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from fedscaffold.core.display import Summarised, rounded_up
from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.types import Array
from fedscaffold.federation.agreement import Agreement
from fedscaffold.federation.study.certificate import penalty_of
from fedscaffold.federation.study.evaluate import SiteEvaluation, mean_auc
from fedscaffold.federation.study.measure import Measurements, SiteMeasurement
from fedscaffold.federation.study.report.traffic import Traffic
from fedscaffold.federation.study.settings import StudySettings
from fedscaffold.federation.study.training import TrainingResult
from fedscaffold.federation.study.training.training import RELATIVE_TOLERANCE

if TYPE_CHECKING:
    from fedscaffold.inference import Summary
    from fedscaffold.inference.covariance import Covariance
    from fedscaffold.models.model import Model


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class StudyResult(Summarised):
    """The model of a study, how close it is to the pooled one, and what left each site.

    Attributes
    ----------
    settings, agreement
        What people decided, and the encoding that sites agreed on.
    totals
        What the sites told about themselves, together.
    training
        The model on encoded columns, and its certificate.
    evaluation
        How a model that was trained without some rows predicts them, by site, or of all sites together where the
        coordinator learns only sums; empty without evaluation.
    traffic
        What arrived from each site, by phase: messages, numbers and bytes.
    log
        For each site, all messages that left it, in order; empty over a network, where each site keeps its own.
    name
        Name of the study.

    Examples
    --------
    >>> import numpy as np
    >>> import pandas as pd
    >>> import fedscaffold as fs
    >>> tables = {
    ...     site: pd.DataFrame({"x": np.arange(20.0) + k, "y": 2.0 * np.arange(20.0) + 5.0})
    ...     for k, site in enumerate(["bonn", "lyon"])
    ... }
    >>> result = fs.federation.Study(target="y", kind="ridge", evaluate=0.0).run(tables, engine="reference")
    >>> result.certified_error["relative"] < 1e-6
    True
    >>> [entry["phase"] for entry in result.log["lyon"]][:4]
    ['greet', 'prepare', 'agree', 'measure']
    """

    settings: StudySettings
    agreement: Agreement
    totals: Measurements
    training: TrainingResult
    evaluation: Mapping[str, SiteEvaluation]
    traffic: Mapping[str, Mapping[str, Traffic]] = field(default_factory=dict)
    log: Mapping[str, Sequence[Mapping[str, Any]]] = field(default_factory=dict)
    name: str = "study"

    @property
    def theta(self) -> Array:
        """θ for encoded rows, shape (dim,)."""
        return self.training.theta

    @property
    def reached(self) -> bool:
        """Whether the certified error is within the study's tolerance."""
        return self.training.reached

    @property
    def rounds(self) -> int:
        """Number of exchanges with all sites, certificates included, preparation and evaluation left out."""
        return self.training.rounds

    @property
    def certified_error(self) -> dict[str, float | None]:
        """Bounds on the distance to the pooled model, from sums over all sites.

        "standard_errors": the largest distance of a coefficient in its standard errors, None where sites gave no
        Hessians; "relative": relative to the norm, intercept left out.
        """
        found = self.training.certificate
        return {"standard_errors": found.error_in_standard_errors, "relative": found.relative_error}

    @property
    def n_rows(self) -> int:
        """Number of rows of all sites together."""
        return self.totals.n_rows

    @property
    def sites(self) -> tuple[str, ...]:
        """Names of the sites."""
        return self.totals.sites

    @property
    def measured(self) -> Mapping[str, SiteMeasurement]:
        """What each site told about itself; empty where the coordinator learns only sums."""
        return self.totals.each

    @property
    def in_standard_errors(self) -> bool:
        """Whether the tolerance was checked in standard errors, which needs sums of Hessians."""
        return self.settings.se_tolerance is not None and self.certified_error["standard_errors"] is not None

    @property
    def checked_tolerance(self) -> float:
        """What the certified error was compared with, in standard errors or relative."""
        if self.in_standard_errors and self.settings.se_tolerance is not None:
            return self.settings.se_tolerance
        return self.settings.relative_tolerance or RELATIVE_TOLERANCE

    def report(self, path: str | os.PathLike[str]) -> None:
        """Write the page about the study, one HTML file that needs no other, from what sites told.

        Parameters
        ----------
        path
            The file.
        """
        from fedscaffold.federation.study.report.files import write_report

        write_report(self, path)

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write model, agreement, summary, results for programs (JSON, Parquet) and the page to a folder.

        Parameters
        ----------
        folder
            The folder, made where it is missing.
        """
        from fedscaffold.federation.study.report.files import save

        save(self, folder)

    def for_sites(self) -> dict[str, Any]:
        """What all sites may have at the end, as JSON values: the model, its certificate and its coefficients."""
        from fedscaffold.federation.study.report.files import for_sites

        return for_sites(self)

    def summary(
        self, cov: "Covariance" = "nonrobust", *, level: float = 0.95, dispersion: float | str | None = None
    ) -> "Summary":
        """Coefficients in the tables' own units with standard errors, tests and intervals.

        Parameters
        ----------
        cov
            "nonrobust", "HC0", "HC1" or "cluster" (by site).
        level
            Confidence level of the intervals.
        dispersion
            None for the family's own, "pearson" to estimate it (quasi-Poisson regression), or a number.
        """
        from fedscaffold.inference import summarise_sums
        from fedscaffold.models.summaries import own_units

        sums = self.training.certificate.sums
        if sums is None:
            raise InvalidInput("standard errors need sums of Hessians, which not all sites allow")
        agreement = self.agreement
        units = own_units(
            agreement.encoding, target_shift=agreement.target_shift, target_scale=agreement.target_scale
        )
        return summarise_sums(
            sums, penalty_of(agreement, sums), units, cov=cov, level=level, dispersion=dispersion,
            target_scale=agreement.target_scale, feature_names=agreement.encoding.names,
        )  # fmt: skip

    @property
    def model(self) -> "Model":
        """The model in the tables' own units."""
        from fedscaffold.models.model import Model, in_own_units

        encoding = self.agreement.encoding
        vectors = np.reshape(self.theta, (encoding.n_vectors, encoding.dim))
        encoding, equations = in_own_units(
            encoding, vectors, target_shift=self.agreement.target_shift, target_scale=self.agreement.target_scale
        )
        return Model(
            encoding=encoding,
            equations=equations,
            provenance={"sites": len(self.sites)},
            client_intercepts=self.agreement.client_intercepts,
        )

    @property
    def auc(self) -> float | None:
        """Area under the ROC curve on the rows that were left out, a mean over sites; None if not defined."""
        return mean_auc(self.evaluation)

    def _facts(self) -> dict[str, str]:
        facts = {
            "sites": f"{len(self.sites):,}",
            "rows": f"{self.n_rows:,}",
            "exchanges": f"{self.rounds:,}",
            "distance to the pooled model": f"at most {rounded_up(self.training.certificate.relative_error)}",
            "tolerance": f"{self.settings.tolerance}, {'reached' if self.reached else 'NOT reached'}",
        }
        if self.auc is not None:
            facts["area under the ROC curve"] = f"{self.auc:.3f}"
        return facts

    def _title(self) -> str:
        return f"Study of {self.settings.target!r}"
