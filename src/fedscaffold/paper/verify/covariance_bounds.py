"""Lemma 4.6, Lemma 4.7 and Theorem 4.8: local models, control variates and covariances in the stationary law."""

import numpy as np

from fedscaffold.core.types import Array
from fedscaffold.paper.verify.chains import StationaryChains
from fedscaffold.paper.verify.rows import StatementRow, bounded, jackknife, over_groups
from fedscaffold.paper.verify.settings import Case
from fedscaffold.theory import bounds
from fedscaffold.theory.bounds import Bound


def rows(chains: StationaryChains) -> list[StatementRow]:
    """From stationary chains; Lemma 4.7 for ridge, where it has no remainders."""
    found = [*_local(chains), _covariance(chains)]
    return [*found, _system(chains)] if chains.case.problem.kind == "ridge" else found


def _local(chains: StationaryChains) -> list[StatementRow]:
    case = chains.case
    own = np.einsum("gccii->gc", chains.xi)
    return [
        bounded("Lemma 4.6", f"stationary law: {what}", case.text, over_groups(groups), [case.bound(bound)], bound)
        for what, groups, bound in (
            ("E‖θ_c^h−θ*‖² ≤ 28γσ*²/μ for all c, h", chains.local, bounds.local_iterates),
            ("E‖ξ_c−ξ*_c‖² ≤ 54Lσ*²/(μH) for all c", own, bounds.control_variates),
        )
    ]


def _covariance(chains: StationaryChains) -> StatementRow:
    case, theorem = chains.case, bounds.stationary_covariance
    trace = over_groups(np.einsum("gii->g", chains.theta))
    higher = "" if case.constants.Q == 0 else " + O(γ^{3/2}Q) + O(γ³HQ²)"
    claim = f"stationary law: tr E(θ−θ*)(θ−θ*)ᵀ ≤ 10γσ*²/(Nμ){higher}"
    return bounded("Theorem 4.8", claim, case.text, trace, [case.bound(theorem)], theorem)


def _system(chains: StationaryChains) -> StatementRow:
    """The three inequalities: the largest left side over right side.

    The noise is taken at θ*, which is less than its stationary mean, so the right sides are a little too small.
    """
    case = chains.case
    noise = _noise(case)
    found = [
        jackknife(lambda a, b, c, k=k: _sides(case, noise, a, b, c)[k], chains.theta, chains.theta_xi, chains.xi)
        for k in range(3)
    ]
    each = ", ".join(f"{ratio:.2g}" for ratio, _ in found)
    claim = f"covariances of θ, (θ, ξ), ξ bound each other; left/right of the three: {each}"
    conditions = case.bound(
        bounds.covariance_system, theta=0.0, theta_xi=0.0, xi=0.0, round_noise=noise
    ).theta.conditions
    largest = max(found, key=lambda measured: measured.value)
    return bounded("Lemma 4.7", claim, case.text, largest, [Bound(1.0, conditions)], bounds.covariance_system)


def _sides(case: Case, noise: float, theta: Array, theta_xi: Array, xi: Array) -> tuple[float, float, float]:
    """Left side over right side of the three inequalities."""
    a = _norm(theta)
    b = float(np.mean([_norm(matrix) for matrix in theta_xi]))
    c = float(np.mean([_norm(matrix) for row in xi for matrix in row]))  # equal and different clients together
    right = case.bound(bounds.covariance_system, theta=a, theta_xi=b, xi=c, round_noise=noise)
    return a / right.theta.value, b / right.theta_xi.value, c / right.xi.value


def _noise(case: Case) -> float:
    """(1/N) Σ_c ‖Σ_h Γ_c^h C_c(θ*) Γ_c^h‖, the noise of a round."""
    problem, gamma = case.problem, case.method.step_size
    optimum = problem.optimum()
    covariances = problem.client_noise_covariances(optimum, batch_size=case.batch_size)
    steps = np.eye(problem.dim) - gamma * problem.client_hessians(optimum)
    powers = [np.linalg.matrix_power(steps, h) for h in range(case.method.uniform_local_steps)]
    total = sum(power @ covariances @ power for power in powers)
    return float(np.mean([_norm(matrix) for matrix in np.asarray(total)]))


def _norm(matrix: Array) -> float:
    return float(np.linalg.norm(matrix, 2))
