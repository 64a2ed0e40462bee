"""What the study shows, as claims with what was measured, and as numbers for the documentation."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedscaffold.benchmarking.costs import LineFit
from fedscaffold.core.storage.files import write_frame
from fedscaffold.core.types import Array
from fedscaffold.paper.acceleration.cells import (
    FEDLIN,
    LONG,
    RECIPES,
    SHORT,
    SKIP,
    AccelerationSettings,
    problem_of,
)
from fedscaffold.paper.acceleration.figure import draw
from fedscaffold.paper.acceleration.measure import Line, Point, line, to_frame
from fedscaffold.paper.acceleration.proof import enough_rounds
from fedscaffold.paper.claims import Claim, save_claims

EXPONENT = 0.1  # how far a measured exponent may be from the claimed one
CLOSE = 0.15  # measured over predicted rounds
LEVEL = 1.5  # most over fewest rounds where they are said not to depend on N
LARGE_ROOT = 16.0  # √κ; with less, FedLin's local models have no room to go too far
FLATTENED = 3.0  # from a thousand to ten thousand clients, where 1/N would give 10
NAMES = {SHORT: "scaffold_short", LONG: "scaffold_long", SKIP: "proxskip", FEDLIN: "fedlin"}


def claims(points: Sequence[Point], settings: AccelerationSettings) -> list[Claim]:
    """Every claim of the page about the paper's open question."""
    by_condition = {recipe: line(points, "condition", recipe) for recipe in RECIPES}
    return [
        _exponent("Scaffold with γHL = √κ: rounds grow as √κ", by_condition[LONG], 0.5),
        _exponent("Scaffold with γHL = 1: rounds grow as κ", by_condition[SHORT], 1.0),
        _exponent("ProxSkip: rounds grow as √κ", by_condition[SKIP], 0.5),
        _exponent("FedLin with γHL = 1: rounds grow as κ", by_condition[FEDLIN], 1.0),
        _fedlin_is_bounded(points, settings),
        _below_proved(points, settings),
        _exponent("Scaffold with γHL = √κ: gradients per client fall as 1/N", line(points, "clients", LONG), -1.0),
        _same_rounds(points),
        _as_predicted(points),
        _flattens(points),
    ]


def _exponent(claim: str, found: Line, expected: float) -> Claim:
    if np.isfinite(found.measured).sum() < 3:
        return Claim(claim, "the target is reached in fewer than three cases", False)
    fit = found.fit
    words = f"exponent {fit.slope:.3f}, 95 % interval [{fit.low:.3f}, {fit.high:.3f}]"
    return Claim(claim, words, abs(fit.slope - expected) <= EXPONENT)


def _fedlin_is_bounded(points: Sequence[Point], settings: AccelerationSettings) -> Claim:
    claim = "FedLin does not reach the target where γHL ≥ √κ, Scaffold does"
    root = math.sqrt(settings.condition_for_lengths)
    found, other = line(points, "length", FEDLIN), line(points, "length", LONG)
    long = found.x >= root
    if root < LARGE_ROOT or not long.any():
        return Claim(claim, f"needs √κ of {LARGE_ROOT:g} or more, and γHL above it", None)
    reached = found.x[np.isfinite(found.measured)]
    words = f"FedLin reaches it up to γHL = {reached.max():g}" if reached.size else "FedLin never reaches it"
    words += f", Scaffold up to {other.x[np.isfinite(other.measured)].max():g}; √κ = {root:.1f}"
    holds = bool(np.isnan(found.measured[long]).all() and np.isfinite(other.measured[other.x >= root]).any())
    return Claim(claim, words, holds)


def proved_rounds(points: Sequence[Point], settings: AccelerationSettings) -> Array:
    """Rounds that the proof allows for each κ: half the target for the mean, half for the noise."""
    found = []
    for point in points:
        if point.cell.part == "condition" and point.cell.recipe == LONG:
            problem = problem_of(point.cell, settings.seed)
            optimum = problem.optimum()
            slopes = problem.client_gradients(optimum)
            start = float(optimum @ optimum) + point.cell.condition * float(
                problem.weights @ np.square(slopes).sum(axis=1)
            )
            found.append(enough_rounds(point.cell.condition, 0.5 * point.cell.target / start))
    return np.array(found, dtype=np.float64)


def _below_proved(points: Sequence[Point], settings: AccelerationSettings) -> Claim:
    ratio = line(points, "condition", LONG).measured / proved_rounds(points, settings)
    words = f"{np.nanmin(ratio):.2f} to {np.nanmax(ratio):.2f} of the rounds that the proof for quadratics allows"
    return Claim("Scaffold with γHL = √κ: no more rounds than proved", words, bool((ratio <= 1.0).all()))


def _same_rounds(points: Sequence[Point]) -> Claim:
    rounds = [p.rounds for p in points if p.cell.part == "clients" and p.cell.recipe == LONG]
    ratio = max(rounds) / min(rounds)
    words = f"{min(rounds):.1f} to {max(rounds):.1f} rounds"
    return Claim("Scaffold with γHL = √κ: the rounds do not depend on N", words, bool(ratio <= LEVEL))


def over_predicted(points: Sequence[Point]) -> Array:
    """Measured over predicted rounds of Scaffold on quadratic losses."""
    each = [p.rounds / p.predicted for p in points if p.cell.recipe in (SHORT, LONG) and p.cell.part != "logistic"]
    found = np.array(each)
    return found[np.isfinite(found)]


def _as_predicted(points: Sequence[Point]) -> Claim:
    ratio = over_predicted(points)
    words = f"{ratio.min():.2f} to {ratio.max():.2f} times what was predicted, in {ratio.size} cases"
    holds = bool(np.abs(ratio - 1.0).max() <= CLOSE)
    return Claim(f"Scaffold: rounds as predicted, within {100 * CLOSE:.0f} %", words, holds)


def _flattens(points: Sequence[Point]) -> Claim:
    claim = "Logistic regression: the speed-up ends, with γHL = √κ at fewer clients than with γHL = 1"
    long, short = line(points, "logistic", LONG), line(points, "logistic", SHORT)
    if not {1000.0, 10000.0} <= set(long.x):
        return Claim(claim, "needs N = 1,000 and 10,000", None)
    falls = [_ratio(each) for each in (long, short)]
    words = (
        f"from 1,000 to 10,000 clients gradients fall {falls[0]:.2f} and {falls[1]:.2f} times; 1/N would give 10"
    )
    more = long.measured[-1] / short.measured[-1]
    holds = bool(falls[0] < FLATTENED and more > 1.0)
    return Claim(claim, f"{words}; at 10,000 clients γHL = √κ takes {more:.2f} times the gradients", holds)


def _ratio(found: Line) -> float:
    """Gradients with 1,000 clients over gradients with 10,000."""
    at = {float(n): float(y) for n, y in zip(found.x, found.measured, strict=True)}
    return at[1000.0] / at[10000.0]


def figures(points: Sequence[Point], settings: AccelerationSettings) -> dict[str, Any]:
    """The numbers of the page, by name."""
    found: dict[str, Any] = {}
    for part in ("condition", "clients", "logistic"):
        found[part] = {
            NAMES[recipe]: _numbers(line(points, part, recipe))
            for recipe in RECIPES
            if any(p.cell.part == part and p.cell.recipe == recipe for p in points)
        }
    ratio = over_predicted(points)
    lengths = {NAMES[r]: line(points, "length", r) for r in (LONG, SKIP, FEDLIN)}
    proved = line(points, "condition", LONG).measured / proved_rounds(points, settings)
    logistic = next(p.cell for p in points if p.cell.part == "logistic")
    return found | {
        "longest": {name: float(each.x[np.isfinite(each.measured)].max()) for name, each in lengths.items()},
        "condition_for_lengths": settings.condition_for_lengths,
        "condition_for_clients": settings.condition_for_clients,
        "logistic_condition": logistic.condition,
        "over_predicted": {"least": float(ratio.min()), "most": float(ratio.max()), "cases": ratio.size},
        "over_proved": {"least": float(proved.min()), "most": float(proved.max())},
    }


def _numbers(found: Line) -> dict[str, Any]:
    there = found.measured[np.isfinite(found.measured)]
    numbers: dict[str, Any] = {"first": float(there[0]), "last": float(there[-1])} if there.size else {}
    for name, y in (("measured", found.measured), ("predicted", found.predicted)):
        if np.isfinite(y).sum() >= 3:
            fit: LineFit = found.fit if name == "measured" else found.predicted_fit
            numbers[name] = {"exponent": fit.slope, "low": fit.low, "high": fit.high}
    return numbers


def save(points: Sequence[Point], found: Sequence[Claim], settings: AccelerationSettings, out: Path) -> None:
    """Write the figure (PNG, SVG), the points (CSV, Parquet) and the claims (JSON) to a folder."""
    draw(points, settings, proved_rounds(points, settings), [out / "acceleration.png", out / "acceleration.svg"])
    frame = to_frame(points)
    for suffix in ("csv", "parquet"):
        write_frame(out / f"acceleration.{suffix}", frame)
    save_claims(found, settings, out / "claims.json")
