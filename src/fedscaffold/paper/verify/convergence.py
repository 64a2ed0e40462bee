"""Rows on Lemma 4.1 to Corollary 4.5, Theorem 4.9 and Corollary 4.10: runs from a given start."""

from dataclasses import replace

import numpy as np

from fedscaffold.core.types import Array
from fedscaffold.methods import Scaffold
from fedscaffold.paper.coupling import ChainStart, Coupling, couple, squared_norm, to_stationarity
from fedscaffold.paper.verify.rows import (
    Measured,
    Printed,
    StatementRow,
    bounded,
    close,
    over_groups,
    worst,
)
from fedscaffold.paper.verify.settings import (
    BATCH,
    INSIDE,
    KINDS,
    MODERATE,
    Budget,
    Case,
    Kind,
    crude,
    describe,
    make,
    strict,
)
from fedscaffold.simulation.observers import squared_distance
from fedscaffold.simulation.run_method import run
from fedscaffold.theory import constants
from fedscaffold.theory.bounds import Bound, bound_curve, complexity, noise_pair

COUPLED_ROUNDS = 30
MOST_STEPS = 32  # of Table 1: H for the smallest N, or for the smallest ε


def rows(budget: Budget) -> list[StatementRow]:
    """Return rows for ridge and logistic regression, just inside the conditions."""
    found = []
    for kind in KINDS:
        found += given_start(crude(kind), budget)
        found += [*_finite_time(strict(kind), budget), _guarantee(kind, budget)]
    return [*found, _doubling(budget)]


# Lemma 4.1 to Corollary 4.5


def given_start(case: Case, budget: Budget) -> list[StatementRow]:
    """Return rows on one setting."""
    return [
        contraction(case, budget), *_wasserstein(case, budget), _drift(case, budget, "zero"),
        _drift(case, budget, "X*"), _drift_as_printed(case, budget), _crude_mse(case, budget),
        _stationary(case, budget),
    ]  # fmt: skip


def contraction(case: Case, budget: Budget, place: str = "") -> StatementRow:
    """Couple two chains from random starts: the largest rate of any round."""
    rng = np.random.default_rng(3)
    xi = rng.normal(size=case.ideal.shape)
    starts = (
        ChainStart(rng.normal(size=case.problem.dim)),
        ChainStart(rng.normal(size=case.problem.dim), xi - xi.mean(axis=0)),
    )
    coupling = couple(
        case.problem, case.method, *starts, rounds=COUPLED_ROUNDS, batch_size=case.batch_size,
        repetitions=_few(budget),
    )  # fmt: skip
    at, rate = _largest_rate(coupling)
    claim = f"{place}coupled chains: E‖X⁺−X'⁺‖²_Λ/‖X−X'‖²_Λ ≤ (1−γμ/4)^H; largest, in round {at + 1}"
    return bounded(claim, case.text, rate, [coupling.factor])


def _largest_rate(coupling: Coupling) -> tuple[int, Measured]:
    """Return a ratio of means, with the standard error of D_{t+1} − rate·D_t over the mean of D_t."""
    rates = coupling.rates
    before, after = coupling.distances[:, : rates.size], coupling.distances[:, 1 : rates.size + 1]
    errors = (after - rates * before).std(axis=0, ddof=1) / np.sqrt(len(before)) / before.mean(axis=0)
    at = int(np.argmax(rates))
    return at, Measured(rates, errors).at(at)


def _wasserstein(case: Case, budget: Budget) -> list[StatementRow]:
    """Measure the mean squared distance to a stationary chain with the same noise, which is at least W₂²."""
    coupling = to_stationarity(
        case.problem, case.method, ChainStart(np.zeros(case.problem.dim)), rounds=COUPLED_ROUNDS,
        batch_size=case.batch_size, burn_in=int(10.0 * case.relaxation), repetitions=_few(budget),
    )  # fmt: skip
    measured = over_groups(coupling.distances)
    later, now, first = range(1, COUPLED_ROUNDS + 1), float(measured.value[0]), case.initial_distance2
    decays = [case.bounds.wasserstein_decay(rounds=T, initial_wasserstein2=now) for T in later]
    starts = [case.bounds.wasserstein_from_start(rounds=T, initial_distance2=first) for T in later]
    return [
        bounded(f"W₂² to the stationary law after T rounds ≤ {formula}", case.text, measured.at(np.s_[1:]), limits)
        for formula, limits in (
            ("(1−γμ/4)^{HT} W₂² at T = 0", decays),
            ("(1−γμ/4)^{HT} (‖X⁰−X*‖_Λ + √(8γσ²/μ))²", starts),
        )
    ]


def _drift(case: Case, budget: Budget, start: str, note: str = "") -> StatementRow:
    """Run one round from θ = 0 and ξ_c = 0, or from X*."""
    zero = start == "zero"
    theta = np.zeros(case.problem.dim) if zero else case.problem.optimum()
    xi = np.zeros_like(case.ideal) if zero else case.ideal
    before = float(distance2(case, theta[None], xi[None])[0])
    trace = case.run(
        rounds=1, seed=4, repetitions=budget.repetitions, theta0=theta, control_variates0=xi, record=()
    )
    after = over_groups(distance2(case, trace.theta, trace.control_variates))
    claim = f"one round from {start}: E‖X⁺−X*‖²_Λ ≤ (1−γμ/4)^H‖X−X*‖²_Λ + 2γ²Hσ²{note}"
    return bounded(claim, case.text, after, [case.bounds.drift(distance2=before)])


def _drift_as_printed(case: Case, budget: Budget) -> StatementRow:
    """Take H = 1 and γ(L + μ) ≤ 1: inside the printed condition, outside γ ≤ 1/(4L), which the proof uses."""
    known = case.constants
    method = Scaffold(step_size=INSIDE / (known.L + known.mu), local_steps=1)
    wide = Case(case.problem, method, case.batch_size, known)
    return _drift(wide, budget, "zero", note="; printed without γ ≤ 1/(4L)")


def _crude_mse(case: Case, budget: Budget) -> StatementRow:
    """Measure the whole state, θ and all ξ_c, after T = 1, 2, 4, ... rounds from zero."""
    rounds = [2**k for k in range(int(np.log2(4 * case.relaxation)) + 2)]
    traces = [case.run(rounds=T, seed=5, repetitions=budget.repetitions, record=()) for T in rounds]
    seen = over_groups(np.stack([distance2(case, one.theta, one.control_variates) for one in traces], axis=1))
    first = case.initial_distance2
    limits = [case.bounds.crude_mse(rounds=T, initial_distance2=first) for T in rounds]
    at, *_ = worst(seen, [limit.value for limit in limits])
    claim = f"E‖X^T−X*‖²_Λ ≤ (1−γμ/4)^{{HT}}‖X⁰−X*‖²_Λ + 8γσ²/μ; nearest at T = {rounds[at]}"
    return bounded(claim, case.text, seen.at(at), [limits[at]])


def _stationary(case: Case, budget: Budget) -> StatementRow:
    trace = case.run(
        rounds=int(10.0 * case.relaxation) + 1, seed=6, repetitions=budget.repetitions,
        theta0=case.problem.optimum(), control_variates0=case.ideal, record=(),
    )  # fmt: skip
    found = over_groups(distance2(case, trace.theta, trace.control_variates))
    claim = "stationary law: E‖X−X*‖²_Λ, so E‖θ−θ*‖², ≤ 8γσ²/μ"
    return bounded(claim, case.text, found, [case.bounds.stationary_mse()])


def distance2(case: Case, theta: Array, xi: Array) -> Array:
    """Return ‖X − X*‖²_Λ, one per repetition."""
    return squared_norm(theta - case.problem.optimum(), xi - case.ideal, case.method, case.problem.weights)


def _few(budget: Budget) -> int:
    """Return a quarter of the repetitions: the two chains of a coupling share their noise, so errors are small."""
    return max(2, budget.repetitions // 4)


# Theorem 4.9 and Corollary 4.10


def _finite_time(case: Case, budget: Budget) -> list[StatementRow]:
    """Return Theorem 4.9 by fourth moments, and with the paper's constants, as proved and as printed."""
    rounds = int(3.0 * case.relaxation) + 1
    trace = case.run(rounds=rounds, seed=8, repetitions=_few(budget))
    measured, start = over_groups(trace.mse).at(np.s_[1:]), case.initial_distance2
    sharp = bound_curve(case.problem, case.method, batch_size=BATCH, rounds=rounds)
    assert sharp.values is not None
    theorem = case.bounds.finite_time_mse(rounds=1, initial_distance2=start)
    limits = [replace(theorem, value=float(value)) for value in sharp.values[1:]]
    claim = "E‖θ^T−θ*‖² ≤ ((1−7γμ/4)^{HT/2}{‖X⁰−X*‖_Λ + √(0.6γσ*²/μ)} + √(Theorem 4.8))², by fourth moments"
    first = bounded(claim, case.text, measured, limits)
    as_proved = case.bounds_by("paper")
    paper = [as_proved.finite_time_mse(rounds=T, initial_distance2=start) for T in range(1, rounds + 1)]
    claim = "E‖θ^T−θ*‖² ≤ (1−γμ/4)^{HT}{4‖X⁰−X*‖²_Λ + 64γσ*²/μ} + 2·Theorem 4.8, as the paper proves it"
    at, *_ = worst(measured, [bound.value for bound in paper])
    formula = "(1−γμ/4)^{HT}{2‖X⁰−X*‖²_Λ + 64σ*²/(Lμ)} + 2d·(Theorem 4.8, its last term over N)"
    printed = Printed(formula, printed_finite_time(case, at + 1, start))
    return [first, replace(bounded(claim, case.text, measured, paper), printed=printed)]


def printed_finite_time(case: Case, T: int, start: float) -> float:
    """Return Theorem 4.9 as printed: 2 for 4, 1/L for γ, a factor d, and 1/N in the last term, without a proof."""
    gamma, H = case.method.step_size, case.method.uniform_local_steps
    N, d, known = case.problem.n_clients, case.problem.dim, case.constants
    mu, L, Q = known.mu, known.L, known.Q
    sigma2, _ = noise_pair(known, mu / (19.0 * gamma))
    left = (1 - gamma * mu / 4) ** (H * T) * (2 * start + 64 * sigma2 / (L * mu))
    stationary = 20 * d * gamma * sigma2 / (N * mu) + 12 * 15080 * d * gamma**1.5 * Q * sigma2**1.5 / mu**2.5
    return float(left + stationary + 96 * 600**2 * d * gamma**3 * H * Q**2 * sigma2**2 / (N * mu**3))


def _guarantee(kind: Kind, budget: Budget) -> StatementRow:
    """Run γ, H, T of the corollary: the error must be below the target."""
    problem = make(kind, 4, 3, MODERATE[kind])
    square = float(problem.optimum() @ problem.optimum())
    share = {"ridge": 0.1, "logistic": 0.5}[kind]  # of ‖θ⁰ − θ*‖²; a guarantee costs many steps
    target, known = share * square, constants(problem, batch_size=BATCH)
    plan = complexity(known, target=target, n_clients=problem.n_clients, squared_error=square)
    trace = run(
        problem, Scaffold(step_size=plan.step_size, local_steps=plan.local_steps), rounds=plan.rounds,
        batch_size=BATCH, seed=9, repetitions=max(2, budget.repetitions // 64), progress=False, record=(),
    )  # fmt: skip
    return bounded(
        f"with its γ, H and T = {plan.rounds:,} rounds E‖θ^T−θ*‖² ≤ ε²",
        describe(problem, plan.step_size, plan.local_steps, BATCH),
        over_groups(squared_distance(trace.theta, problem.optimum())),
        [Bound(target, plan.bound.conditions, "Corollary 4.10")],
    )


def _doubling(budget: Budget) -> StatementRow:
    """Compute sufficient gradients per client, N against 2N, below the largest N; no simulation."""
    problem = make("ridge", 4, 3, MODERATE["ridge"])
    known = constants(problem, batch_size=BATCH)
    square = float(problem.optimum() @ problem.optimum())
    few, many = (complexity(known, target=1e-3 * square, n_clients=n, squared_error=square) for n in (4, 8))
    return close(
        "Corollary 4.10",
        f"gradients per client fall as 1/N up to N = {few.largest_n_clients:,}: those for N = 4 over N = 8",
        f"ridge, B = {BATCH}, ε² = 0.001 ‖θ*‖²",
        2.0,
        Measured(np.array(few.gradients_per_client / many.gradients_per_client), np.zeros(())),
        0.1 * budget.loosen,
        conditions=few.bound.conditions,
    )
