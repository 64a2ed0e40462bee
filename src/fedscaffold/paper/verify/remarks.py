"""Rows on Remarks 2.1, 4.11 and 5.2, and on the end of the linear speed-up."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from fedscaffold.core.types import Array
from fedscaffold.methods import Scaffold, TwoSidedScaffold
from fedscaffold.paper.verify.rows import Measured, StatementRow, bounded, close, jackknife
from fedscaffold.paper.verify.settings import BATCH, KINDS, MODERATE, WIDE, Budget, Kind, case, make
from fedscaffold.simulation.observers import squared_distance
from fedscaffold.simulation.run_method import run
from fedscaffold.theory import constants
from fedscaffold.theory.bounds import Bound, complexity


def rows(budget: Budget) -> list[StatementRow]:
    """Return all of them."""
    return [*_two_sided(), *_condition_number(), *_lyapunov(budget), *saturation(budget)]


def _two_sided() -> list[StatementRow]:
    """Divide the local step by √N and multiply the server's by √N: a round nears one step of gradient descent."""
    found = []
    for kind in KINDS:
        gaps, copies, gamma, H = [], np.array([4, 16, 64, 256]), 0.05, 10
        for each in copies:
            problem = make(kind, 1, 3, MODERATE[kind], copies=int(each))
            scale = float(np.sqrt(each))
            method = TwoSidedScaffold(step_size=gamma / scale, local_steps=H, server_step_size=scale)
            trace = run(problem, method, rounds=1, batch_size=None, progress=False, record=())
            zero = np.zeros(problem.dim)
            gaps.append(np.linalg.norm(trace.theta[0] + gamma * H * problem.client_gradients(zero).mean(axis=0)))
        slope = float(np.polyfit(np.log(copies), np.log(gaps), 1)[0])
        found.append(
            close(
                "Remark 2.1",
                "local step γ/√N, server's √N: distance from a step of (mini-batch) gradient descent "
                "of size γH after one round falls as 1/√N: slope in log N",
                f"{kind}, γ = {gamma}, H = {H}, full gradients, N = 4 to 256",
                -0.5,
                Measured(np.array(slope), np.zeros(())),
                0.1,
            )
        )
    return found


def _condition_number() -> list[StatementRow]:
    """Compute T of Corollary 4.10 for L and 4L; whether √(L/μ) is enough with linear speed-up is a question."""
    known = replace(constants(make("ridge", 4, 3, MODERATE["ridge"]), batch_size=BATCH), zeta2=0.0)
    far = replace(known, L=100 * known.mu, L_record=100 * known.mu)
    wide = replace(known, L=400 * known.mu, L_record=400 * known.mu)
    few, many = (complexity(each, target=1e-6, n_clients=4, squared_error=1.0).rounds for each in (far, wide))
    seen = Measured(np.array(many / few), np.zeros(()))
    setting = f"ridge's constants, L/μ = 100 and 400, B = {BATCH}, N = 4, ε² = 1e-6"
    claim = "rounds of the analysis grow as L/μ: T for 4L over T for L"
    open_question = StatementRow(
        statement="Remark 4.11", claim="whether √(L/μ) is possible with linear speed-up", setting="any",
        relation="is",
        finding="not measurable: the remark calls it an open question, and a run is no proof",
    )  # fmt: skip
    return [close("Remark 4.11", claim, setting, 4.0, seen, 0.1), open_question]


def _lyapunov(budget: Budget) -> list[StatementRow]:
    """Measure γ²H² mean E‖ξ_c − ξ*_c‖² for N and 4N clients, which Lemma 5.1 has (1 − 1/N) times a constant."""
    found = []
    for kind in KINDS:
        sizes, seen, thetas = (3, 12), [], []
        for copies in (1, 4):
            one = case(make(kind, 3, 2, WIDE[kind], copies=copies), parts=12, H=4)
            trace = one.run(
                rounds=int(6.0 * one.relaxation), seed=12, repetitions=4 * budget.repetitions, record=(),
                theta0=one.problem.optimum(), control_variates0=one.ideal,
            )  # fmt: skip
            seen.append(np.square(trace.control_variates - one.ideal).sum(axis=2).mean(axis=1))
            thetas.append(squared_distance(trace.theta, one.problem.optimum()))
        ratio = jackknife(lambda a, b: float(b / a), *(each.reshape(20, -1).mean(axis=1) for each in seen))
        falls = float(np.mean(thetas[1]) / np.mean(thetas[0]))
        found.append(
            close(
                "Remark 5.2",
                "γ²H² mean E‖ξ_c−ξ*_c‖² of ProxSkip's Lyapunov function has no linear speed-up: "
                "from N = 3 to 12 it grows as 1 − 1/N",
                one.text,
                (1 - 1 / sizes[1]) / (1 - 1 / sizes[0]),
                ratio,
                0.1 * budget.loosen,
                finding=f"E‖θ−θ*‖² changes by the factor {falls:.2g}",
            )
        )
    return found


# The end of the linear speed-up: rounds as long as a few times 1/μ, N and 10N clients, B = 1. Noise falls as 1/N,
# the bias of logistic losses stays. N is three times the number of clients for which both are equal, as runs with
# other draws say, so that the plateau for N is at most 20/11 of the one for 10N, and about 1.3 of it.

LONG_ROUNDS: tuple[tuple[Kind, float, int], ...] = (("ridge", 0.1, 0), ("logistic", 1.0, 0), ("logistic", 1.0, 2))


def saturation(budget: Budget, settings: Sequence[tuple[Kind, float, int]] = LONG_ROUNDS) -> list[StatementRow]:
    """Return a row for each kind of loss, γ and seed of the data."""
    found = []
    ends = "plateau for N over that for 10N"
    for kind, gamma, data in settings:
        plan: dict[str, Any] = {"kind": kind, "gamma": gamma, "data": data}
        if kind == "ridge":
            claim = f"Section 6: the speed-up has no end for quadratic losses; {ends}"
            few, limit = 100, 10.0
        else:
            claim = f"Section 6: saturation, more than half of the plateau is bias, which stays; {ends}"
            few, limit = 3 * _equal_parts(**plan), 20.0 / 11.0
        levels = [_level(copies=each, seed=15, **plan)[0] for each in (few, 10 * few)]
        ratio = jackknife(lambda a, b: float(a / b), *levels)
        setting = f"{kind}, γ = {gamma}, H = 50, B = 1, N = {2 * few:,} and {20 * few:,}"
        if kind == "ridge":
            found.append(close("Corollary 4.10", claim, setting, limit, ratio, 0.15 * budget.loosen))
        else:
            found.append(bounded(claim, setting, ratio, [Bound(limit, (), "Corollary 4.10")]))
    return found


def _equal_parts(kind: Kind, gamma: float, data: int) -> int:
    """Return half the number of clients for which squared bias and variance are equal, from 400 clients."""
    copies = 200
    mse, away = _level(kind, gamma, data, copies, seed=16)
    total, count = away.sum(axis=0), len(away)
    squared_bias = (total @ total - np.square(away).sum()) / (count * (count - 1))  # over pairs: without the noise
    return int(np.ceil(copies * (mse.mean() - squared_bias) / squared_bias))


def _level(kind: Kind, gamma: float, data: int, copies: int, seed: int) -> tuple[Array, Array]:
    """Return the squared error and the mean of θ − θ* of each run, from round 10 on."""
    problem = make(kind, 2, 3, WIDE[kind], copies=copies, seed=data)
    ideal, optimum = -problem.client_gradients(problem.optimum()), problem.optimum()

    def away(theta: Array) -> Array:
        return theta - optimum

    trace = run(
        problem, Scaffold(step_size=gamma, local_steps=50), rounds=60 if kind == "ridge" else 30, batch_size=1,
        seed=seed, repetitions=40 if kind == "ridge" else 10, progress=False, theta0=optimum,
        control_variates0=ideal - ideal.mean(axis=0), record=("mse", away),
    )  # fmt: skip
    return trace.mse[:, 10:].mean(axis=1), trace.metrics["away"][:, 10:].mean(axis=1)
