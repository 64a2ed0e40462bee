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
from fedscaffold.models.private.sites import SitePlan
from fedscaffold.reports.page import PrivateStudyContent
from fedscaffold.reports.page.content import Facts

if TYPE_CHECKING:
    from fedscaffold.federation.study.private.result import PrivateStudyResult


def private_study_content(result: "PrivateStudyResult") -> PrivateStudyContent:
    """Everything that the coordinator's page shows."""
    plan, settings = result.training.plan, result.settings
    told = {} if settings.protect == "sites" else {site: one.n_rows for site, one in result.measured.items()}
    of_rows = f" with {sum(told.values()):,} rows in all" if told else ""
    return PrivateStudyContent(
        title=f"A study of {settings.target}: {len(result.sites)} sites, one model, {plan.protects} protected",
        summary=(
            f"{len(result.sites)} sites{of_rows} have one model. Beside public facts, all that left them is "
            f"({plan.epsilon:g}, {plan.delta:.2g})-differentially private for {plan.protects}."
        ),
        protects=plan.protects,
        request=[*asked(result), ("secure sums", secure_text(result))],
        budget=_budget(result),
        agreed=agreed_facts(result.agreement),
        provenance=origin_facts(result),
        protected=result.explain().splitlines()[1:],
        coefficients=result.coefficient_values(),
        error=_error(plan.predicted_error),
        columns=column_rows(result.agreement),
        rows=told,
        traffic={site: phase_traffic(by_phase) for site, by_phase in result.traffic.items()},
        promised=promised(result),
    )


def _budget(result: "PrivateStudyResult") -> Facts:
    plan = result.training.plan
    if isinstance(plan, SitePlan):
        return _budget_of_sites(plan)
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


def _budget_of_sites(plan: SitePlan) -> Facts:
    return [
        ("ε and δ of every site", f"{plan.epsilon:g} and {plan.delta:.2g}"),
        ("largest norm of what a site sends (clip)", f"{plan.privacy.clip:.4g}"),
        ("noise in the mean over sites", f"{plan.noise_in_mean:.3g} in every coordinate, in every round"),
        ("noise multiplier", f"{plan.privacy.noise_multiplier:.4g}"),
        ("whose parts of the noise suffice", _parts(plan)),
        ("method", f"Scaffold by sums of gradients on all rows, step size {plan.method.step_size:.4g}"),
        ("rounds and local steps", f"{plan.rounds:,} and {plan.method.local_steps:,}"),
        ("rounds that the noise would have covered besides", f"{plan.spare_rounds:,}"),
    ]


def _parts(plan: SitePlan) -> str:
    honest = plan.privacy.honest_clients
    return "each site adds all of it" if honest is None else f"those of any {honest:,} sites"


def _error(predicted: float | None) -> str:
    none = "There are no standard errors, which would need sums that the budget does not cover."
    if predicted is None:
        return f"No error is predicted, since all settings were given. {none}"
    return (
        f"Predicted before the run: an error of {math.sqrt(predicted):.0%} of the coefficients' length on "
        f"standardised columns, for simulated rows with the same columns. {none}"
    )
