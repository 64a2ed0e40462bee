"""The last phase: how a model that was trained without some rows of each site predicts those rows.

Per site it is told: the number of rows, the mean loss of the common model and of a model fitted to the site's own
rows alone, and for two classes the area under the ROC curve and a histogram of predicted probabilities, whose bins
are joined until each holds no count between 0 and `min_cell`; from it follow calibration and confusion.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from fedscaffold.core.storage.fields import Fields
from fedscaffold.core.types import Array, IntArray
from fedscaffold.data.encoded import EncodedLogistic, EncodedProblem

MIN_ROWS_TO_SPLIT = 10  # a site with fewer rows leaves none out
BINS = 200  # of equal width in the predicted probability


def rows_left_out(n_rows: int, share: float, secret: bytes) -> "np.ndarray[tuple[int], np.dtype[np.bool_]]":
    """Which rows the judged training leaves out: chosen by a secret of the site and the rows' positions."""
    if n_rows < MIN_ROWS_TO_SPLIT:
        return np.zeros(n_rows, dtype=bool)
    digest = hashlib.sha256(b"rows left out to evaluate" + secret).digest()
    uniform = np.random.Generator(np.random.Philox(key=np.frombuffer(digest[:16], np.uint64))).random(n_rows)
    left_out = uniform < share
    return left_out if not left_out.all() else np.zeros(n_rows, dtype=bool)


@dataclass(frozen=True, kw_only=True, eq=False)
class SiteEvaluation:
    """How a model predicts rows of one site that it was not trained on.

    Parameters
    ----------
    n_rows
        Number of those rows; 0 if the site tells nothing, since they are too few.
    loss
        Mean loss of the common model on them.
    own_loss
        Mean loss of the model that the site gets from its own other rows alone; None if that has no unique
        optimum.
    auc
        Area under the ROC curve at the site; None without `min_cell` rows of both classes, and for other targets.
    edges
        Limits of the bins of the predicted probability of the second class, shape (bins + 1,); empty for other
        targets.
    first, second
        Counts of rows of the first and of the second class in each bin.
    """

    n_rows: int
    loss: float = 0.0
    own_loss: float | None = None
    auc: float | None = None
    edges: Sequence[float] = ()
    first: Sequence[int] = ()
    second: Sequence[int] = ()

    def to_json(self) -> dict[str, Any]:
        """The evaluation as values that JSON can hold."""
        return {name: list(v) if isinstance(v, tuple | list) else v for name, v in vars(self).items()}

    @classmethod
    def from_json(cls, values: Any, site: str) -> Self:
        """The evaluation that a site sent, validated field by field."""
        fields = Fields(values, f"the evaluation of site {site}")
        edges = [float(e) for e in fields.items("edges") if isinstance(e, int | float)]
        count = max(len(edges) - 1, 0)
        own = fields.value("own_loss")
        return cls(
            n_rows=fields.integer("n_rows", least=0, most=2**53),
            loss=fields.number("loss"),
            own_loss=None if own is None else fields.number("own_loss"),
            auc=None if fields.value("auc") is None else fields.number("auc", least=0.0, most=1.0),
            edges=edges,
            first=fields.integers("first", least=0, count=count),
            second=fields.integers("second", least=0, count=count),
        )


def evaluate_site(
    left_out: EncodedProblem, training: EncodedProblem, theta: Array, *, min_cell: int
) -> SiteEvaluation:
    """Evaluate θ on the rows of a site that training left out."""
    n = int(left_out.sizes[0])
    penalty = 0.5 * float(left_out.penalty @ theta**2)
    loss = float(left_out.loss(theta)) - penalty
    own = _own_loss(left_out, training)
    if not isinstance(left_out, EncodedLogistic):
        return SiteEvaluation(n_rows=n, loss=loss, own_loss=own)
    probabilities = 1.0 / (1.0 + np.exp(-(left_out.x @ theta)))
    bins = np.minimum((probabilities * BINS).astype(np.int64), BINS - 1)
    positive = left_out.y > 0
    first = np.bincount(bins[~positive], minlength=BINS)
    second = np.bincount(bins[positive], minlength=BINS)
    auc = area_under_roc(probabilities, positive) if min(first.sum(), second.sum()) >= min_cell else None
    edges, first, second = join_small_bins(first, second, min_cell)
    return SiteEvaluation(
        n_rows=n, loss=loss, own_loss=own, auc=auc, edges=edges, first=first.tolist(), second=second.tolist()
    )  # fmt: skip


def _own_loss(left_out: EncodedProblem, training: EncodedProblem) -> float | None:
    try:
        own = training.optimum()
    except (ArithmeticError, ValueError, np.linalg.LinAlgError):
        return None
    return float(left_out.loss(own)) - 0.5 * float(left_out.penalty @ own**2)


def join_small_bins(first: IntArray, second: IntArray, min_cell: int) -> tuple[list[float], IntArray, IntArray]:
    """Edges and counts of bins joined from the left until no count lies between 0 and `min_cell`.

    What is left at the right end joins the last bin; if even one bin for all has a small count, that count is 0.
    """
    width = 1.0 / len(first)
    edges, a, b = [0.0], [0], [0]
    for k in range(len(first)):
        a[-1] += int(first[k])
        b[-1] += int(second[k])
        if all(count == 0 or count >= min_cell for count in (a[-1], b[-1])) and a[-1] + b[-1] > 0:
            edges.append((k + 1) * width)
            a.append(0)
            b.append(0)
    rest = a.pop(), b.pop()
    if not a:
        a, b, edges = [0], [0], [0.0, 1.0]
    a[-1] += rest[0]
    b[-1] += rest[1]
    edges[-1] = 1.0
    kept = [tuple(0 if 0 < count < min_cell else count for count in pair) for pair in zip(a, b, strict=True)]
    return edges, np.array([p[0] for p in kept]), np.array([p[1] for p in kept])


def area_under_roc(scores: Array, positive: "np.ndarray[tuple[int], np.dtype[np.bool_]]") -> float:
    """P(score of a positive row > score of a negative one), ties counted as one half."""
    ranks = np.unique(scores, return_inverse=True)[1]
    below = np.bincount(ranks[~positive], minlength=ranks.max() + 1)
    wins = np.cumsum(below) - 0.5 * below
    return float(wins[ranks[positive]].mean() / (~positive).sum())


def mean_auc(sites: Mapping[str, SiteEvaluation]) -> float | None:
    """Mean of the sites' areas under the ROC curve, weighted by their pairs of rows of different classes."""
    known = [(one.auc, sum(one.first) * sum(one.second)) for one in sites.values() if one.auc is not None]
    total = sum(pairs for _, pairs in known)
    return sum(auc * pairs for auc, pairs in known) / total if total else None
