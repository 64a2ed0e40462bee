"""Every bound of the paper's Section 4 against simulations inside its conditions.

A test passes if mean + 4 standard errors ≤ bound, so that a false bound passes with probability 3e-5 at most.
Seeds are fixed. Each test prints how loose the bound is (see it with pytest -rP): from 1.01 for one round far from
the optimum to 300,000 for the stationary covariance of logistic regression.
"""

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pytest

import fedscaffold as fs
from fedscaffold import Scaffold
from fedscaffold.core.random.stream import Batches
from fedscaffold.core.types import Array
from fedscaffold.engines import Native
from fedscaffold.problems import Logistic, Ridge
from fedscaffold.theory import Constants, constants
from fedscaffold.theory.bounds import Bound, ScaffoldBounds
from tests.samples import KINDS, Kind, make

BATCH, DIM, RECORDS = 4, 3, 12


@dataclass(frozen=True)
class Measured:
    """Scaffold with γH(L + μ) a little below 1/parts, from zero and from X*."""

    problem: Ridge | Logistic
    constants: Constants
    setting: dict[str, Any]
    from_zero: Array  # ‖θ_t − θ*‖², (repetitions, rounds + 1)
    theta: Array  # after long enough from X*
    control_variates: Array
    settled: bool  # whether the mean squared error from X* has stopped growing

    @property
    def error(self) -> Array:
        """θ − θ* under the stationary law, (repetitions, dim)."""
        return self.theta - self.problem.optimum()

    @property
    def distance2(self) -> Array:
        """‖X − X*‖²_Λ under the stationary law."""
        return lambda_distance2(self, self.theta, self.control_variates)


def lambda_distance2(m: Measured, theta: Array, xi: Array) -> Array:
    length = m.setting["step_size"] * m.setting["local_steps"]
    off = np.square(xi + m.problem.client_gradients(m.problem.optimum())).sum(axis=2).mean(axis=1)
    return np.square(theta - m.problem.optimum()).sum(axis=1) + length**2 * off


@cache
def measured(kind: Kind, parts: int, H: int, N: int, repetitions: int) -> Measured:
    problem = make(kind, (RECORDS,) * N, DIM, l2=0.5 if kind == "ridge" else 1.0)
    known = constants(problem, batch_size=BATCH)
    smoothness = known.L_record if parts == 48 else known.L
    gamma = 0.99 / (parts * H * (smoothness + known.mu))
    method = Scaffold(step_size=gamma, local_steps=H)
    relaxation = 1.0 / (gamma * H * known.mu)
    optimum = problem.optimum()
    ideal = -problem.client_gradients(optimum)

    def simulate(rounds: float, seed: int, **start: Any) -> Any:
        return fs.run(
            problem, method, rounds=int(rounds) + 1, batch_size=BATCH, seed=seed, repetitions=repetitions,
            progress=False, **start,
        )  # fmt: skip

    zero = simulate(relaxation, 1)
    still = simulate(4 * relaxation, 2, theta0=optimum, control_variates0=ideal - ideal.mean(axis=0))
    half, whole = (still.mse[:, -int(1 + k * relaxation) :].mean() for k in (2, 1))
    setting = {"step_size": gamma, "local_steps": H, "n_clients": N}
    return Measured(
        problem, known, setting, zero.mse, still.theta, still.control_variates, bool(abs(whole / half - 1) < 0.1)
    )


def below(what: str, values: Array, bound: Bound) -> None:
    """Mean over repetitions + 4 standard errors ≤ bound, for each column."""
    assert bound.holds, bound.conditions
    columns = values.reshape(len(values), -1)
    mean, error = columns.mean(axis=0), columns.std(axis=0, ddof=1) / np.sqrt(len(columns))
    print(f"{what}: looseness {bound.value / mean.max():.3g}")
    assert (mean + 4 * error <= bound.value).all()


# small settings always, larger ones on request: (γH(L + μ) ≤ 1/parts, H, N, repetitions)
SMALL = [(1, 5, 4, 200), (12, 5, 4, 200), (48, 4, 4, 200)]
LARGE = [(1, 4, 20, 400), (1, 50, 20, 400), (12, 20, 20, 400), (48, 1, 20, 400), (48, 20, 20, 400)]
ALL = [*SMALL, *(pytest.param(*case, marks=pytest.mark.slow) for case in LARGE)]


def cases(*parts: int) -> list[Any]:
    """Those inside conditions as strict as asked."""
    return [case for case in ALL if (case.values if hasattr(case, "values") else case)[0] in parts]


every = pytest.mark.parametrize(("parts", "H", "N", "repetitions"), cases(1, 12, 48))
strict = pytest.mark.parametrize(("parts", "H", "N", "repetitions"), cases(12, 48))
strictest = pytest.mark.parametrize(("parts", "H", "N", "repetitions"), cases(48))
both = pytest.mark.parametrize("kind", KINDS)


@every
@both
def test_theorem_4_2(kind: Kind, parts: int, H: int, N: int, repetitions: int) -> None:
    """W₂² between the law at T and the stationary law is at least the squared distance of their means."""
    m = measured(kind, parts, H, N, repetitions)
    T = 3
    trace = fs.run(
        m.problem, Scaffold(step_size=m.setting["step_size"], local_steps=H), rounds=T, batch_size=BATCH,
        seed=3, repetitions=repetitions, progress=False,
    )  # fmt: skip
    optimum = m.problem.optimum()
    start = ScaffoldBounds(m.constants, **m.setting).initial_distance2(squared_error=float(optimum @ optimum))
    bound = ScaffoldBounds(m.constants, **m.setting).wasserstein_from_start(rounds=T, initial_distance2=start)
    assert bound.holds
    length = m.setting["step_size"] * H
    xi = np.square((trace.control_variates - m.control_variates).mean(axis=0)).sum(axis=1).mean()
    least = float(np.square((trace.theta - m.theta).mean(axis=0)).sum() + length**2 * xi)
    print(f"looseness at most {bound.value / least:.3g}")
    assert least <= bound.value


@every
@both
def test_lemma_4_3(kind: Kind, parts: int, H: int, N: int, repetitions: int) -> None:
    """One round from zero, and one from X*."""
    m = measured(kind, parts, H, N, repetitions)
    optimum = m.problem.optimum()
    ideal = -m.problem.client_gradients(optimum)
    method = Scaffold(step_size=m.setting["step_size"], local_steps=H)
    starts: list[tuple[Array, Array]] = [(0 * optimum, 0 * ideal), (optimum, ideal - ideal.mean(axis=0))]
    for theta0, xi0 in starts:
        trace = fs.run(
            m.problem, method, rounds=1, batch_size=BATCH, seed=4, repetitions=repetitions, progress=False,
            theta0=theta0, control_variates0=xi0,
        )  # fmt: skip
        before = float(lambda_distance2(m, theta0[None], xi0[None])[0])
        bound = ScaffoldBounds(m.constants, **m.setting).drift(distance2=before)
        below(f"from {before:.2g}", lambda_distance2(m, trace.theta, trace.control_variates), bound)


@every
@both
def test_theorem_4_4(kind: Kind, parts: int, H: int, N: int, repetitions: int) -> None:
    """In every round from zero."""
    m = measured(kind, parts, H, N, repetitions)
    start = ScaffoldBounds(m.constants, **m.setting).initial_distance2(squared_error=float(m.from_zero[0, 0]))
    for T in range(0, m.from_zero.shape[1], max(1, m.from_zero.shape[1] // 10)):
        bound = ScaffoldBounds(m.constants, **m.setting).crude_mse(rounds=T, initial_distance2=start)
        below(f"T = {T}", m.from_zero[:, T], bound)


@every
@both
def test_corollary_4_5(kind: Kind, parts: int, H: int, N: int, repetitions: int) -> None:
    m = measured(kind, parts, H, N, repetitions)
    assert m.settled
    below("plateau", m.distance2, ScaffoldBounds(m.constants, **m.setting).stationary_mse())


@strict
@both
def test_lemma_4_6(kind: Kind, parts: int, H: int, N: int, repetitions: int) -> None:
    """Each client, each local step; and each client's control variate."""
    m = measured(kind, parts, H, N, repetitions)
    optimum = m.problem.optimum()
    theta, xi = m.theta.copy(), m.control_variates.copy()
    with Native().open(m.problem, Batches(BATCH), seed=5) as local_sgd:
        for h in range(1, H + 1):
            local = local_sgd(theta, xi, step_size=m.setting["step_size"], local_steps=h, round=0)
            bound = ScaffoldBounds(m.constants, **m.setting).local_iterates()
            below(f"h = {h}", np.square(local - optimum).sum(axis=2), bound)
    off = m.control_variates + m.problem.client_gradients(optimum)
    bound = ScaffoldBounds(m.constants, **m.setting).control_variates()
    below("ξ", np.square(off).sum(axis=2), bound)


@strictest
@both
def test_theorem_4_8(kind: Kind, parts: int, H: int, N: int, repetitions: int) -> None:
    """The trace, so the largest eigenvalue too."""
    m = measured(kind, parts, H, N, repetitions)
    assert m.settled
    bound = ScaffoldBounds(m.constants, **m.setting).stationary_covariance()
    below("trace", np.square(m.error).sum(axis=1), bound)
    assert np.linalg.eigvalsh(m.error.T @ m.error / len(m.error))[-1] <= bound.value


@strictest
@both
def test_theorem_4_9(kind: Kind, parts: int, H: int, N: int, repetitions: int) -> None:
    """In every round from zero."""
    m = measured(kind, parts, H, N, repetitions)
    start = ScaffoldBounds(m.constants, **m.setting).initial_distance2(squared_error=float(m.from_zero[0, 0]))
    for T in range(0, m.from_zero.shape[1], max(1, m.from_zero.shape[1] // 10)):
        bound = ScaffoldBounds(m.constants, **m.setting).finite_time_mse(rounds=T, initial_distance2=start)
        below(f"T = {T}", m.from_zero[:, T], bound)


def test_a_violated_bound_would_be_seen() -> None:
    """With a step size a hundred times larger than Corollary 4.5 is told, the same check fails."""
    m = measured("ridge", 1, 5, 4, 200)
    small = ScaffoldBounds(
        m.constants, **{**m.setting, "step_size": m.setting["step_size"] / 100}
    ).stationary_mse()
    with pytest.raises(AssertionError):
        below("plateau", m.distance2, small)
