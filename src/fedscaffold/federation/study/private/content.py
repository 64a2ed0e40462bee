"""The content of the page about a study under a privacy budget: nothing that the budget does not cover."""

import math
from typing import TYPE_CHECKING

from fedscaffold.federation.study.report.content import (
    agreed_facts,
    asked,
    column_rows,
    origin_facts,
    phase_traffic,
    promised,
    secure_text,
)
from fedscaffold.reports.page import PrivateStudyContent
from fedscaffold.reports.page.content import Facts

if TYPE_CHECKING:
    from fedscaffold.federation.study.private.result import PrivateStudyResult


def private_study_content(result: "PrivateStudyResult") -> PrivateStudyContent:
    """Everything that the coordinator's page shows."""
    plan, settings = result.training.plan, result.settings
    return PrivateStudyContent(
        title=f"A study of {settings.target}: {len(result.sites)} sites, one model, every row protected",
        summary=(
            f"{len(result.sites)} sites with {result.n_rows:,} rows in all have one model. Beside public facts, "
            f"all that left them is ({plan.epsilon:g}, {plan.delta:.2g})-differentially private for every row."
        ),
        request=[*asked(result), ("secure sums", secure_text(result))],
        budget=_budget(result),
        agreed=agreed_facts(result.agreement),
        provenance=origin_facts(result),
        protected=result.explain().splitlines()[1:],
        coefficients=result.coefficient_values(),
        error=_error(plan.predicted_error),
        columns=column_rows(result.agreement),
        rows={site: one.n_rows for site, one in result.measured.items()},
        traffic={site: phase_traffic(by_phase) for site, by_phase in result.traffic.items()},
        promised=promised(result),
    )


def _budget(result: "PrivateStudyResult") -> Facts:
    plan = result.training.plan
    smallest = min(one.n_rows for one in result.measured.values())
    each = plan.privacy.noise / smallest
    return [
        ("ε and δ of every row", f"{plan.epsilon:g} and {plan.delta:.2g}"),
        ("largest norm of a row's gradient (clip)", f"{plan.privacy.clip:.4g}"),
        ("noise in the sum of a step's gradients", f"{plan.privacy.noise_multiplier:.4g} times the clip"),
        ("the same in the mean gradient of the smallest site", f"{each:.3g} in every coordinate"),
        ("method", f"Scaffold on all rows, step size {plan.method.step_size:.4g}"),
        ("rounds and local steps", f"{plan.rounds:,} and {plan.method.uniform_local_steps:,}"),
        ("noisy steps of each site", f"{plan.steps:,}"),
        ("rounds that the noise would have covered besides", f"{plan.spare_rounds:,}"),
    ]


def _error(predicted: float | None) -> str:
    none = "There are no standard errors, which would need sums that the budget does not cover."
    if predicted is None:
        return f"No error is predicted, since all settings were given. {none}"
    return (
        f"Predicted before the run: an error of {math.sqrt(predicted):.0%} of the coefficients' length on "
        f"standardised columns, for simulated rows of the same number and columns. {none}"
    )
