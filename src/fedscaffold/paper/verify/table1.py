"""Rows on Table 1: rounds and gradients per client until E‖θ − θ*‖² = ε², for the methods that are here.

Clients are repeated, so that f and the mean noise do not depend on N. ε² is eight times the plateau that Lemma 5.1
gives, which γ is proportional to, and the round in which the error reaches it is measured.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from fedscaffold.core.types import Array
from fedscaffold.methods import ProxSkip, Scaffold
from fedscaffold.paper.verify.rows import Measured, StatementRow, close, jackknife, over_groups
from fedscaffold.paper.verify.settings import BATCH, INSIDE, KINDS, MODERATE, Budget, Kind, make
from fedscaffold.problems import Logistic, Ridge
from fedscaffold.simulation.run_method import run
from fedscaffold.theory import constants, expansion

MOST_STEPS = 32  # H for the smallest N, or for the smallest ε


def rows(budget: Budget) -> list[StatementRow]:
    """Return rows on Scaffold for both kinds of losses, and on the other methods."""
    of_scaffold = [row(kind, budget) for kind in KINDS for row in (in_clients, in_precision)]
    return [*of_scaffold, *other_methods(budget)]


def in_clients(kind: Kind, budget: Budget) -> StatementRow:
    """Take γ ∝ N and H ∝ 1/N at fixed ε: log(HT) against log N."""
    length = _round_length(kind)
    copies, costs = (1, 2, 4, 8, 16), []
    for each in copies:
        problem, H = make(kind, 2, 3, MODERATE[kind], copies=each), MOST_STEPS // each
        costs.append(H * rounds_needed(problem, Scaffold(step_size=length / H, local_steps=H), budget))
    x = np.log(copies) - np.log(copies).mean()
    slope, error = over_groups(x @ np.log(np.stack(costs)) / (x @ x))
    return close(
        "Table 1",
        "gradients per client to reach ε² fall as 1/N: slope of log(HT) in log N",
        f"{kind}, γH = {length:.3g}, B = {BATCH}, N = {2 * copies[0]} to {2 * copies[-1]}",
        -1.0,
        Measured(slope, error),
        0.1 * budget.loosen,
        finding=f"95 % interval [{slope - 2.26 * error:.3f}, {slope + 2.26 * error:.3f}]",
    )


def in_precision(kind: Kind, budget: Budget) -> StatementRow:
    """Take γ ∝ ε² and H ∝ 1/ε² at fixed N: with ε² divided by 4 and by 4 again, T grows by equal steps."""
    length = _round_length(kind)
    problem = make(kind, 2, 3, MODERATE[kind], copies=4)
    steps = (MOST_STEPS // 16, MOST_STEPS // 4, MOST_STEPS)
    first, second, third = (
        rounds_needed(problem, Scaffold(step_size=length / H, local_steps=H), budget) for H in steps
    )
    rounds = ", ".join(f"{group.mean():.0f}" for group in (first, second, third))
    return close(
        "Table 1",
        "rounds grow as log(1/ε): growth from ε²/4 to ε²/16 over that from ε² to ε²/4",
        f"{kind}, γH = {length:.3g}, B = {BATCH}, N = {problem.n_clients}, T = {rounds}",
        1.0,
        jackknife(lambda a, b, c: float((c - b) / (b - a)), first, second, third),
        0.2 * budget.loosen,
    )


def _round_length(kind: Kind) -> float:
    """Return γH, inside Theorem 4.9's conditions."""
    known = constants(make(kind, 2, 3, MODERATE[kind]), batch_size=BATCH)
    return INSIDE / (48.0 * ((known.L_record if known.Q > 0 else known.L) + known.mu))


def other_methods(budget: Budget) -> list[StatementRow]:
    """Compare the three ways to choose the steps of a round, as γ falls 4 and 16 times.

    Runs start where the error is 64 times the plateau, so that only powers of 1/ε remain of the table's entries.
    ProxSkip with p = √(γμ) takes about 1/√(γμ) rounds. At γL = 1/12 these are 7, and the slope from there to
    γL = 1/192 is 0.90: terms of order p matter. From γL = 1/192, with 25 to 100 rounds, it is what the table says.
    """
    problem = make("ridge", 2, 3, MODERATE["ridge"], copies=2)
    known = constants(problem, batch_size=BATCH)
    length = 1.0 / (3.0 * known.L)  # γH, or γ/p, of the methods that keep it fixed

    def scaffold(gamma: float) -> Any:
        return Scaffold(step_size=gamma, local_steps=round(length / gamma))

    def often(gamma: float) -> Any:
        return ProxSkip(step_size=gamma, communication_probability=float(np.sqrt(gamma * known.mu)))

    def seldom(gamma: float) -> Any:
        return ProxSkip(step_size=gamma, communication_probability=gamma / length)

    table: tuple[tuple[str, Callable[[float], Any], int, int, int], ...] = (
        ("Karimireddy et al. (Scaffold, γH fixed)", scaffold, 12, 0, 2),
        ("Mishchenko et al. (ProxSkip, p = √(γμ))", often, 192, 1, 1),
        ("Hu and Huang (ProxSkip, p ∝ γ)", seldom, 12, 0, 2),
    )
    found = []
    for name, method, parts, rounds, steps in table:
        gammas = 1.0 / (parts * known.L * np.array([1.0, 4.0, 16.0]))
        costs = np.log([rounds_needed(problem, method(gamma), budget, near=True) for gamma in gammas])
        inverse = np.log([1.0, 2.0, 4.0])  # of ε, which is proportional to √γ
        slope, error = over_groups(
            inverse @ (costs - costs.mean(axis=0)) / np.square(inverse - inverse.mean()).sum()
        )
        length_power = float(np.polyfit(inverse, np.log([_mean_steps(method(g)) for g in gammas]), 1)[0])
        found.append(
            close(
                "Table 1",
                f"{name}: rounds ∝ ε^{{-{rounds}}} (but for the logarithm), steps in a round ∝ ε^{{-{steps}}}; "
                "1 + power of rounds",
                f"ridge, B = {BATCH}, N = 4, γL = 1/{parts} to 1/{16 * parts}",
                1.0 + rounds,
                Measured(1.0 + slope, error),
                0.05 * budget.loosen,
                finding=f"power of steps in a round, as chosen: {length_power:.2f}",
            )
        )
    return found


def _mean_steps(method: Any) -> float:
    return 1 / method.communication_probability if isinstance(method, ProxSkip) else float(method.local_steps)


def rounds_needed(problem: Ridge | Logistic, method: Any, budget: Budget, *, near: bool = False) -> Array:
    """Return T with mean squared error ε², interpolated, for each of ten groups of runs from zero, or near θ*."""
    gamma, optimum = method.step_size, problem.optimum()
    leading = expansion(problem, Scaffold(step_size=gamma, local_steps=1), batch_size=BATCH)
    plateau, (values, vectors) = float(np.trace(leading.cov_theta)), np.linalg.eigh(problem.hessian(optimum))
    start: dict[str, Any] = {}
    if near:
        ideal = -problem.client_gradients(optimum)
        away = math.sqrt(64.0 * plateau) * vectors[:, 0]
        start = {"theta0": optimum + away, "control_variates0": ideal - ideal.mean(axis=0)}
    trace = run(
        problem, method, rounds=max(10, int(4.0 / (gamma * _mean_steps(method) * values[0]))), batch_size=BATCH,
        seed=10, progress=False, repetitions=budget.speed_up_repetitions // 10 * 10, **start,
    )  # fmt: skip
    curves = trace.mse.reshape(10, -1, trace.rounds + 1).mean(axis=1)
    return np.array([crossing(curve, 8.0 * plateau) for curve in curves])


def crossing(errors: Array, target: float) -> float:
    """Return when errors by round first fall to the target, interpolated in their logarithm; NaN if never."""
    below = np.flatnonzero(errors <= target)
    if not below.size or below[0] == 0:
        return math.nan
    t = int(below[0])
    fall = math.log(errors[t - 1] / errors[t]) if errors[t] > 0.0 else math.inf
    return t - 1 + (math.log(errors[t - 1] / target) / fall if math.isfinite(fall) else 1.0)
