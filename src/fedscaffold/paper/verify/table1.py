"""Table 1, Scaffold's row, measured: gradients per client fall as 1/N, rounds grow as log(1/ε).

The same clients are repeated, so that f and the mean noise do not depend on N. As in Corollary 4.10 γ grows with
Nε² and γH is fixed; ε² is eight times the plateau that Lemma 5.1 gives, and the time to reach it is measured.
"""

import numpy as np

from fedscaffold.core.types import Array
from fedscaffold.methods import Scaffold
from fedscaffold.paper.verify.rows import Measured, StatementRow, close, jackknife, over_groups
from fedscaffold.paper.verify.settings import BATCH, INSIDE, KINDS, MODERATE, Budget, Kind, make
from fedscaffold.problems import Logistic, Ridge
from fedscaffold.simulation.run_method import run
from fedscaffold.theory import constants, expansion

DISTINCT, DIM, GROUPS = 2, 3, 10
COPIES = (1, 2, 4, 8, 16)
MOST_STEPS = 32  # H for the smallest N, or for the smallest ε
ABOVE = 8.0  # ε² over the plateau
LENGTH = 4.0  # relaxation times that a run lasts
SLOPE_TOLERANCE, LOG_TOLERANCE = 0.1, 0.2


def rows(budget: Budget) -> list[StatementRow]:
    """Rows on the complexities of Table 1, for ridge and logistic regression."""
    return [row for kind in KINDS for row in (_in_clients(kind, budget), _in_precision(kind, budget))]


def _in_clients(kind: Kind, budget: Budget) -> StatementRow:
    """γ ∝ N and H ∝ 1/N at fixed ε: log(HT) against log N."""
    length = _round_length(kind)
    costs = []
    for copies in COPIES:
        problem = make(kind, DISTINCT, DIM, MODERATE[kind], copies=copies)
        H = MOST_STEPS // copies
        costs.append(H * _rounds_needed(problem, length / H, H, budget))
    N = DISTINCT * np.array(COPIES)
    x = np.log(N) - np.log(N).mean()
    slope, error = over_groups(x @ np.log(np.stack(costs)) / (x @ x))
    return close(
        "Table 1",
        "gradients per client to reach ε² fall as 1/N: slope of log(HT) in log N",
        f"{kind}, γH = {length:.3g}, B = {BATCH}, N = {N[0]} to {N[-1]}",
        -1.0,
        Measured(slope, error),
        SLOPE_TOLERANCE * budget.loosen,
        finding=f"95 % interval [{slope - 2.26 * error:.3f}, {slope + 2.26 * error:.3f}]",
    )


def _in_precision(kind: Kind, budget: Budget) -> StatementRow:
    """γ ∝ ε² and H ∝ 1/ε² at fixed N: with ε² divided by 4 and by 4 again, T grows by equal steps."""
    length = _round_length(kind)
    problem = make(kind, DISTINCT, DIM, MODERATE[kind], copies=4)
    steps = [MOST_STEPS // 16, MOST_STEPS // 4, MOST_STEPS]
    first, second, third = (_rounds_needed(problem, length / H, H, budget) for H in steps)
    ratio = jackknife(lambda a, b, c: float((c - b) / (b - a)), first, second, third)
    rounds = ", ".join(f"{group.mean():.0f}" for group in (first, second, third))
    return close(
        "Table 1",
        "rounds grow as log(1/ε): growth from ε²/4 to ε²/16 over that from ε² to ε²/4",
        f"{kind}, γH = {length:.3g}, B = {BATCH}, N = {problem.n_clients}, T = {rounds}",
        1.0,
        ratio,
        LOG_TOLERANCE * budget.loosen,
    )


def _round_length(kind: Kind) -> float:
    """γH, inside Theorem 4.9's conditions."""
    known = constants(make(kind, DISTINCT, DIM, MODERATE[kind]), batch_size=BATCH)
    return INSIDE / (48.0 * ((known.L_record if known.Q > 0 else known.L) + known.mu))


def _rounds_needed(problem: Ridge | Logistic, gamma: float, H: int, budget: Budget) -> Array:
    """T with mean squared error ε², interpolated, for each of ten groups of runs from zero."""
    method = Scaffold(step_size=gamma, local_steps=H)
    target = ABOVE * float(np.trace(expansion(problem, method, batch_size=BATCH).cov_theta))
    optimum = problem.optimum()
    slowest = float(np.linalg.eigvalsh(problem.hessian(optimum))[0])
    trace = run(
        problem, method, rounds=int(LENGTH / (gamma * H * slowest)), batch_size=BATCH, seed=10, progress=False,
        repetitions=budget.speed_up_repetitions // GROUPS * GROUPS,
    )  # fmt: skip
    curves = np.log(trace.mse.reshape(GROUPS, -1, trace.rounds + 1).mean(axis=1) / target)
    return np.array([_crossing(curve) for curve in curves])


def _crossing(curve: Array) -> float:
    """Where a falling curve first meets zero; infinite if it does not."""
    below = np.flatnonzero(curve <= 0.0)
    if below.size == 0:
        return float("inf")
    at = int(below[0])
    return float(at - curve[at] / (curve[at] - curve[at - 1])) if at else 0.0
