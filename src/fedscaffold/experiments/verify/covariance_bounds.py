"""Lemma 4.6, Lemma 4.7 and Theorem 4.8: local models, control variates and covariances in the stationary law."""

import numpy as np

from fedscaffold.core.types import Array
from fedscaffold.experiments.verify.chains import Chains
from fedscaffold.experiments.verify.rows import Row, jackknife, over_groups, worst
from fedscaffold.experiments.verify.settings import Case
from fedscaffold.theory import bounds
from fedscaffold.theory.bounds import Condition


def rows(chains: Chains) -> list[Row]:
    """From stationary chains; Lemma 4.7 for ridge, where it has no remainders."""
    found = [*_local(chains), _covariance(chains)]
    return [*found, _system(chains)] if chains.case.problem.kind == "ridge" else found


def _local(chains: Chains) -> list[Row]:
    case = chains.case
    own = np.einsum("gccii->gc", chains.xi)
    found = []
    for what, groups, bound, name in (
        ("E‖θ_c^h−θ*‖² ≤ 28γσ*²/μ for all c, h", chains.local, bounds.local_iterates, "local_iterates"),
        ("E‖ξ_c−ξ*_c‖² ≤ 54Lσ*²/(μH) for all c", own, bounds.control_variates, "control_variates"),
    ):
        limit = bound(case.constants, **case.arguments)
        _, predicted, measured, error = worst(over_groups(groups), limit.value)
        found.append(
            Row(
                statement="Lemma 4.6",
                claim=f"stationary law: {what}",
                setting=case.text,
                relation="≤",
                predicted=predicted,
                measured=measured,
                standard_error=error,
                conditions=limit.conditions,
                uses=(f"bounds_crude.{name}",),
            )
        )
    return found


def _covariance(chains: Chains) -> Row:
    case = chains.case
    bound = bounds.stationary_covariance(case.constants, **case.arguments)
    value, error = over_groups(np.einsum("gii->g", chains.theta))
    higher = "" if case.constants.Q == 0 else " + O(γ^{3/2}Q) + O(γ³HQ²)"
    return Row(
        statement="Theorem 4.8",
        claim=f"stationary law: tr E(θ−θ*)(θ−θ*)ᵀ ≤ 10γσ*²/(Nμ){higher}",
        setting=case.text,
        relation="≤",
        predicted=bound.value,
        measured=float(value),
        standard_error=float(error),
        conditions=bound.conditions,
        uses=("bounds_speed_up.stationary_covariance",),
    )


def _system(chains: Chains) -> Row:
    """The three inequalities with the appendix's constants: the largest left side over right side.

    The noise is taken at θ*, which is less than its stationary mean, so the right sides are a little too small.
    """
    case = chains.case
    gamma, H = case.method.step_size, case.method.local_steps
    known = case.constants
    ratios, errors = [], []
    for k in range(3):
        ratio, error = jackknife(lambda a, b, c, k=k: _sides(case, a, b, c)[k], *_groups(chains))
        ratios.append(ratio)
        errors.append(error)
    at = int(np.argmax(ratios))
    each = ", ".join(f"{ratio:.2g}" for ratio in ratios)
    condition = Condition("γH(L + μ) ≤ 1/12", gamma * H * (known.L + known.mu), 1.0 / 12.0)
    return Row(
        statement="Lemma 4.7",
        claim=f"covariances of θ, (θ, ξ), ξ bound each other; left/right of the three: {each}",
        setting=case.text,
        relation="≤",
        predicted=1.0,
        measured=ratios[at],
        standard_error=errors[at],
        conditions=(condition,),
    )


def _groups(chains: Chains) -> tuple[Array, Array, Array]:
    return chains.theta, chains.theta_xi, chains.xi


def _sides(case: Case, theta: Array, theta_xi: Array, xi: Array) -> tuple[float, float, float]:
    """Left side over right side of the three inequalities; the first with all of Cov θ on its left."""
    gamma, H, N = case.method.step_size, case.method.local_steps, case.problem.n_clients
    mu, L, zeta2 = case.constants.mu, case.constants.L, case.constants.zeta2
    noise = _noise(case)
    a = _norm(theta)
    b = float(np.mean([_norm(matrix) for matrix in theta_xi]))
    c = float(np.mean([_norm(matrix) for row in xi for matrix in row]))  # equal and different clients together
    first = gamma**2 * H * (H - 1) * L * b
    first += gamma**4 * H**2 * (H - 1) ** 2 * L**2 / 4 * c + gamma**2 / N * noise
    second = 2 * zeta2 * a + 4 * gamma**3 * H * (H - 1) ** 2 * L**2 * c + 4 * gamma / (N * H) * noise
    third = 2 * zeta2**2 * a + 9 / (N * H**2) * noise + 4 * zeta2 * gamma * (H - 1) * L * b
    return (1 - (1 - gamma * mu) ** H) * a / first, b / second, c / third


def _noise(case: Case) -> float:
    """(1/N) Σ_c ‖Σ_h Γ_c^h C_c(θ*) Γ_c^h‖, the noise of a round."""
    problem, gamma = case.problem, case.method.step_size
    optimum = problem.optimum()
    covariances = problem.client_noise_covariances(optimum, batch_size=case.batch_size)
    steps = np.eye(problem.dim) - gamma * problem.client_hessians(optimum)
    powers = [np.linalg.matrix_power(steps, h) for h in range(case.method.local_steps)]
    total = sum(power @ covariances @ power for power in powers)
    return float(np.mean([_norm(matrix) for matrix in np.asarray(total)]))


def _norm(matrix: Array) -> float:
    return float(np.linalg.norm(matrix, 2))
