"""Corollary 4.5 to Theorem 4.8: moments, local models, control variates and covariances in the stationary law."""

import numpy as np

from fedscaffold.core.types import Array
from fedscaffold.paper.verify.chains import StationaryChains
from fedscaffold.paper.verify.rows import Measured, StatementRow, bounded, jackknife, over_groups
from fedscaffold.paper.verify.settings import Case
from fedscaffold.theory.bounds import MOMENTS, Bound, Order, Proof


def rows(chains: StationaryChains) -> list[StatementRow]:
    """From stationary chains; Lemma 4.7 for ridge, where it has no remainders."""
    found = [*_local(chains), *_moments(chains), *_covariance(chains)]
    return [*found, _system(chains)] if chains.case.problem.kind == "ridge" else found


def _local(chains: StationaryChains) -> list[StatementRow]:
    case = chains.case
    own, squares = np.einsum("gccii->gc", chains.xi), chains.local[:, 0]
    return [
        bounded(statement, f"stationary law: {what}", case.text, over_groups(groups), [bound])
        for statement, what, groups, bound in (
            (
                "Corollary 4.5",
                "third line, Σ w_c E‖θ_c^h−θ*‖² ≤ 16.6γσ²/μ for all h",
                squares @ case.problem.weights,
                case.bounds.mean_local_iterates(),
            ),
            ("Lemma 4.6", "E‖θ_c^h−θ*‖² ≤ 28γσ*²/μ for all c, h", squares, case.bounds.local_iterates()),
            ("Lemma 4.6", "E‖ξ_c−ξ*_c‖² ≤ 54Lσ*²/(μH) for all c", own, case.bounds.control_variates()),
        )
    ]


def _moments(chains: StationaryChains) -> list[StatementRow]:
    """Orders 2, 4 and 6: E^{2/q} of the state and of every local model, with its error by the delta method."""
    case, rows = chains.case, []
    orders: tuple[Order, ...] = (2, 4, 6)
    for k, order in enumerate(orders):
        p, (whole, local) = order // 2, MOMENTS[order]
        for statement, what, factor, groups, bound in (
            ("Corollary 4.5", "‖X−X*‖^q_Λ", whole, chains.distance[:, k], case.bounds.stationary_moment),
            ("Lemma 4.6", "‖θ_c^h−θ*‖^q for all c, h", local, chains.local[:, k], case.bounds.local_moment),
        ):
            mean, error = over_groups(groups)
            root = Measured(mean ** (1 / p), error * mean ** (1 / p - 1) / p)
            claim = f"of higher order, q = {order}: E^{{2/q}}{what} ≤ {factor:.3g}γσ*²/μ"
            rows.append(bounded(statement, claim, case.text, root, [bound(order=order)]))
    return rows


def _covariance(chains: StationaryChains) -> list[StatementRow]:
    case = chains.case
    trace = over_groups(np.einsum("gii->g", chains.theta))
    curved = case.constants.Q > 0
    higher = " + O(γ^{3/2}Q) + O(γ³HQ²)" if curved else ""
    sharp = "(√(0.7γσ*²/(Nμ)) + 3.4Qγσ*²/μ²)²" if curved else "0.7γσ*²/(Nμ)"
    claims: tuple[tuple[str, Proof], ...] = (
        (f"{sharp}, by fourth moments", "sharp"),
        (f"10γσ*²/(Nμ){higher}, the paper's constants", "paper"),
    )
    return [
        bounded(
            "Theorem 4.8", f"stationary law: tr E(θ−θ*)(θ−θ*)ᵀ ≤ {claim}", case.text, trace,
            [case.bounds_by(proof).stationary_covariance()],
        )
        for claim, proof in claims
    ]  # fmt: skip


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
    conditions = case.bounds.covariance_system(theta=0.0, theta_xi=0.0, xi=0.0, round_noise=noise).theta.conditions
    largest = max(found, key=lambda measured: measured.value)
    return bounded("Lemma 4.7", claim, case.text, largest, [Bound(1.0, conditions, "Lemma 4.7")])


def _sides(case: Case, noise: float, theta: Array, theta_xi: Array, xi: Array) -> tuple[float, float, float]:
    """Left side over right side of the three inequalities."""
    a = _norm(theta)
    b = float(np.mean([_norm(matrix) for matrix in theta_xi]))
    c = float(np.mean([_norm(matrix) for row in xi for matrix in row]))  # equal and different clients together
    right = case.bounds.covariance_system(theta=a, theta_xi=b, xi=c, round_noise=noise)
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
