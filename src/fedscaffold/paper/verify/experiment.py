"""Rows on the paper's experiment: predictions, where the theorems' conditions do not hold, and Figure 1.

The exact law is for ridge, the first-order law, for small step sizes, for logistic regression. `predict` would
simulate there, which tests nothing.
"""

import tempfile
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path

import numpy as np

from fedscaffold.benchmarking.fits import reached_plateau
from fedscaffold.core.random.stream import Batches
from fedscaffold.methods import FedAvg, Scaffold
from fedscaffold.paper import figure1
from fedscaffold.paper.figure1 import BATCH_SIZE, KINDS, LOCAL_STEPS, METHODS, STEP_SIZE
from fedscaffold.paper.verify.convergence import contraction
from fedscaffold.paper.verify.rows import Measured, Printed, StatementRow, bounded, close, over_groups
from fedscaffold.paper.verify.settings import Budget, Case, describe
from fedscaffold.problems import Logistic, Ridge, paper
from fedscaffold.simulation import Trace
from fedscaffold.simulation.run_method import run
from fedscaffold.theory import constants, expansion, predict
from fedscaffold.theory.expansion import first_order_law

EXPERIMENT = "the paper's experiment: "
run_in_paper = partial(run, batch_size=BATCH_SIZE, progress=False)


def rows(budget: Budget) -> list[StatementRow]:
    """Return rows on plateaus, curves and conditions in the paper's setting."""
    found = []
    for kind in KINDS:
        for n_clients in budget.paper_clients:
            problem = paper(kind, n_clients=n_clients)
            known = constants(problem, batch_size=BATCH_SIZE)
            for method in METHODS:
                few = n_clients == min(budget.paper_clients)  # else runs would take too long
                if isinstance(problem, Ridge):
                    found += _exact(problem, method, few, budget)
                elif few:
                    found += _first_order(problem, method, budget)
                if isinstance(method, Scaffold):
                    found += _bounds(Case(problem, method, BATCH_SIZE, known), few, budget)
    return found


@lru_cache(maxsize=1)  # two kinds of rows need it, one after the other
def _plateau(problem: Ridge | Logistic, method: Scaffold | FedAvg, budget: Budget) -> Measured:
    repetitions = max(8, budget.paper_repetitions * 10 // problem.n_clients)
    trace = run_in_paper(problem, method, rounds=budget.paper_rounds, repetitions=repetitions, seed=11)
    level = reached_plateau(trace).plateau
    return Measured(np.array(level.mean), np.array(level.standard_error))


def _setting(problem: Ridge | Logistic, method: Scaffold | FedAvg) -> str:
    return f"{type(method).__name__}, {describe(problem, method.step_size, LOCAL_STEPS, BATCH_SIZE)}"


def _exact(problem: Ridge, method: Scaffold | FedAvg, few: bool, budget: Budget) -> list[StatementRow]:
    """Return rows on the plateau, the curve from zero, and FedAvg's variance, as its error is nearly all bias."""
    name, setting, first_order, rounds = "Exact law", _setting(problem, method), None, 30
    found = predict(problem, method, batch_size=BATCH_SIZE, rounds=rounds)
    if isinstance(method, Scaffold):
        leading = float(np.trace(expansion(problem, method, batch_size=BATCH_SIZE).cov_theta))
        first_order = Printed("tr (γ/N)𝐀C̄ (Lemma 5.1)", leading, label="first order")
    claim, level = "plateau E‖θ−θ*‖² = tr Σ + ‖b‖²", _plateau(problem, method, budget)
    result = [close(name, claim, setting, found.mse, level, 0.03 * budget.loosen, printed=first_order)]
    if not few:
        return result
    assert found.curve is not None
    trace = run_in_paper(problem, method, rounds=rounds, repetitions=budget.curve_repetitions, seed=13)
    mse = over_groups(trace.mse)
    at = int(np.argmax((np.abs(mse.value - found.curve) - 3.0 * mse.error)[1:] / found.curve[1:])) + 1
    furthest = f"E‖θ_t−θ*‖² for t = 1 to {rounds} from zero; furthest off at t = {at}"
    parts = [(furthest, found.curve[at], mse.at(at))]
    if isinstance(method, FedAvg):
        parts.append(("variance tr Σ of the plateau", found.variance, _variance(trace)))
    return result + [close(name, claim, setting, value, seen, 0.1 * budget.loosen) for claim, value, seen in parts]


def _first_order(problem: Logistic, method: Scaffold | FedAvg, budget: Budget) -> list[StatementRow]:
    """Return rows on the plateau with a tenth of the paper's step size, and on FedAvg's variance there.

    FedAvg's next terms are smaller than the first by γH‖∇²f_c‖, the tolerance: 0.34 here, 3.4 with the paper's γ.
    """
    method = replace(method, step_size=STEP_SIZE / 10.0)
    law, optimum = first_order_law(problem, method, Batches(BATCH_SIZE)), problem.optimum()
    largest = float(np.linalg.eigvalsh(problem.client_hessians(optimum)).max())
    slowest = float(np.linalg.eigvalsh(problem.hessian(optimum))[0])
    burn = int(4.0 / (method.step_size * LOCAL_STEPS * slowest))  # from θ*, e^{-8} of the variance is missing then
    repetitions = max(20, budget.paper_repetitions)
    trace = run_in_paper(problem, method, rounds=2 * burn, seed=11, theta0=optimum, repetitions=repetitions)
    plateau = over_groups(trace.mse[:, burn:].mean(axis=1))
    parts = [("plateau E‖θ−θ*‖² = γ tr 𝐀C̄ + ‖b‖²", law.mse, plateau)]
    if isinstance(method, Scaffold):
        tolerance = 0.05 * budget.loosen
    else:
        tolerance = method.step_size * LOCAL_STEPS * largest
        parts.append(("variance γ tr 𝐀C̄ of the plateau", law.variance, _variance(trace)))
    return [
        close("First order", claim, _setting(problem, method), value, seen, tolerance)
        for claim, value, seen in parts
    ]


def _variance(trace: Trace) -> Measured:
    """Return the variance of θ over repetitions after the last round."""
    squares = np.square(trace.theta - trace.theta.mean(axis=0)).sum(axis=1)
    return over_groups(squares * len(squares) / (len(squares) - 1))


def _bounds(case: Case, few: bool, budget: Budget) -> list[StatementRow]:
    """Return rows on the bounds, whose conditions do not hold in the paper's setting."""
    level = _plateau(case.problem, case.method, budget)
    result = [contraction(case, budget, EXPERIMENT)] if few else []
    return result + [
        bounded(f"{EXPERIMENT}plateau ≤ {formula}", _setting(case.problem, case.method), level, [bound])
        for formula, bound in (
            ("8γσ²/μ", case.bounds.stationary_mse()),
            ("(√(0.7γσ*²/(Nμ)) + 3.4Qγσ*²/μ²)²", case.bounds.stationary_covariance()),
        )
    ]


def figure_rows(budget: Budget) -> list[StatementRow]:
    """Return one row per claim of Section 6 about Figure 1, on fewer clients unless asked for all."""
    settings = figure1.Figure1Settings(clients=budget.figure_clients, seeds=budget.figure_draws)
    drawn = figure1.draws(settings) if budget.figure_draws > 1 else []
    with tempfile.TemporaryDirectory() as scratch:
        curves = figure1.simulate(settings, scratch=Path(scratch))
    clients = ", ".join(f"{n:,}" for n in budget.figure_clients)
    return [
        StatementRow(
            statement="Figure 1",
            claim=claim.claim,
            setting=f"ridge and logistic, γ = {STEP_SIZE}, H = {LOCAL_STEPS}, B = {BATCH_SIZE}, N = {clients}",
            relation="is",
            holds=claim.holds,
            finding=claim.measured,
        )
        for claim in figure1.claims(curves, drawn)
    ]
