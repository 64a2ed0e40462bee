"""The content of the pages about a study and its sites: from what sites told, and from a site's own log."""

import json
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fedscaffold.core import provenance
from fedscaffold.core.display.summaries import rounded_up
from fedscaffold.data.encoding import Category
from fedscaffold.federation.agreement import Agreement
from fedscaffold.federation.study.evaluate import SiteEvaluation
from fedscaffold.federation.study.report.traffic import Traffic
from fedscaffold.models.coefficients import coefficient_table
from fedscaffold.reports.page.content import CoefficientTable, Facts
from fedscaffold.reports.page.study_content import HistoryPoint, Judgement, PhaseTraffic, StudyContent

if TYPE_CHECKING:
    from fedscaffold.federation.study.result import StudyResult

MAX_NAMED = 12
NEGLIGIBLE = 1e-9


def study_content(result: "StudyResult") -> StudyContent:
    """Everything that the coordinator's page shows."""
    settings, agreement, training = result.settings, result.agreement, result.training
    error = error_text(result.certified_error["relative"])
    return StudyContent(
        title=f"A study of {settings.target}: {len(result.sites)} sites, one model, no pooled rows",
        summary=(
            f"{len(result.sites)} sites with {result.n_rows:,} rows in all have one model. It is certified "
            f"to be within {error} of the model that pooled rows would give, "
            f"{'within' if result.reached else 'NOT within'} the tolerance of {settings.tolerance}, after "
            f"{result.rounds:,} exchanges."
        ),
        request=_request(result),
        agreed=agreed_facts(agreement),
        columns=column_rows(agreement),
        certificate=_certificate(result),
        provenance=origin_facts(result),
        classes=tuple(map(str, agreement.encoding.classes or ())),
        loss_name=loss_name(agreement),
        coefficients=_coefficients(result),
        history=[
            HistoryPoint(
                exchange=point.exchange,
                relative=point.relative,
                standard_errors=point.standard_errors,
                certified=point.how == "certified",
                method=point.method,
            )
            for point in training.history
        ],
        tolerance=result.checked_tolerance,
        in_standard_errors=result.in_standard_errors,
        decisions=training.notes,
        sites=_judgements(result),
        secure=settings.secure,
        evaluated=settings.evaluate,
        traffic={site: phase_traffic(by_phase) for site, by_phase in result.traffic.items()},
        promised=promised(result),
    )


def _judgements(result: "StudyResult") -> list[Judgement]:
    """How the model serves each site, or all of them together where only sums are known."""
    agreement = result.agreement
    if result.settings.secure:
        return [judgement(site, result.n_rows, one, agreement) for site, one in result.evaluation.items()]
    return [
        judgement(site, one.n_rows, result.evaluation.get(site), agreement)
        for site, one in result.measured.items()
    ]


def judgement(site: str, n_rows: int, told: SiteEvaluation | None, agreement: Agreement | None) -> Judgement:
    """How the common model serves a site, from what it told; losses in the target's own units where known."""
    if told is None or told.n_rows == 0:
        return Judgement(site=site, rows=n_rows)
    scale = 1.0 if agreement is None else agreement.target_scale**2
    bins = zip(told.predicted, told.first, told.second, strict=True)
    return Judgement(
        site=site,
        rows=n_rows,
        left_out=told.n_rows,
        together=scale * told.loss,
        alone=None if told.own_loss is None else scale * told.own_loss,
        auc=told.auc,
        calibration=[(mean, b / (a + b), a + b) for mean, a, b in bins if a + b],
        confusion=told.confusion,
    )


def phase_traffic(by_phase: Mapping[str, Traffic]) -> list[PhaseTraffic]:
    """What left a site, by phase, for a table."""
    return [
        PhaseTraffic(phase=phase, messages=one.messages, numbers=one.numbers, bytes=one.bytes)
        for phase, one in by_phase.items()
    ]


def loss_name(agreement: Agreement | None) -> str:
    """Name of the loss that a study with this encoding minimises."""
    if agreement is None:
        return "loss"
    return agreement.encoding.family.loss


def error_text(value: float | None) -> str:
    """A certified error for readers; what is left after Newton steps is rounding, and only called small."""
    if value is None:
        return "not known"
    return "1e-9" if value < NEGLIGIBLE else rounded_up(value)


def _request(result: "StudyResult") -> Facts:
    settings = result.settings
    return [
        *asked(result),
        ("tolerance", str(settings.tolerance)),
        ("smallest count that a site tells", str(settings.min_cell)),
        ("share of rows left out to judge", f"{settings.evaluate:.0%}" if settings.evaluate else "none"),
        ("secure sums", secure_text(result)),
    ]


def asked(result: "StudyResult") -> Facts:
    """Name, target, model, features and penalty of a study."""
    names = [column.name for column in result.agreement.encoding.columns]
    more = f" and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else ""
    return [
        ("study", result.name),
        ("target", result.settings.target),
        ("model", str(result.settings.kind)),
        ("features", ", ".join(names[:MAX_NAMED]) + more),
        ("penalty l2", f"{result.agreement.l2:g}"),
    ]


def secure_text(result: "StudyResult") -> str:
    """Whether sums were secure, and with which threshold."""
    if not result.settings.secure:
        return "no: the coordinator sees what each site tells"
    n = len(result.sites)
    return (
        f"yes: the coordinator learned only sums over all sites; threshold {result.settings.threshold(n)} of {n}"
    )


def agreed_facts(agreement: Agreement) -> Facts:
    """Coefficients, columns and target of an agreement."""
    encoding = agreement.encoding
    facts = [("coefficients", f"{agreement.dim:,}"), ("columns", f"{len(encoding.columns):,}")]
    if encoding.classes is not None:
        return [*facts, ("classes", ", ".join(map(str, encoding.classes)))]
    if encoding.family.log_link:
        return [*facts, ("target", f"{encoding.family.target}, mean {math.exp(agreement.target_shift):.5g}")]
    return [*facts, ("target", f"centre {agreement.target_shift:.5g}, scale {agreement.target_scale:.5g}")]


def column_rows(agreement: Agreement) -> list[tuple[str, str, str]]:
    """For every column its name, how it is coded, and what is done with missing values."""
    rows = []
    for column in agreement.encoding.columns:
        if isinstance(column, Category):
            known = [str(value) for value in column.values if value is not None]
            how = f"{len(column.levels)} indicators: {', '.join(known[:MAX_NAMED])}"
            how += "" if column.reference is None else f"; reference {column.reference}"
            missing = "a value of its own" if None in column.values else "refused"
        else:
            how = f"number, centre {column.shift:.5g}, scale {column.scale:.5g}"
            missing = "refused" if column.fill is None else f"replaced by {column.fill:.5g}"
        rows.append((column.name, how, missing))
    return rows


def _certificate(result: "StudyResult") -> Facts:
    error = result.certified_error
    in_errors = error["standard_errors"]
    facts = [
        (
            "relative to the norm of the coefficients, intercept left out",
            f"at most {error_text(error['relative'])}",
        ),
        (
            "largest of a coefficient, in its standard errors",
            "not known: not all sites give Hessians" if in_errors is None else f"at most {error_text(in_errors)}",
        ),
        ("tolerance", f"{result.settings.tolerance}, {'reached' if result.reached else 'NOT reached'}"),
        ("exchanges with all sites", f"{result.rounds:,}"),
    ]
    if result.settings.se_tolerance is not None and in_errors is None:
        facts.append(("checked instead", f"a relative distance of at most {result.checked_tolerance:g}"))
    return facts


def _coefficients(result: "StudyResult") -> CoefficientTable | None:
    if result.training.certificate.sums is None:
        return None
    classes = result.agreement.encoding.classes
    notes = []
    if classes is not None:
        of = f"{classes[1]!r}" if len(classes) == 2 else "each class"
        notes.append(f"Coefficients are log odds of {of} against {classes[0]!r}.")
    return coefficient_table(result.summary(), result.agreement.encoding, notes=notes)


def promised(result: "StudyResult") -> list[str]:
    """Sentences about the limits on what leaves a site."""
    d = result.agreement.dim
    phases = [phase for by_phase in result.traffic.values() for phase in by_phase.items()]
    largest = max((one.numbers / one.messages for phase, one in phases if phase == "sums"), default=0.0)
    words = [
        "Sizes are of the messages' values and vectors, eight bytes per number; what encryption and the "
        "network add is left out."
    ]
    if result.settings.secure:
        return [
            *words,
            "Every vector left its site masked: to the coordinator it is noise, and only the sum over all sites "
            "is not. Five messages of each site make one sum; sizes include keys and encrypted shares.",
        ]
    if largest:
        words.append(
            f"A message of the certificate has at most {d * d + 2 * d:,} numbers in vectors (d² + 2d with "
            f"d = {d:,} coefficients) and three beside them; here it has {largest:,.0f} on average."
        )
    return words


def origin_facts(result: "StudyResult") -> Facts:
    """When, with which seed and versions a page was written."""
    origin = provenance.origin()
    versions = ", ".join(f"{name} {number}" for name, number in origin["versions"].items())
    return [("written", origin["finished"]), ("seed", str(result.settings.seed)), ("versions", versions)]


def plain_text(values: Any) -> str:
    """Values as JSON text that people can read."""
    return json.dumps(values, indent=1, ensure_ascii=False, default=str)


def site_rows(log: Sequence[Mapping[str, Any]]) -> int:
    """Number of rows that a site told, from its log; 0 if it told none."""
    for entry in log:
        body = entry["values"].get("body", {})
        if entry["phase"] in ("greet", "measure") and isinstance(body.get("n_rows"), int):
            return int(body["n_rows"])
    return 0
