"""Lemma 4.1 to Corollary 4.5: contraction by coupling, drift, and the bounds without speed-up."""

import numpy as np

from fedscaffold.core.types import Array
from fedscaffold.methods import Scaffold
from fedscaffold.paper.coupling import ChainStart, Coupling, couple, squared_norm, to_stationarity
from fedscaffold.paper.verify.rows import Measured, StatementRow, bounded, over_groups
from fedscaffold.paper.verify.settings import INSIDE, KINDS, Budget, Case, crude

COUPLED_ROUNDS, BURN = 30, 10.0  # rounds; relaxation times
COUPLED_SHARE = 4  # couplings have so many times fewer repetitions: their noise is shared and so small


def rows(budget: Budget) -> list[StatementRow]:
    """For ridge and logistic regression, just inside the conditions."""
    found = []
    for kind in KINDS:
        case = crude(kind)
        found += [contraction(case, budget), *_wasserstein(case, budget)]
        found += [_drift(case, budget, "zero"), _drift(case, budget, "X*"), _drift_as_printed(case, budget)]
        found += [_crude_mse(case, budget), _stationary(case, budget)]
    return found


def contraction(case: Case, budget: Budget, where: str = "") -> StatementRow:
    """Two chains from random starts: the largest rate of any round."""
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
    claim = f"{where}coupled chains: E‖X⁺−X'⁺‖²_Λ/‖X−X'‖²_Λ ≤ (1−γμ/4)^H; largest, in round {at + 1}"
    return bounded("Lemma 4.1", claim, case.text, rate, [coupling.factor])


def _largest_rate(coupling: Coupling) -> tuple[int, Measured]:
    """Ratio of means, with the standard error of D_{t+1} − rate·D_t over the mean of D_t."""
    rates = coupling.rates
    before, after = coupling.distances[:, : rates.size], coupling.distances[:, 1 : rates.size + 1]
    errors = (after - rates * before).std(axis=0, ddof=1) / np.sqrt(len(before)) / before.mean(axis=0)
    at = int(np.argmax(rates))
    return at, Measured(rates, errors).at(at)


def _wasserstein(case: Case, budget: Budget) -> list[StatementRow]:
    """Mean squared distance to a stationary chain with the same noise, which is at least W₂²."""
    coupling = to_stationarity(
        case.problem, case.method, ChainStart(np.zeros(case.problem.dim)), rounds=COUPLED_ROUNDS,
        batch_size=case.batch_size, burn_in=int(BURN * case.relaxation), repetitions=_few(budget),
    )  # fmt: skip
    measured = over_groups(coupling.distances)
    rounds = range(1, COUPLED_ROUNDS + 1)
    now, first = float(measured.value[0]), case.initial_distance2
    decays = [case.bounds.wasserstein_decay(rounds=T, initial_wasserstein2=now) for T in rounds]
    starts = [case.bounds.wasserstein_from_start(rounds=T, initial_distance2=first) for T in rounds]
    return [
        bounded(
            "Theorem 4.2", f"W₂² to the stationary law after T rounds ≤ {what}", case.text,
            measured.at(np.s_[1:]), limits,
        )
        for what, limits in (
            ("(1−γμ/4)^{HT} W₂² at T = 0", decays),
            ("(1−γμ/4)^{HT} (‖X⁰−X*‖_Λ + √(8γσ²/μ))²", starts),
        )
    ]  # fmt: skip


def _drift(case: Case, budget: Budget, start: str, note: str = "") -> StatementRow:
    """From θ = 0 and ξ_c = 0, or from X*."""
    zero = start == "zero"
    theta = np.zeros(case.problem.dim) if zero else case.problem.optimum()
    xi = np.zeros_like(case.ideal) if zero else case.ideal
    before = float(distance2(case, theta[None], xi[None])[0])
    trace = case.run(
        rounds=1, seed=4, repetitions=budget.repetitions, theta0=theta, control_variates0=xi, record=()
    )
    after = over_groups(distance2(case, trace.theta, trace.control_variates))
    claim = f"one round from {start}: E‖X⁺−X*‖²_Λ ≤ (1−γμ/4)^H‖X−X*‖²_Λ + 2γ²Hσ²{note}"
    return bounded("Lemma 4.3", claim, case.text, after, [case.bounds.drift(distance2=before)])


def _drift_as_printed(case: Case, budget: Budget) -> StatementRow:
    """H = 1 and γ(L + μ) ≤ 1: inside the printed condition, outside γ ≤ 1/(4L), which the proof uses."""
    known = case.constants
    method = Scaffold(step_size=INSIDE / (known.L + known.mu), local_steps=1)
    wide = Case(case.problem, method, case.batch_size, known)
    return _drift(wide, budget, "zero", note="; printed without γ ≤ 1/(4L)")


def _crude_mse(case: Case, budget: Budget) -> StatementRow:
    trace = case.run(rounds=int(4 * case.relaxation) + 1, seed=5, repetitions=budget.repetitions)
    first = case.initial_distance2
    limits = [case.bounds.crude_mse(rounds=T, initial_distance2=first) for T in range(1, trace.rounds + 1)]
    claim = "E‖θ^T−θ*‖² ≤ (1−γμ/4)^{HT}‖X⁰−X*‖²_Λ + 8γσ²/μ"
    later = over_groups(trace.mse).at(np.s_[1:])
    return bounded("Theorem 4.4", claim, case.text, later, limits)


def _stationary(case: Case, budget: Budget) -> StatementRow:
    trace = case.run(
        rounds=int(BURN * case.relaxation) + 1, seed=6, repetitions=budget.repetitions,
        theta0=case.problem.optimum(), control_variates0=case.ideal, record=(),
    )  # fmt: skip
    found = over_groups(distance2(case, trace.theta, trace.control_variates))
    claim = "stationary law: E‖X−X*‖²_Λ, so E‖θ−θ*‖², ≤ 8γσ²/μ"
    return bounded("Corollary 4.5", claim, case.text, found, [case.bounds.stationary_mse()])


def distance2(case: Case, theta: Array, xi: Array) -> Array:
    """‖X − X*‖²_Λ, one per repetition."""
    return squared_norm(theta - case.problem.optimum(), xi - case.ideal, case.method, case.problem.weights)


def _few(budget: Budget) -> int:
    return max(2, budget.repetitions // COUPLED_SHARE)
