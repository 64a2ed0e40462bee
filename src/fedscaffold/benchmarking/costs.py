"""What reaching a target cost: when it is reached, the cheapest candidate, and how costs grow."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.types import Array

if TYPE_CHECKING:
    from fedscaffold.benchmarking.comparison import Curve

Measure = Literal["rounds", "gradients"]
MEASURES: tuple[Measure, ...] = ("rounds", "gradients")


def holds_from(mean: Array, target: float) -> int | None:
    """min{t : m_t ≤ ε² and mean(m_t, ..., m_2t) ≤ ε²}, for a mean squared error m by round; None if there is none.

    The second condition leaves out curves that pass below the target by chance, or on their way to another point.
    """
    last = (mean.size - 1) // 2
    sums = np.concatenate([[0.0], np.cumsum(mean)])
    t = np.arange(last + 1)
    with np.errstate(invalid="ignore"):  # after divergence
        kept = (sums[2 * t + 1] - sums[t]) / (t + 1.0)
    found = np.flatnonzero((mean[: last + 1] <= target) & (kept <= target))
    return int(found[0]) if found.size else None


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What the cheapest of a method's candidates spent to reach a target; None if no candidate did."""

    name: str
    n_clients: int
    target: float
    cheapest_in: Measure
    rounds: int | None = None
    gradients: float | None = None
    vectors: float | None = None
    method: dict[str, Any] | None = None


def cheapest(curves: Sequence["Curve"], targets: Sequence[float]) -> list[Cost]:
    """For each method, N and target the candidate with the fewest rounds, and the one with the fewest gradients.

    Where candidates are equal in one, the other decides. All candidates of one method send the same number of
    vectors a round, so the fewest rounds are also the fewest vectors.
    """
    found = []
    for name, n_clients in dict.fromkeys((curve.name, curve.n_clients) for curve in curves):
        mine = [curve for curve in curves if (curve.name, curve.n_clients) == (name, n_clients)]
        for target in sorted(targets, reverse=True):
            reached = [(at, curve) for curve in mine if (at := holds_from(curve.mean, target)) is not None]
            for measure in MEASURES:
                cost = Cost(name=name, n_clients=n_clients, target=target, cheapest_in=measure)
                if reached:
                    at, curve = min(reached, key=lambda pair: _order(pair[0], pair[1], measure))
                    cost = Cost(
                        name=name,
                        n_clients=n_clients,
                        target=target,
                        cheapest_in=measure,
                        rounds=at,
                        gradients=float(curve.gradients[at]),
                        vectors=float(curve.vectors[at]),
                        method=curve.method,
                    )
                found.append(cost)
    return found


def _order(at: int, curve: "Curve", measure: Measure) -> tuple[float, float]:
    pair = float(at), float(curve.gradients[at])
    return pair if measure == "rounds" else pair[::-1]


def best(curves: Sequence["Curve"]) -> list["Curve"]:
    """For each method and N the candidate with the smallest mean squared error at the end of the budget."""
    found = []
    for name, n_clients in dict.fromkeys((curve.name, curve.n_clients) for curve in curves):
        mine = [c for c in curves if (c.name, c.n_clients) == (name, n_clients) and not c.diverged]
        if mine:
            found.append(min(mine, key=lambda curve: float(curve.mean[-1])))
    return found


class LineFit(NamedTuple):
    """y = intercept + slope·x by least squares, with a 95 % interval of the slope; misfit is the RMS residual."""

    intercept: float
    slope: float
    low: float
    high: float
    misfit: float


def fit_line(x: Array, y: Array, weights: Array | None = None) -> LineFit:
    """Least squares of y on x; residuals are multiplied by the weights."""
    from scipy.stats import t as student

    if x.size < 3:
        raise InvalidInput(f"a fit with an interval needs three points, got {x.size}")
    w = np.ones(x.size) if weights is None else weights
    design = np.stack([w, w * x], axis=1)
    (intercept, slope), *_ = np.linalg.lstsq(design, w * y, rcond=None)
    residuals = w * y - design @ np.array([intercept, slope])
    freedom = x.size - 2
    covariance = np.linalg.inv(design.T @ design) * float(residuals @ residuals) / freedom
    half = float(student.ppf(0.975, freedom)) * float(np.sqrt(covariance[1, 1]))
    misfit = float(np.sqrt(np.mean(residuals**2)))
    return LineFit(float(intercept), float(slope), float(slope) - half, float(slope) + half, misfit)


@dataclass(frozen=True, kw_only=True)
class Growth:
    """How a method's costs grow.

    `gradients_by_clients`: log gradients per client against log N, for the candidates cheapest in gradients; −1 is
    linear speed-up. `rounds_by_target` compares two models of the fewest rounds, logarithmic,
    T = a + b log₁₀(1/ε²), and a power, T = C (1/ε²)^k; misfits of both are relative.
    """

    name: str
    what: Literal["gradients by clients", "rounds, logarithmic", "rounds, power"]
    at: float  # the target, or the number of clients
    points: int
    fit: LineFit


def growth(costs: Sequence[Cost]) -> list[Growth]:
    """All fits for which there are three points that were reached."""
    found = []
    for name in dict.fromkeys(cost.name for cost in costs):
        mine = [cost for cost in costs if cost.name == name and cost.rounds]
        for target in sorted({cost.target for cost in mine}, reverse=True):
            rows = [cost for cost in mine if cost.target == target and cost.cheapest_in == "gradients"]
            if len(rows) > 2:
                N = np.array([row.n_clients for row in rows], dtype=np.float64)
                spent = np.array([row.gradients for row in rows], dtype=np.float64)
                fit = fit_line(np.log(N), np.log(spent))
                found.append(Growth(name=name, what="gradients by clients", at=target, points=N.size, fit=fit))
        for n_clients in sorted({cost.n_clients for cost in mine}):
            rows = [cost for cost in mine if cost.n_clients == n_clients and cost.cheapest_in == "rounds"]
            if len(rows) > 2:
                T = np.array([row.rounds for row in rows], dtype=np.float64)
                x = -np.log10([row.target for row in rows])
                logarithmic = fit_line(x, T, weights=1.0 / T)
                power = fit_line(x * np.log(10.0), np.log(T))
                found += [
                    Growth(name=name, what="rounds, logarithmic", at=n_clients, points=T.size, fit=logarithmic),
                    Growth(name=name, what="rounds, power", at=n_clients, points=T.size, fit=power),
                ]
    return found
