"""Simulated records that are like a table of which only public facts are known."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from fedscaffold.core.types import Array
from fedscaffold.data.public import LIMIT, PublicTarget
from fedscaffold.problems import Gamma, Logistic, Multinomial, Poisson, Ridge
from fedscaffold.problems.base import expit, softmax

CORRELATION = 0.5  # of any two numbers
EXPLAINED = 0.5  # share of a numeric target's variance, for amounts of its logarithm's
LOG_ODDS = 1.5  # spread of the log odds of a class
LOG_RATE = 0.6  # spread of the logarithm of a count's mean
SHAPE = 1.0  # of the factor by which counts vary more than Poisson's law has it
WIDTHS = (1.0, 0.4, 2.0)  # spread of numbers in each table, of which a sixth of the public range is 1
RATES = (-2.0, 0.0, 1.0)  # logarithm of the mean count over the one at θ = 0, in each table
AMOUNTS = (-1.0, 0.0, 1.0)  # the same for amounts, in sixths of the range of their logarithm


def simulated_problems(
    target: PublicTarget, levels: Sequence[int], *, rows: int, l2: float, intercept: bool = True
) -> list[Any]:
    """Problems on three simulated tables: correlated numbers, and a target that depends on all columns.

    In the second one numbers fill less of their ranges, in the third more; and the mean of counts and amounts is
    not always in the middle of their range.

    Parameters
    ----------
    target
        What is known of the target.
    levels
        For each feature the number of its values; 0 for numbers, which are normal and cut off at ±3.
    rows
        Number of rows.
    l2
        Strength of the penalty; at least one over the rows, so that there is an optimum.
    intercept
        Whether a last column is 1.
    """
    rng = np.random.default_rng(0)
    more = {"l2": max(l2, 1.0 / rows), "n_unpenalised": int(intercept)}
    found = []
    for table, width in enumerate(WIDTHS):
        x = _features(levels, rows, width, rng)
        margins = x @ rng.normal(size=(x.shape[1], target.vectors))
        margins = (margins - margins.mean(axis=0)) / np.maximum(margins.std(axis=0), 1e-12)
        kind, y, own = _targets(target, margins, table, rng)
        if intercept:
            x = np.column_stack([x, np.ones(rows)])
        found.append(kind([x], [y], **more, **own))
    return found


def simulated_sites(
    target: PublicTarget, levels: Sequence[int], *, sites: int, rows: int, l2: float, difference: float
) -> Any:
    """A problem whose clients are simulated sites that differ from each other, with an intercept.

    Parameters
    ----------
    target, levels, l2
        As for `simulated_problems`; the target is a number or one of two classes.
    sites, rows
        Number of sites, and rows of each.
    difference
        How much coefficients of sites differ from those of all, in units of their size.
    """
    rng, n = np.random.default_rng(0), sites * rows
    x = _features(levels, n, 1.0, rng)
    common = rng.normal(size=x.shape[1])
    size = difference * float(np.linalg.norm(common)) / math.sqrt(x.shape[1])
    own = np.repeat(size * rng.normal(size=(sites, x.shape[1] + 1)), rows, axis=0)
    margin = x @ common + (x * own[:, :-1]).sum(axis=1) + own[:, -1]
    margin = (margin - margin.mean()) / max(float(margin.std()), 1e-12)
    kind, y, _ = _targets(target, margin[:, None], 0, rng)
    features = np.column_stack([x, np.ones(n)]).reshape(sites, rows, -1)
    return kind(features, y.reshape(sites, rows), l2=l2, n_unpenalised=1)


def _features(levels: Sequence[int], rows: int, width: float, rng: np.random.Generator) -> Array:
    """Encoded rows without an intercept."""
    common, columns = rng.normal(size=rows), []
    for count in levels:
        if count:
            columns.append(np.eye(count)[rng.integers(count, size=rows)][:, 1:])
            continue
        number = np.sqrt(CORRELATION) * common + np.sqrt(1.0 - CORRELATION) * rng.normal(size=rows)
        columns.append(np.clip(width * number, -LIMIT, LIMIT)[:, None])
    return np.column_stack(columns)


def _targets(
    target: PublicTarget, margins: Array, table: int, rng: np.random.Generator
) -> tuple[Any, Array, dict[str, Any]]:
    """Kind of problem, targets and further parameters, for margins of mean 0 and variance 1, (rows, vectors)."""
    margin, rows = margins[:, 0], len(margins)
    if target.vectors > 1:
        chances = softmax(LOG_ODDS * margins).cumsum(axis=1)
        drawn = (rng.random(rows)[:, None] > chances[:, :-1]).sum(axis=1).astype(np.float64)
        drawn[: target.vectors] = np.arange(target.vectors)  # each is there, or its intercept has no optimum
        return Multinomial, drawn, {"n_classes": target.vectors}
    if target.kind == "logistic":
        return Logistic, np.where(rng.random(rows) < expit(LOG_ODDS * margin), 1.0, -1.0), {}
    spread = np.sqrt(EXPLAINED) * margin + np.sqrt(1.0 - EXPLAINED) * rng.normal(size=rows)
    if target.kind == "ridge":
        return Ridge, spread, {}
    (low, high), offset = target.ends, {"offset": [np.full(rows, target.shift)]}
    if target.kind == "gamma":
        sixth = math.log(high / low) / (2.0 * LIMIT)
        return Gamma, np.clip(np.exp(target.shift + sixth * (AMOUNTS[table] + spread)), low, high), offset
    rate = min(math.exp(target.shift + RATES[table]), 0.5 * (low + high))
    counts = rng.poisson(rate * np.exp(LOG_RATE * margin) * rng.gamma(SHAPE, 1.0 / SHAPE, size=rows))
    counts[0] = max(counts[0], 1)  # all might be 0, which have no optimum
    return Poisson, np.clip(counts, low, high).astype(np.float64), offset


def n_coefficients(levels: Sequence[int], *, intercept: bool = True) -> int:
    """Number of coefficients, where features have so many values each; 0 for numbers."""
    return sum(count - 1 if count else 1 for count in levels) + int(intercept)
