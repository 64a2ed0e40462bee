"""The content of pages, as plain values."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fedscaffold.core.types import Array

Facts = Sequence[tuple[str, str]]


@dataclass(frozen=True, kw_only=True)
class ModelRow:
    """A row of the table of models.

    Attributes
    ----------
    name
        For example "Scaffold".
    loss
        Loss on all rows, in the target's own units.
    distance
        ‖β − β*‖ / ‖β*‖, relative distance to the pooled model's coefficients.
    metrics
        Metrics on all rows, by name.
    test
        Metrics on the test rows, by name; None if there are no test rows.
    """

    name: str
    loss: float
    distance: float
    metrics: Mapping[str, float]
    test: Mapping[str, float] | None = None

    @property
    def distance_text(self) -> str:
        """The distance with two digits; what is left after Newton steps is rounding, and only called small."""
        return "< 1e-9" if 0.0 < self.distance < 1e-9 else f"{self.distance:.2g}"


@dataclass(frozen=True, kw_only=True)
class ClientRow:
    """A row of the table of clients.

    Attributes
    ----------
    name
        Name of the client.
    rows
        Its number of rows in each class, or in all for a numeric target.
    scaffold, fedavg
        Loss of these models on its rows, with penalty.
    common, local
        Loss on rows left out of the fit, of the common model and of the client's own; None where they were not
        computed, `local` NaN where the client has no model of its own.
    """

    name: str
    rows: tuple[int, ...]
    scaffold: float
    fedavg: float
    common: float | None = None
    local: float | None = None


@dataclass(frozen=True, kw_only=True)
class CoefficientRow:
    """A row of the table of coefficients.

    Attributes
    ----------
    name
        Name of the coefficient.
    cells
        Text of the table's other columns.
    effect, low, high
        Effect of one standard deviation of the column, or of a category against its reference, with its interval;
        NaN for intercepts, which are not drawn.
    """

    name: str
    cells: tuple[str, ...]
    effect: float
    low: float
    high: float


@dataclass(frozen=True, kw_only=True)
class CoefficientTable:
    """Coefficients with their standard errors, as a table and a drawing show them.

    Attributes
    ----------
    rows
        A row for every coefficient.
    columns
        Names of the table's columns after the first.
    scale
        What the effects in the drawing are measured in.
    notes
        Sentences about the standard errors.
    """

    rows: Sequence[CoefficientRow]
    columns: tuple[str, ...]
    scale: str
    notes: Sequence[str] = ()


@dataclass(frozen=True, kw_only=True)
class Page:
    """A page of any kind: what `render` takes.

    Attributes
    ----------
    title, summary
        Heading and first paragraph.
    sections
        Pieces of HTML from `elements.section`.
    """

    title: str
    summary: str
    sections: Sequence[str]


@dataclass(frozen=True, kw_only=True)
class ReportContent:
    """Everything that the page about a fit shows.

    Attributes
    ----------
    title, summary
        Heading and first paragraph.
    request, data, cost, provenance
        Names and values for the tables of these sections.
    classes
        Names of the classes; empty for a numeric target.
    clients
        A row for every client.
    plan
        Paragraphs about the plan, one per line.
    distances
        ‖β_t − β*‖/‖β*‖ by round, for each method; β are the coefficients without the intercept.
    predicted
        What the plan predicted, intercept included, for the rounds that it has; None where nothing was planned.
    tolerance
        Relative distance that the fit aimed for.
    models
        A row for every model that is compared, the pooled one last.
    loss_name
        Name of the loss, for captions.
    command
        How to make the same fit again.
    coefficients
        Coefficients with standard errors; None where there are none.
    time
        Phases of the fit and how long they took.
    """

    title: str
    summary: str
    request: Facts
    data: Facts
    classes: tuple[str, ...]
    clients: Sequence[ClientRow]
    plan: str
    distances: Mapping[str, Array]
    predicted: Array | None
    tolerance: float
    models: Sequence[ModelRow]
    loss_name: str
    cost: Facts
    provenance: Facts
    command: str
    coefficients: CoefficientTable | None = None
    time: Facts = ()
