"""What a study under a privacy budget ends with: a model, and nothing that the budget does not cover."""

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedscaffold.core import provenance
from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.files import folder_at, write_text
from fedscaffold.core.types import Array
from fedscaffold.federation.study.report.files import AGREEMENT, FORMAT, MODEL, REPORT, RESULTS, SUMMARY
from fedscaffold.federation.study.result import StudyResult
from fedscaffold.models.private.fit import ADDS_UP, NOT_MADE
from fedscaffold.models.private.planned import PublicPlan
from fedscaffold.reports.page import render

PUBLIC = (
    "Taken as public: the names and kinds of columns, their ranges and values (bounds), and the number of rows of "
    "each site. A site's rows were used in its noisy steps alone, with noise from its own operating system."
)
PUBLIC_SITES = (
    "Taken as public: the names of the sites, the names and kinds of columns, and their ranges and values "
    "(bounds). Of a site's table, its number of rows included, nothing left it but its clipped and noisy changes "
    "of the model. All sites count alike."
)
IN_PARTS = (
    "The sites' changes left them in secure sums, each with its part of the noise: the coordinator learned only "
    "their sum over all sites, and the budget relies on that. It holds as long as fewer sites than the threshold "
    "work together with the coordinator."
)
MASKED = (
    "Noisy local models left the sites in secure sums: the coordinator learned only their sum over all sites. The "
    "budget does not rely on that, it also covers each of them alone."
)


@dataclass(frozen=True, kw_only=True, eq=False)
class PrivateTraining:
    """The model that training under a budget ended with.

    Attributes
    ----------
    theta
        The model, shape (dim,).
    rounds
        Number of exchanges with all sites.
    plan
        How the budget was spent.
    notes
        What was decided and why, in sentences.
    """

    theta: Array
    rounds: int
    plan: PublicPlan
    notes: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class PrivateStudyResult(StudyResult):
    """The model of a study under a privacy budget, and what left each site.

    Its attributes are those of `StudyResult`; there is no certificate, no summary and no evaluation, which would
    need sums that the budget does not cover. Where sites are protected as a whole, `n_rows` counts each as one.
    """

    training: PrivateTraining  # type: ignore[assignment]

    @property
    def reached(self) -> bool:
        """Always False: a distance to the pooled model would need sums without noise."""
        return False

    @property
    def certified_error(self) -> dict[str, float | None]:
        """Not known: None for both bounds."""
        return {"standard_errors": None, "relative": None}

    def explain(self) -> str:
        """What the study protects, what it took as public, and what it left out, in sentences."""
        sites = self.settings.protect == "sites"
        masked = (IN_PARTS if sites else MASKED,) if self.settings.secure else ()
        public = PUBLIC_SITES if sites else PUBLIC
        return "\n".join((self.training.plan.explain(), public, *masked, NOT_MADE, ADDS_UP))

    def summary(self, *args: Any, **options: Any) -> Any:
        """Refused: standard errors would need sums that the budget does not cover."""
        raise InvalidInput(
            "standard errors need sums over the rows, which the study's privacy budget does not cover"
        )

    def report(self, path: str | os.PathLike[str]) -> None:
        """Write the coordinator's page: budget, noise, predicted error, and what left each site.

        Parameters
        ----------
        path
            An HTML file that needs no other one.
        """
        secret = self.settings.protect == "sites"
        rows = {} if secret else {site: one.n_rows for site, one in self.measured.items()}
        write_text(path, render("private_study", result=self, n_rows=rows, origin=provenance.origin()))

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write model, agreement, what was done in words, results for programs and the page to a folder."""
        out = folder_at(Path(folder))
        self.model.save(out / MODEL)
        self.agreement.save(out / AGREEMENT)
        told = {"format": FORMAT, **self.for_sites(), "settings": self.settings.to_json(), "rounds": self.rounds}
        write_text(out / RESULTS, json.dumps(told, indent=1, allow_nan=False))
        write_text(out / SUMMARY, f"{self.coefficients()}\n\n{self.explain()}\n")
        self.report(out / REPORT)

    def coefficients(self) -> str:
        """Coefficients in the tables' own units, one per line."""
        return "\n".join(f"{name}  {value}" for name, value in self.coefficient_values())

    def coefficient_values(self) -> list[tuple[str, str]]:
        """Name and value of each coefficient in the tables' own units, the intercept last."""
        return [(name, f"{value:.4g}") for name, value in self.model.named_coefficients]

    def for_sites(self) -> dict[str, Any]:
        """What all sites may have at the end, as JSON values: the model and how the budget was spent."""
        return {
            "study": self.name,
            "sites": len(self.sites),
            "rows": self.n_rows if self.settings.protect == "rows" else None,
            "privacy": self.training.plan.to_json(),
            "model": json.loads(self.model.to_json()),
        }

    def _facts(self) -> dict[str, str]:
        plan = self.training.plan
        return {
            "sites": f"{len(self.sites):,}",
            **({"rows": f"{self.n_rows:,}"} if self.settings.protect == "rows" else {}),
            "exchanges": f"{self.rounds:,}",
            "epsilon": f"{plan.epsilon:g}",
            "delta": f"{plan.delta:.2g}",
        }
