"""What the page shows, as plain values."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fedscaffold.core.types import Array

Facts = Sequence[tuple[str, str]]


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """One model of the comparison: loss, relative distance to the pooled model, metrics by name."""

    name: str
    loss: float
    distance: float
    metrics: Mapping[str, float]
    test: Mapping[str, float] | None = None


@dataclass(frozen=True, kw_only=True)
class ClientRow:
    """One client: rows by class (or in one count), losses, and losses on rows left out of the fit.

    `together` and `alone` are None where they were not computed, `alone` NaN where it has no model of its own.
    """

    name: str
    rows: tuple[int, ...]
    scaffold: float
    fedavg: float
    together: float | None = None
    alone: float | None = None


@dataclass(frozen=True, kw_only=True)
class Content:
    """Everything on the page.

    Attributes
    ----------
    distances
        ‖θ_t − θ*‖/‖θ*‖ by round, for each method.
    predicted
        The same, predicted by `theory.predict`; None where that was not computed.
    predicted_end
        What the plan predicts after the last round; None where nothing was planned.
    candidates
        Models to compare, the pooled one last.
    loss_name
        What the losses are, for captions.
    """

    title: str
    summary: str
    asked: Facts
    data: Facts
    classes: tuple[str, ...]
    clients: Sequence[ClientRow]
    plan: str
    distances: Mapping[str, Array]
    predicted: Array | None
    predicted_end: float | None
    tolerance: float
    candidates: Sequence[Candidate]
    loss_name: str
    cost: Facts
    provenance: Facts
    command: str
