"""Theorem 4.9 and Corollary 4.10: the finite-time bound, printed and proved, and settings with a guarantee."""

from dataclasses import replace

import numpy as np

from fedscaffold.methods import Scaffold
from fedscaffold.paper.verify.rows import Measured, Printed, StatementRow, bounded, close, over_groups, worst
from fedscaffold.paper.verify.settings import BATCH, KINDS, MODERATE, Budget, Case, Kind, describe, make, strict
from fedscaffold.simulation.observers import squared_distance
from fedscaffold.simulation.run_method import run
from fedscaffold.theory import bounds, constants
from fedscaffold.theory.bounds import Bound, bound_curve, noise_pair

LENGTH = 3.0  # relaxation times
TARGETS: dict[Kind, float] = {"ridge": 0.1, "logistic": 0.5}  # of ‖θ⁰ − θ*‖²; a guarantee costs many steps
SHARE = 64  # runs that are long have so many times fewer repetitions
DOUBLE_TOLERANCE = 0.1


def rows(budget: Budget) -> list[StatementRow]:
    """Rows on finite-time bounds and linear speed-up, for ridge and logistic regression."""
    found = []
    for kind in KINDS:
        found += [*_finite_time(strict(kind), budget), _guarantee(kind, budget)]
    return [*found, _doubling(budget)]


def _finite_time(case: Case, budget: Budget) -> list[StatementRow]:
    """Theorem 4.9 by fourth moments, and with the paper's constants, as proved and as printed."""
    rounds = int(LENGTH * case.relaxation) + 1
    trace = case.run(rounds=rounds, seed=8, repetitions=max(2, budget.repetitions // 4))
    measured, start = over_groups(trace.mse).at(np.s_[1:]), case.initial_distance2
    sharp = bound_curve(case.problem, case.method, batch_size=BATCH, rounds=rounds)
    assert sharp.values is not None
    conditions = case.bounds.finite_time_mse(rounds=1, initial_distance2=start).conditions
    limits = [Bound(value, conditions, "Theorem 4.9") for value in sharp.values[1:]]
    claim = "E‖θ^T−θ*‖² ≤ ((1−7γμ/4)^{HT/2}{‖X⁰−X*‖_Λ + √(0.6γσ*²/μ)} + √(Theorem 4.8))², by fourth moments"
    first = bounded("Theorem 4.9", claim, case.text, measured, limits)
    paper = [
        case.bounds_by("paper").finite_time_mse(rounds=T, initial_distance2=start)
        for T in range(1, measured.value.size + 1)
    ]
    claim = "E‖θ^T−θ*‖² ≤ (1−γμ/4)^{HT}{4‖X⁰−X*‖²_Λ + 64γσ*²/μ} + 2·Theorem 4.8, as the paper proves it"
    second = bounded("Theorem 4.9", claim, case.text, measured, paper)
    at, *_ = worst(measured, [bound.value for bound in paper])
    formula = "(1−γμ/4)^{HT}{2‖X⁰−X*‖²_Λ + 64σ*²/(Lμ)} + 2d·(Theorem 4.8, its last term over N)"
    return [first, replace(second, printed=Printed(formula, printed_finite_time(case, at + 1, start)))]


def printed_finite_time(case: Case, T: int, start: float) -> float:
    """Theorem 4.9 as printed: 2 for 4, 1/L for γ, a factor d, and 1/N in the last term; no proof supports it."""
    gamma, H = case.method.step_size, case.method.uniform_local_steps
    N, d, known = case.problem.n_clients, case.problem.dim, case.constants
    mu, L, Q = known.mu, known.L, known.Q
    sigma2, _ = noise_pair(known, mu / (19.0 * gamma))
    left = (1 - gamma * mu / 4) ** (H * T) * (2 * start + 64 * sigma2 / (L * mu))
    stationary = 20 * d * gamma * sigma2 / (N * mu) + 12 * 15080 * d * gamma**1.5 * Q * sigma2**1.5 / mu**2.5
    return float(left + stationary + 96 * 600**2 * d * gamma**3 * H * Q**2 * sigma2**2 / (N * mu**3))


def _guarantee(kind: Kind, budget: Budget) -> StatementRow:
    """γ, H, T of the corollary, run: the error must be below the target."""
    problem = make(kind, 4, 3, MODERATE[kind])
    known = constants(problem, batch_size=BATCH)
    square = float(problem.optimum() @ problem.optimum())
    target = TARGETS[kind] * square
    plan = bounds.complexity(known, target=target, n_clients=problem.n_clients, squared_error=square)
    trace = run(
        problem, Scaffold(step_size=plan.step_size, local_steps=plan.local_steps), rounds=plan.rounds,
        batch_size=BATCH, seed=9, repetitions=max(2, budget.repetitions // SHARE), progress=False, record=(),
    )  # fmt: skip
    return bounded(
        "Corollary 4.10",
        f"with its γ, H and T = {plan.rounds:,} rounds E‖θ^T−θ*‖² ≤ ε²",
        describe(problem, plan.step_size, plan.local_steps, BATCH),
        over_groups(squared_distance(trace.theta, problem.optimum())),
        [Bound(target, plan.bound.conditions, "Corollary 4.10")],
    )


def _doubling(budget: Budget) -> StatementRow:
    """Gradients per client that are sufficient, N against 2N, below the largest N; computed, not simulated."""
    problem = make("ridge", 4, 3, MODERATE["ridge"])
    known = constants(problem, batch_size=BATCH)
    square = float(problem.optimum() @ problem.optimum())
    few, many = (bounds.complexity(known, target=1e-3 * square, n_clients=n, squared_error=square) for n in (4, 8))
    return close(
        "Corollary 4.10",
        f"gradients per client fall as 1/N up to N = {few.largest_n_clients:,}: those for N = 4 over N = 8",
        f"ridge, B = {BATCH}, ε² = 0.001 ‖θ*‖²",
        2.0,
        Measured(np.array(few.gradients_per_client / many.gradients_per_client), np.zeros(())),
        DOUBLE_TOLERANCE * budget.loosen,
        conditions=few.bound.conditions,
    )
