"""Cost of reaching a target error: the round in which it is reached, the cheapest candidate, growth of costs."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import numpy as np

from fedscaffold.benchmarking.curves import Curve
from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.types import Array

Measure = Literal["rounds", "gradients"]
MEASURES: tuple[Measure, ...] = ("rounds", "gradients")


def holds_from(mean: Array, target: float) -> int | None:
    """min{t : m_t ≤ ε² and mean(m_t, ..., m_2t) ≤ ε²}, for a mean squared error m by round; None if there is none.

    The second condition leaves out curves that fall below the target for a few rounds only, through noise or on
    their way to another point.

    Parameters
    ----------
    mean
        m, mean squared error by round, (rounds + 1,).
    target
        ε².

    Examples
    --------
    >>> import numpy as np
    >>> from fedscaffold.benchmarking import holds_from
    >>> holds_from(np.array([8.0, 0.5, 4.0, 1.0, 1.0, 0.5, 0.5]), target=1.0)  # round 1 is not kept
    3
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
    """Cost at which the cheapest of a method's candidates reached a target; None if no candidate reached it.

    Attributes
    ----------
    name, n_clients, target
        The method's name, N, and the target ε².
    cheapest_in
        Whether the candidate has the fewest "rounds" or the fewest "gradients".
    rounds, gradients, vectors, bits
        Rounds, and stochastic gradients, vectors and bits per client, up to the round in which the target is
        reached.
    method
        Type and fields of the candidate.

    Examples
    --------
    >>> from fedscaffold.benchmarking import Cost
    >>> Cost(name="FedAvg", n_clients=10, target=0.01, cheapest_in="rounds").rounds is None
    True
    """

    name: str
    n_clients: int
    target: float
    cheapest_in: Measure
    rounds: int | None = None
    gradients: float | None = None
    vectors: float | None = None
    bits: float | None = None
    method: dict[str, Any] | None = None


def cheapest(curves: Sequence[Curve], targets: Sequence[float]) -> list[Cost]:
    """For each method, N and target the candidate with the fewest rounds, and the one with the fewest gradients.

    Where candidates are equal in one, the other decides. All candidates of one method send the same number of
    vectors a round, so the fewest rounds are also the fewest vectors.

    Parameters
    ----------
    curves
        From `compare` with these targets.
    targets
        Mean squared errors ε².

    Examples
    --------
    >>> import numpy as np
    >>> from fedscaffold.benchmarking import Curve, cheapest
    >>> mse = np.array([[8.0, 2.0, 1.0, 0.5, 0.5]])
    >>> curve = Curve(name="FedAvg", method={}, n_clients=4, mse=mse, gradients=10.0 * np.arange(5),
    ...               vectors=2.0 * np.arange(5), bits=384.0 * np.arange(5))
    >>> [(cost.cheapest_in, cost.rounds, cost.gradients) for cost in cheapest([curve], [1.0])]
    [('rounds', 2, 20.0), ('gradients', 2, 20.0)]
    """
    found = []
    for (name, n_clients), candidates in _by_method(curves).items():
        for target in sorted(targets, reverse=True):
            reached = [(at, curve) for curve in candidates if (at := holds_from(curve.mean, target)) is not None]
            for measure in MEASURES:
                cost = Cost(name=name, n_clients=n_clients, target=target, cheapest_in=measure)
                if reached:
                    at, curve = min(reached, key=lambda pair: _order(pair[0], pair[1], measure))
                    gradients, vectors, bits = (
                        float(each[at]) for each in (curve.gradients, curve.vectors, curve.bits)
                    )
                    cost = replace(
                        cost, rounds=at, gradients=gradients, vectors=vectors, bits=bits, method=curve.method
                    )
                found.append(cost)
    return found


def _by_method(curves: Sequence[Curve]) -> dict[tuple[str, int], list[Curve]]:
    """Candidates of each method and number of clients."""
    found: dict[tuple[str, int], list[Curve]] = {}
    for curve in curves:
        found.setdefault((curve.name, curve.n_clients), []).append(curve)
    return found


def _order(at: int, curve: Curve, measure: Measure) -> tuple[float, float]:
    pair = float(at), float(curve.gradients[at])
    return pair if measure == "rounds" else pair[::-1]


def best(curves: Sequence[Curve]) -> list[Curve]:
    """For each method and N the candidate with the smallest mean squared error at the end of the budget.

    Parameters
    ----------
    curves
        From `compare` without targets. Those that diverged are left out.

    Examples
    --------
    >>> import numpy as np
    >>> from fedscaffold.benchmarking import Curve, best
    >>> curves = [
    ...     Curve(name="FedAvg", method={"step_size": step_size}, n_clients=4, mse=np.array([[8.0, end]]),
    ...           gradients=np.array([0.0, 10.0]), vectors=np.array([0.0, 2.0]), bits=np.array([0.0, 384.0]))
    ...     for step_size, end in ((0.1, 3.0), (0.2, 2.0))
    ... ]
    >>> [curve.method for curve in best(curves)]
    [{'step_size': 0.2}]
    """
    ended = [[curve for curve in group if not curve.diverged] for group in _by_method(curves).values()]
    return [min(group, key=lambda curve: float(curve.mean[-1])) for group in ended if group]


class LineFit(NamedTuple):
    """y = intercept + slope·x by least squares.

    Attributes
    ----------
    intercept, slope
        The line.
    low, high
        Ends of a 95 % Student interval of the slope.
    misfit
        Root mean square of the residuals.

    Examples
    --------
    >>> from fedscaffold.benchmarking import LineFit
    >>> LineFit(intercept=0.0, slope=-1.0, low=-1.1, high=-0.9, misfit=0.01).slope
    -1.0
    """

    intercept: float
    slope: float
    low: float
    high: float
    misfit: float


def fit_line(x: Array, y: Array, weights: Array | None = None) -> LineFit:
    """Fit y = intercept + slope·x by least squares.

    Parameters
    ----------
    x, y
        Three points or more, (points,).
    weights
        Factors of the residuals, (points,); None for equal weights.

    Examples
    --------
    >>> import numpy as np
    >>> from fedscaffold.benchmarking import fit_line
    >>> N = np.array([10.0, 100.0, 1000.0])
    >>> round(fit_line(np.log(N), np.log(5.0 / N)).slope, 6)  # 5/N falls as 1/N
    -1.0
    """
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
    """Growth of one method's costs with the number of clients or with the precision.

    Attributes
    ----------
    name
        The method.
    what
        "gradients by clients": log gradients per client against log N, for the candidates cheapest in gradients;
        slope −1 is linear speed-up. "rounds, logarithmic": T = a + b log₁₀(1/ε²), and "rounds, power":
        T = C (1/ε²)^k, for the candidates with the fewest rounds T; misfits of both are relative.
    at
        The target ε² for the first, the number of clients for the others.
    points
        Number of fitted points.
    fit
        The fitted line.

    Examples
    --------
    >>> from fedscaffold.benchmarking import Growth, LineFit
    >>> fit = LineFit(intercept=8.0, slope=-1.0, low=-1.1, high=-0.9, misfit=0.01)
    >>> Growth(name="Scaffold", what="gradients by clients", at=0.01, points=4, fit=fit).fit.slope
    -1.0
    """

    name: str
    what: Literal["gradients by clients", "rounds, logarithmic", "rounds, power"]
    at: float
    points: int
    fit: LineFit


def growth(costs: Sequence[Cost]) -> list[Growth]:
    """Fit every growth for which three targets or numbers of clients were reached.

    Parameters
    ----------
    costs
        From `cheapest`.

    Examples
    --------
    >>> from fedscaffold.benchmarking import Cost, growth
    >>> costs = [
    ...     Cost(name="Scaffold", n_clients=n, target=0.01, cheapest_in="gradients", rounds=5, gradients=800 / n)
    ...     for n in (10, 20, 40)
    ... ]
    >>> [(found.what, round(found.fit.slope, 6)) for found in growth(costs)]
    [('gradients by clients', -1.0)]
    """
    found = []
    for name in dict.fromkeys(cost.name for cost in costs):
        mine = [cost for cost in costs if cost.name == name and cost.rounds]
        for target in sorted({cost.target for cost in mine}, reverse=True):
            rows = [cost for cost in mine if cost.target == target and cost.cheapest_in == "gradients"]
            if len(rows) > 2:
                N, spent = np.array([(row.n_clients, row.gradients) for row in rows], dtype=np.float64).T
                fit = fit_line(np.log(N), np.log(spent))
                found.append(Growth(name=name, what="gradients by clients", at=target, points=N.size, fit=fit))
        for n_clients in sorted({cost.n_clients for cost in mine}):
            rows = [cost for cost in mine if cost.n_clients == n_clients and cost.cheapest_in == "rounds"]
            if len(rows) > 2:
                T, targets = np.array([(row.rounds, row.target) for row in rows], dtype=np.float64).T
                x = -np.log10(targets)
                logarithmic = fit_line(x, T, weights=1.0 / T)
                power = fit_line(x * np.log(10.0), np.log(T))
                found += [
                    Growth(name=name, what="rounds, logarithmic", at=n_clients, points=T.size, fit=logarithmic),
                    Growth(name=name, what="rounds, power", at=n_clients, points=T.size, fit=power),
                ]
    return found
