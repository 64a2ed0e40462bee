"""How a model predicts rows that its training left out, from sums over the sites."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedscaffold.core.types import Array
from fedscaffold.federation.study.plan import Plan
from fedscaffold.federation.study.questions import BINS

ALL = "all sites"


@dataclass(frozen=True, kw_only=True, eq=False)
class Evaluation:
    """How a model predicts rows that it was not trained on.

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
        """Return JSON-compatible values."""
        values = {name: v.tolist() if isinstance(v, np.ndarray) else v for name, v in vars(self).items()}
        return {**values, "auc": self.auc, "accuracy": self.accuracy}


def evaluation_of(
    total: Mapping[str, Array], by_site: Mapping[str, Mapping[str, Array]], plan: Plan
) -> dict[str, Evaluation]:
    """Return the evaluation of all sites together and, of open sums, of each site with enough rows.

    Parameters
    ----------
    total
        Sums over all sites.
    by_site
        Numbers of each site; empty for secure sums.
    plan
        The plan, whose `min_cell` is the least number of rows that are shown.
    """
    found = {ALL: _evaluation(total), **{site: _evaluation(one) for site, one in by_site.items()}}
    return {name: one for name, one in found.items() if one.n_rows >= plan.min_cell}


def _evaluation(numbers: Mapping[str, Array]) -> Evaluation:
    n = round(float(numbers["rows"][0]))
    mean = float(numbers["loss"][0]) / max(n, 1)
    variance = max(float(numbers["squared loss"][0]) / max(n, 1) - mean**2, 0.0)
    table = None
    if "table" in numbers:
        K = round(numbers["table"].size ** 0.5)
        table = numbers["table"].reshape(K, K)
    histogram = numbers["histogram"].reshape(2, BINS) if "histogram" in numbers else None
    return Evaluation(
        n_rows=n, loss=mean, loss_error=(variance / max(n - 1, 1)) ** 0.5, histogram=histogram,
        predicted=numbers.get("predicted"), table=table,
    )  # fmt: skip
