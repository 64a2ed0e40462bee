"""The content of the pages about a study and about one of its sites, as plain values."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fedscaffold.reports.page.content import CoefficientTable, Facts

Counts = Sequence[int | None]


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """How a model predicts rows of one site that it was not trained on, as far as the site told.

    Attributes
    ----------
    site
        Name of the site.
    rows
        Number of its rows in training.
    left_out
        Number of rows that were predicted; 0 where the site told nothing.
    together, alone
        Mean loss on them, of the common model and of the site's own; None where not told.
    auc
        Area under the ROC curve; None where not told, or not defined.
    calibration
        Mean predicted probability, observed share and number of rows, by bin.
    confusion
        Rows of each class (first axis) that the model takes for each (second axis), None for counts that are
        withheld; None where nothing was told.
    """

    site: str
    rows: int
    left_out: int = 0
    together: float | None = None
    alone: float | None = None
    auc: float | None = None
    calibration: Sequence[tuple[float, float, int]] = ()
    confusion: Sequence[Counts] | None = None


@dataclass(frozen=True, kw_only=True)
class PhaseTraffic:
    """Messages that left a site in one phase.

    Attributes
    ----------
    phase
        Name of the phase.
    messages, numbers, bytes
        How many messages, numbers in their vectors, and bytes.
    """

    phase: str
    messages: int
    numbers: int
    bytes: int


@dataclass(frozen=True, kw_only=True)
class HistoryPoint:
    """The error of the model after some exchanges.

    Attributes
    ----------
    exchange
        Number of exchanges with all sites.
    relative, standard_errors
        Distance to the pooled model relative to its norm, and the largest one in standard errors; None if unknown.
    certified
        Whether sums over all sites say so; otherwise it is an estimate from the latest rounds.
    method
        What brought the model there.
    """

    exchange: int
    relative: float
    standard_errors: float | None
    certified: bool
    method: str


@dataclass(frozen=True, kw_only=True)
class StudyContent:
    """Everything that the page about a study shows, all of it from what sites told.

    Attributes
    ----------
    title, summary
        Heading and first paragraph.
    request, agreed, certificate, provenance
        Names and values for the tables of these sections.
    columns
        A row of text for every column: name, how it is coded, what is imputed.
    classes
        Names of the classes; empty for a numeric target.
    loss_name
        Name of the loss, for captions.
    coefficients
        Coefficients with standard errors; None where sites gave no Hessians.
    history
        The error by exchange.
    tolerance
        What the error was to come below, in standard errors or relative.
    in_standard_errors
        Whether the tolerance is in standard errors.
    decisions
        What was decided and why, in sentences.
    sites
        How the common model serves each site.
    evaluated
        Share of rows that were left out to judge; 0 where nothing was evaluated.
    traffic
        What left each site, by phase.
    promised
        Sentences about the limits on what leaves a site.
    secure
        Whether only sums over all sites are known; then `sites` has one entry, of all together.
    """

    title: str
    summary: str
    request: Facts
    agreed: Facts
    columns: Sequence[tuple[str, str, str]]
    certificate: Facts
    provenance: Facts
    classes: tuple[str, ...]
    loss_name: str
    coefficients: CoefficientTable | None
    history: Sequence[HistoryPoint]
    tolerance: float
    in_standard_errors: bool
    decisions: Sequence[str]
    sites: Sequence[Judgement]
    evaluated: float
    traffic: Mapping[str, Sequence[PhaseTraffic]]
    promised: Sequence[str] = ()
    secure: bool = False


@dataclass(frozen=True, kw_only=True)
class SentMessage:
    """One message that left a site.

    Attributes
    ----------
    time
        When it left, in UTC; "" where that was not kept.
    phase
        The phase that it belongs to.
    bytes
        Its size.
    content
        Its values, as JSON text; the start of it where it is long.
    vectors
        Name, number of numbers and SHA-256 of each vector.
    """

    time: str
    phase: str
    bytes: int
    content: str
    vectors: Sequence[tuple[str, int, str]]


@dataclass(frozen=True, kw_only=True)
class SiteContent:
    """Everything that a site's own page shows.

    Attributes
    ----------
    title, summary
        Heading and first paragraph.
    facts
        Names and values about the study and the site.
    classes, loss_name
        As in `StudyContent`.
    judgement
        How the common model serves the site; None where nothing was evaluated.
    coefficients
        Coefficients that the coordinator sent at the end; None where it did not.
    traffic
        What left the site, by phase.
    messages
        Every message that left it, in order.
    """

    title: str
    summary: str
    facts: Facts
    classes: tuple[str, ...]
    loss_name: str
    judgement: Judgement | None
    coefficients: CoefficientTable | None
    traffic: Sequence[PhaseTraffic]
    messages: Sequence[SentMessage]
