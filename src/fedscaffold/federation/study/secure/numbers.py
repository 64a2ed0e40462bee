"""What sites add up in each phase, as blocks of numbers, and what the coordinator makes of the totals."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from fedscaffold.core.types import Array
from fedscaffold.data.encoded import EncodedLogistic, EncodedMultinomial, EncodedProblem
from fedscaffold.federation.agreement import Agreement
from fedscaffold.federation.secure_sum.fixed_point import Words
from fedscaffold.federation.study.certificate import COUNTS, SumsAsked
from fedscaffold.federation.study.evaluate import (
    BINS,
    SiteEvaluation,
    area_under_roc,
    binned,
    class_table,
    histogram,
    losses,
    withheld_table,
)
from fedscaffold.federation.study.measure import Measurements, SiteMeasurement
from fedscaffold.federation.study.secure.blocks import SumBlock
from fedscaffold.federation.study.secure.exact import SCALAR, highest, ladder_size, reached

SPARE = 16.0  # times what standardised columns give; beyond it the sum is repeated with a wider range
MEASURED = ("largest_site", "smoothness", "noise", "seconds_per_step")
ALL_SITES = "all sites"
JUDGED = ("rows", "loss", "rows_with_own", "own_loss", "wins", "pairs")  # sums of the evaluation

# sums at a model: for standardised columns, sums over all rows of products of two columns are at most the rows


def blocks_of_sums(asked: SumsAsked, agreement: Agreement, n_rows: int) -> list[SumBlock]:
    """The blocks of sums at a model."""
    lengths, limit = asked.lengths(agreement), SPARE * n_rows
    blocks = [SumBlock("scalars", SCALAR.limbs * len(asked.scalars))]
    blocks += [SumBlock(name, length, limit) for name, length in lengths.items()]
    if asked.scores:
        blocks.append(SumBlock("cluster_products", lengths["hessian"], limit * n_rows))
    return blocks


def numbers_of_sums(asked: SumsAsked, scalars: Mapping[str, Any], vectors: Mapping[str, Array]) -> dict[str, Any]:
    """A site's sums at a model, by block."""
    found: dict[str, Any] = {"scalars": SCALAR.encode([scalars[name] for name in asked.scalars]), **vectors}
    if asked.scores:
        gradient = vectors["gradient"]
        found["cluster_products"] = np.outer(gradient, gradient)[np.triu_indices(gradient.size)]
    return found


def sums_from(total: Mapping[str, Any], asked: SumsAsked) -> dict[str, Any]:
    """Sums over all sites by name, from the blocks' totals."""
    numbers = SCALAR.decode(total["scalars"])
    scalars = {
        name: round(value) if name in COUNTS else float(value)
        for name, value in zip(asked.scalars, numbers, strict=True)
    }
    return {**scalars, **{name: value for name, value in total.items() if name != "scalars"}}


# measurements


def blocks_of_measurements() -> list[SumBlock]:
    """A ladder for each of the four numbers of which the largest is needed."""
    return [SumBlock(name, ladder_size()) for name in MEASURED]


def numbers_of_measurements(measured: SiteMeasurement) -> dict[str, Words]:
    """A site's measurements as ladders."""
    sizes = vars(measured) | {"largest_site": float(measured.n_rows)}
    return {name: reached(sizes[name]) for name in MEASURED}


def measurements_from(total: Mapping[str, Words], sites: Sequence[str], n_rows: int) -> Measurements:
    """The largest of all sites, from the sums of ladders."""
    found: dict[str, Any] = {name: highest(total[name]) for name in MEASURED}
    return Measurements(sites=tuple(sites), n_rows=n_rows, **found)


# evaluation


def blocks_of_evaluation(agreement: Agreement, n_rows: int) -> list[SumBlock]:
    """Sums of losses and of pairs of rows, and counts: by bin of the predicted probability, or by class."""
    blocks = [SumBlock("judged", SCALAR.limbs * len(JUDGED))]
    classes = len(agreement.encoding.classes or ())
    if classes == 2:
        blocks += [SumBlock("first", BINS), SumBlock("second", BINS), SumBlock("predicted", BINS, float(n_rows))]
    elif classes:
        blocks.append(SumBlock("table", classes**2))
    return blocks


def numbers_of_evaluation(left_out: EncodedProblem, training: EncodedProblem, theta: Array) -> dict[str, Any]:
    """A site's sums over the rows that training left out."""
    n = int(left_out.sizes[0])
    loss, own = losses(left_out, training, theta)
    wins, pairs = 0.0, 0
    found: dict[str, Any] = {}
    if isinstance(left_out, EncodedLogistic):
        probabilities, positive, counts, predicted = histogram(left_out, theta)
        pairs = int(positive.sum()) * int((~positive).sum())
        wins = pairs * area_under_roc(probabilities, positive) if pairs else 0.0
        first, second = (each.astype(np.uint64) for each in counts)
        found = {"first": first, "second": second, "predicted": predicted}
    elif isinstance(left_out, EncodedMultinomial):
        found = {"table": class_table(left_out, theta).astype(np.uint64).reshape(-1)}
    judged = [n, n * loss, 0 if own is None else n, 0.0 if own is None else n * own, wins, pairs]
    return {"judged": SCALAR.encode(judged), **found}


def evaluation_from(total: Mapping[str, Any], *, min_cell: int) -> SiteEvaluation:
    """How the model predicts the rows that all sites left out; small cells of totals are joined or withheld."""
    judged = dict(zip(JUDGED, SCALAR.decode(total["judged"]), strict=True))
    n = round(judged["rows"])
    if n < max(min_cell, 1):
        return SiteEvaluation(n_rows=0)
    plain = SiteEvaluation(
        n_rows=n,
        loss=float(judged["loss"] / n),
        own_loss=float(judged["own_loss"] / n) if judged["rows_with_own"] == n else None,
    )
    if "table" in total:
        counts = total["table"].astype(np.int64)
        return replace(plain, table=withheld_table(counts.reshape(math.isqrt(counts.size), -1), min_cell))
    if "first" not in total:
        return plain
    first, second = (total[name].astype(np.int64) for name in ("first", "second"))
    auc = float(judged["wins"] / judged["pairs"]) if judged["pairs"] else None
    return binned(plain, first, second, total["predicted"], auc, min_cell=min_cell)
