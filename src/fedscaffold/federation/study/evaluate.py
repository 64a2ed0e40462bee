"""The last phase: how a model that was trained without some rows of each site predicts those rows.

Per site it is told: the number of rows, the mean loss of the common model and of a model fitted to the site's own
rows alone; for two classes the area under the ROC curve and a histogram of predicted probabilities, whose bins are
joined until each holds no count between 0 and `min_cell`, and from which calibration and confusion follow; for
more classes how often each was taken for which. Where one of two classes has fewer rows than `min_cell`, nothing
is told by class: the number of rows is known, so that the other class's count would tell this one's.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.files import Fields
from fedscaffold.core.types import Array, IntArray
from fedscaffold.data.encoded import EncodedLogistic, EncodedMultinomial, EncodedProblem
from fedscaffold.inference.own_intercepts import client_intercept
from fedscaffold.problems.base import OFFSET, plain_columns

MIN_ROWS_TO_SPLIT = 10  # a site with fewer rows leaves none out
BINS = 20  # of equal width in the predicted probability; half of them below 1/2

Counts = Sequence[int | None]


def rows_left_out(n_rows: int, share: float, secret: bytes) -> NDArray[np.bool_]:
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
        targets and where nothing is told by class.
    first, second
        Counts of rows of the first and of the second class in each bin.
    predicted
        Mean predicted probability of the second class in each bin.
    table
        For more than two classes, rows of each class (first axis) that the model takes for each (second axis),
        None for counts that are withheld; empty otherwise.
    """

    n_rows: int
    loss: float = 0.0
    own_loss: float | None = None
    auc: float | None = None
    edges: Sequence[float] = ()
    first: Sequence[int] = ()
    second: Sequence[int] = ()
    predicted: Sequence[float] = ()
    table: Sequence[Counts] = ()

    @property
    def confusion(self) -> Sequence[Counts] | None:
        """Rows of each class that the model takes for each; None if not told, or withheld."""
        if self.table:
            return self.table
        if 0.5 not in self.edges:
            return None
        split = list(self.edges).index(0.5)
        return [[sum(counts[:split]), sum(counts[split:])] for counts in (self.first, self.second)]

    @property
    def calibration(self) -> list[tuple[float, float, int]]:
        """Mean predicted probability of the second class, its observed share and the number of rows, by bin."""
        bins = zip(self.predicted, self.first, self.second, strict=True)
        return [(mean, b / (a + b), a + b) for mean, a, b in bins if a + b]

    @property
    def accuracy(self) -> float | None:
        """Share of rows whose class the model predicts; None where too little was told."""
        right = [row[k] for k, row in enumerate(self.confusion or ())]
        known = [count for count in right if count is not None]
        return sum(known) / self.n_rows if known and len(known) == len(right) else None

    def to_json(self) -> dict[str, Any]:
        """The evaluation as values that JSON can hold."""
        values = {name: list(v) if isinstance(v, tuple | list) else v for name, v in vars(self).items()}
        return values | {"table": [list(row) for row in self.table]}

    @classmethod
    def from_json(cls, values: Any, site: str) -> Self:
        """The evaluation that a site sent, validated field by field."""
        fields = Fields(values, f"the evaluation of site {site}")
        edges = _numbers(fields, "edges")
        count = max(len(edges) - 1, 0)
        if len(edges) > BINS + 1 or edges != sorted(edges):
            raise InvalidInput(f"the evaluation of site {site}: edges must be at most {BINS + 1} growing numbers")
        own = fields.value("own_loss")
        return cls(
            n_rows=fields.integer("n_rows", least=0, most=2**53),
            loss=fields.number("loss"),
            own_loss=None if own is None else fields.number("own_loss"),
            auc=None if fields.value("auc") is None else fields.number("auc", least=0.0, most=1.0),
            edges=edges,
            first=fields.integers("first", least=0, count=count),
            second=fields.integers("second", least=0, count=count),
            predicted=_numbers(fields, "predicted", count=count),
            table=[_row_of_counts(row, len(fields.items("table")), site) for row in fields.items("table")],
        )


def _numbers(fields: Fields, name: str, *, count: int | None = None) -> list[float]:
    """A list of probabilities."""
    items = dict(enumerate(fields.items(name, count=count)))
    each = Fields({str(k): item for k, item in items.items()}, f"{fields.source}: {name}")
    return [each.number(k, least=0.0, most=1.0) for k in each.names()]


def _row_of_counts(values: Any, count: int, site: str) -> list[int | None]:
    """A row of the table of classes."""
    row = Fields({"row": values}, f"the table of site {site}").items("row", count=count)
    each = Fields({str(k): item for k, item in enumerate(row)}, f"the table of site {site}")
    return [None if item is None else each.integer(str(k), least=0, most=2**53) for k, item in enumerate(row)]


def evaluate_site(
    left_out: EncodedProblem, training: EncodedProblem, theta: Array, *, min_cell: int
) -> SiteEvaluation:
    """Evaluate θ on the rows of a site that training left out."""
    n = int(left_out.sizes[0])
    loss, own = losses(left_out, training, theta)
    plain = SiteEvaluation(n_rows=n, loss=loss, own_loss=own)
    if isinstance(left_out, EncodedMultinomial):
        return replace(plain, table=withheld_table(class_table(left_out, theta), min_cell))
    if not isinstance(left_out, EncodedLogistic):
        return plain
    probabilities, positive, (first, second), predicted = histogram(left_out, theta)
    auc = area_under_roc(probabilities, positive) if 0 < positive.sum() < n else None
    return binned(plain, first, second, predicted, auc, min_cell=min_cell)


def losses(left_out: EncodedProblem, training: EncodedProblem, theta: Array) -> tuple[float, float | None]:
    """Mean loss of θ on rows that training left out, and of the model fitted to the site's own other rows."""
    penalty = 0.5 * float(left_out.penalty @ theta**2)
    return float(left_out.loss(theta)) - penalty, _own_loss(left_out, training)


def histogram(left_out: EncodedLogistic, theta: Array) -> tuple[Array, NDArray[np.bool_], list[IntArray], Array]:
    """Predicted probabilities of the second class and who has it; by bin, counts of both classes and sums."""
    positive = left_out.targets > 0
    probabilities = expit(left_out.record_margins(theta)[:, 0])
    bins = np.minimum((probabilities * BINS).astype(np.int64), BINS - 1)
    counts = [np.bincount(bins[rows], minlength=BINS).astype(np.int64) for rows in (~positive, positive)]
    sums: Array = np.bincount(bins, probabilities, minlength=BINS).astype(np.float64)
    return probabilities, positive, counts, sums


def binned(
    plain: SiteEvaluation, first: IntArray, second: IntArray, predicted: Array, auc: float | None, *, min_cell: int
) -> SiteEvaluation:
    """The evaluation with what is told by class, in bins without small counts; nothing if a class is small."""
    if any(0 < counts.sum() < min_cell for counts in (first, second)):
        return plain
    edges, joined = join_small_bins(first, second, min_cell)
    totals, *counts = (np.add.reduceat(each, joined[:-1]) for each in (predicted, first, second))
    return replace(
        plain,
        auc=auc,
        edges=edges,
        first=counts[0].tolist(),
        second=counts[1].tolist(),
        predicted=(totals / np.maximum(counts[0] + counts[1], 1)).tolist(),
    )


def class_table(left_out: EncodedMultinomial, theta: Array) -> IntArray:
    """Rows of each class (first axis) that θ takes for each (second axis)."""
    taken, true = left_out.record_margins(theta).argmax(axis=1), left_out.targets.astype(np.int64)
    counts = np.zeros((left_out.vectors, left_out.vectors), dtype=np.int64)
    np.add.at(counts, (true, taken), 1)
    return counts


def withheld_table(counts: IntArray, min_cell: int) -> list[Counts]:
    """Rows of each class that a model takes for each, with small counts withheld."""
    totals = withhold_small(counts.sum(axis=1), min_cell)
    return [
        [None] * len(counts) if total is None else withhold_small(row, min_cell)
        for row, total in zip(counts, totals, strict=True)
    ]


def withhold_small(counts: IntArray, min_cell: int) -> list[int | None]:
    """Counts whose sum is known, None in place of those between 0 and `min_cell`.

    Further ones are withheld, from the smallest, until what is withheld is two counts or more with a sum of
    `min_cell` or more: otherwise the sum of all would tell them.
    """
    order = [int(k) for k in np.argsort(counts, kind="stable") if counts[k] > 0]
    hidden = [k for k in order if counts[k] < min_cell]
    for k in order[len(hidden) :]:
        if not hidden or (len(hidden) > 1 and counts[hidden].sum() >= min_cell):
            break
        hidden.append(k)
    return [None if k in hidden else int(count) for k, count in enumerate(counts)]


def with_intercept_of(judged: EncodedProblem, *problems: EncodedProblem, theta: Array) -> list[EncodedProblem]:
    """Problems whose offsets hold the site's own intercept, fitted to the judged training's rows at θ.

    Where these rows are all alike, so that the best intercept is infinite, there is none.
    """
    alpha = client_intercept(judged, 0, theta) or 0.0
    made = []
    for problem in problems:
        y = np.array(plain_columns(problem.y))
        y[:, OFFSET] += alpha
        made.append(problem.with_records(y=y))
    return made


def _own_loss(left_out: EncodedProblem, training: EncodedProblem) -> float | None:
    try:
        own = training.optimum()
    except (ArithmeticError, ValueError, np.linalg.LinAlgError):
        return None
    return float(left_out.loss(own)) - 0.5 * float(left_out.penalty @ own**2)


def join_small_bins(first: IntArray, second: IntArray, min_cell: int) -> tuple[list[float], list[int]]:
    """Limits of bins joined until no count of either class lies between 0 and `min_cell`.

    Bins are joined from the left, below and above one half on their own where that is possible. Returns the limits
    as probabilities, and as positions of the bins that were given.
    """
    half, n = len(first) // 2, len(first)
    parts = [_joined(first, second, min_cell, begin, end) for begin, end in ((0, half), (half, n))]
    if any(part is None for part in parts):
        parts = [_joined(first, second, min_cell, 0, n)]
    ends = [end for part in parts for end in (part or [n])]
    return [end / n for end in (0, *ends)], [0, *ends]


def _joined(first: IntArray, second: IntArray, min_cell: int, begin: int, end: int) -> list[int] | None:
    """Right limits of the joined bins from `begin` to `end`; None if even one bin for all has a small count."""

    def sound(left: int, right: int) -> bool:
        return all(not 0 < int(counts[left:right].sum()) < min_cell for counts in (first, second))

    limits, left = [], begin
    for right in range(begin + 1, end + 1):
        if sound(left, right) and int(first[left:right].sum() + second[left:right].sum()) > 0:
            limits.append(right)
            left = right
    if left < end:  # what is left joins the last bin
        limits = [*limits[:-1], end]
    while len(limits) > 1 and not sound(limits[-2], end):
        limits = [*limits[:-2], end]
    return limits if len(limits) > 1 or sound(begin, end) else None


def area_under_roc(scores: Array, positive: NDArray[np.bool_]) -> float:
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
