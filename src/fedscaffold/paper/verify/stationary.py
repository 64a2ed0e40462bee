"""Rows from stationary chains: Corollary 4.5 to Theorem 4.8, Lemma 5.1 and Theorem 5.3.

Many chains run side by side, and second moments of θ, ξ_c and local models are taken. Means of θ and ξ_c are small
next to their noise. But some other quantities have mean exactly 0 in the stationary law: the noise ε_c^h of each
gradient; Z, the mean over clients and local steps of ∇f_c(θ_c^h), because E θ⁺ = E θ and Σ ξ_c = 0; and
V_c = ξ_c + mean over h of ∇f_c(θ_c^h), because E θ_c^H = E θ⁺. Regressing θ − θ* and ξ_c − ξ*_c on them and taking
the intercept leaves the means as they are and removes nearly all of the noise.
"""

from dataclasses import dataclass

import numpy as np

from fedscaffold.core.protocols import LocalSgd
from fedscaffold.core.random.stream import Batches
from fedscaffold.core.types import Array
from fedscaffold.engines import choose_engine
from fedscaffold.paper.coupling import squared_norm
from fedscaffold.paper.verify.rows import (
    Measured,
    Printed,
    StatementRow,
    bounded,
    close,
    norm,
    over_groups,
)
from fedscaffold.paper.verify.settings import Budget, Case
from fedscaffold.problems import Logistic, Ridge
from fedscaffold.simulation.observers import squared_distance
from fedscaffold.simulation.rounds import State, initial_state, open_rounds
from fedscaffold.simulation.setup import RunSetup, divergence_limit
from fedscaffold.theory import Expansion, expansion
from fedscaffold.theory.bounds import MOMENTS, Order, Proof

GROUPS = 20  # of chains: enough for standard errors to a sixth
ORDERS: tuple[Order, ...] = (2, 4, 6)


@dataclass(frozen=True)
class StationaryChains:
    """Means over chains and rounds, one for each of 20 groups of chains: errors come from their spread."""

    case: Case
    theta: Array  # (θ − θ*)(θ − θ*)ᵀ, (groups, d, d)
    theta_xi: Array  # (θ − θ*)(ξ_c − ξ*_c)ᵀ, (groups, N, d, d)
    xi: Array  # (ξ_c − ξ*_c)(ξ_c' − ξ*_c')ᵀ, (groups, N, N, d, d)
    distance: Array  # ‖X − X*‖_Λ to the powers 2, 4 and 6, (groups, 3)
    xi_norms: Array  # ‖ξ_c − ξ*_c‖ to the powers 2, 4 and 6, (groups, 3, N)
    local: Array  # ‖θ_c^h − θ*‖ to the powers 2, 4 and 6 for h = 0, ..., H, (groups, 3, H + 1, N)
    parts: Array  # products of θ − θ*, ξ_c − ξ*_c, R_c and ε_c of a round, (groups, 1 + 3N, 1 + 3N, d, d)
    bias: Array  # E θ − θ*, (groups, d)
    bias_xi: Array  # E ξ_c − ξ*_c, (groups, N, d)


def simulate(case: Case, budget: Budget, *, seed: int = 7, fedavg: bool = False) -> StationaryChains:
    """Run `budget.chains` chains from X*, over `budget.rounds` rounds after burn-in.

    With `fedavg`, ξ_c is set back to ξ*_c after every round, which for equal clients, whose ξ*_c are 0, is FedAvg.
    """
    problem, method, optimum, ideal = case.problem, case.method, case.problem.optimum(), case.ideal
    repetitions = budget.chains // GROUPS * GROUPS
    batches = Batches(case.batch_size)
    state = start = initial_state(problem, method, np.tile(optimum, (repetitions, 1)), ideal)
    setup = RunSetup(
        problem=problem, method=method, engine=choose_engine("auto", problem), theta=state.theta, batches=batches,
        seed=seed, limit=divergence_limit(optimum),
    )  # fmt: skip
    burn = int(3.0 * case.relaxation) + 1  # from X*, e^{-6} of the variance is missing then
    every: list[Array] = []
    thinned: list[Array] = []
    thin = 5  # local models, which cost H runs of local steps, are taken in every fifth round
    with setup.engine.open(problem, batches, seed=seed) as local_sgd, open_rounds(setup) as step:
        for t in range(burn + budget.rounds):
            if t >= burn:
                every = _add(every, _outside(case, state.theta - optimum, state.client_state.xi - ideal))
                if (t - burn) % thin == 0:
                    thinned = _add(thinned, _inside(case, state, _local_models(case, state, local_sgd)))
            state = step(state)
            if fedavg:
                state = state._replace(client_state=start.client_state)
    theta, theta_xi, xi, distance, xi_norms = (total / budget.rounds for total in every)
    local, parts, *sums = (total / len(range(0, budget.rounds, thin)) for total in thinned)
    means = _intercepts(*sums)
    bias_xi = means[:, problem.dim :].reshape(GROUPS, problem.n_clients, problem.dim)
    bias = means[:, : problem.dim]
    return StationaryChains(case, theta, theta_xi, xi, distance, xi_norms, local, parts, bias, bias_xi)


def _local_models(case: Case, state: State, local_sgd: LocalSgd) -> Array:
    """Return θ_c^h of the coming round, (H + 1, repetitions, N, d)."""
    xi, gamma = state.client_state.xi, case.method.step_size
    start = np.broadcast_to(state.theta[:, None], xi.shape)
    later = (
        local_sgd(state.theta, xi, step_size=gamma, local_steps=h, round=state.round)
        for h in range(1, case.method.uniform_local_steps + 1)
    )
    return np.stack([start, *later])


def _outside(case: Case, theta: Array, xi: Array) -> list[Array]:
    """Return the means over a group's chains of the products of θ and ξ, and of ‖X − X*‖^q_Λ."""
    a, b = _grouped(theta), _grouped(xi)
    distance = _grouped(squared_norm(theta, xi, case.method, case.problem.weights))
    n = a.shape[1]
    return [
        np.einsum("gri,grj->gij", a, a, optimize=True) / n,
        np.einsum("gri,grcj->gcij", a, b, optimize=True) / n,
        np.einsum("grci,grej->gceij", b, b, optimize=True) / n,
        np.stack([(distance ** (q // 2)).mean(axis=1) for q in ORDERS], axis=1),
        np.stack([(np.square(b).sum(axis=3) ** (q // 2)).mean(axis=1) for q in ORDERS], axis=1),
    ]


def _inside(case: Case, state: State, local: Array) -> list[Array]:
    """Return the means of ‖θ_c^h − θ*‖^q, of products of a round's parts, and of y, u, yuᵀ, uuᵀ.

    The parts are θ − θ*, ξ_c − ξ*_c and, as in Lemma C.1, the sums over h of Γ_c^{H−1−h} times the second-order
    remainders of gradients, R_c, and times the noise, ε_c. Here y = (θ − θ*, −mean_h ∇f_c(θ_c^h) − ξ*_c) and
    u = (Z, V_c, noise).
    """
    problem, optimum, xi = case.problem, case.problem.optimum(), state.client_state.xi
    gradients = np.stack([gradients_at(problem, points) for points in local[:-1]])
    noise = (local[:-1] - local[1:]) / case.method.step_size - xi - gradients
    mean = gradients.mean(axis=0)
    flat = (len(xi), -1)
    last = np.arange(len(noise), 0, -1) - 1.0  # the last step's noise moves no gradient
    y = np.concatenate([state.theta - optimum, (-mean - case.ideal).reshape(flat)], axis=1)
    pushed = np.einsum("h,hrci->rci", last, noise)
    u = np.concatenate([mean.mean(axis=1), (xi + mean).reshape(flat), pushed.reshape(flat)], axis=1)
    y, u = _grouped(y), _grouped(u)
    n = y.shape[1]
    squares = _grouped(squared_distance(local, optimum).swapaxes(0, 1))
    powers = np.stack([(squares ** (q // 2)).mean(axis=1) for q in ORDERS], axis=1)
    products = [np.einsum("gri,grj->gij", v, u, optimize=True) / n for v in (y, u)]
    curved = gradients + case.ideal - np.einsum("cij,hrcj->hrci", case.hessians, local[:-1] - optimum)
    summed = [np.einsum("hcij,hrcj->rci", case.powers[-2::-1], each, optimize=True) for each in (curved, noise)]
    v = _grouped(np.concatenate([(state.theta - optimum)[:, None], xi - case.ideal, *summed], axis=1))
    parts = np.einsum("grai,grbj->gabij", v, v, optimize=True) / n
    return [powers, parts, y.mean(axis=1), u.mean(axis=1), *products]


def _intercepts(y: Array, u: Array, yu: Array, uu: Array) -> Array:
    """Return the mean of y less the part that the zero-mean u explain, per group; coefficients from all groups."""
    scale = np.sqrt(np.maximum(np.diagonal(uu.mean(axis=0)), 1e-300))
    cov_u = (uu.mean(axis=0) - np.outer(u.mean(axis=0), u.mean(axis=0))) / np.outer(scale, scale)
    cov_yu = (yu.mean(axis=0) - np.outer(y.mean(axis=0), u.mean(axis=0))) / scale
    coefficients = cov_yu @ np.linalg.pinv(cov_u, rcond=1e-11, hermitian=True) / scale
    return y - u @ coefficients.T


def gradients_at(problem: Ridge | Logistic, points: Array) -> Array:
    """Return ∇f_c at points (repetitions, N, d), for clients with equally many records."""
    n = int(problem.sizes[0])
    x, y = problem.x.reshape(problem.n_clients, n, problem.dim), problem.y.reshape(problem.n_clients, n)
    first = problem.d1(np.einsum("cnd,rcd->rcn", x, points, optimize=True), y)
    return np.einsum("rcn,cnd->rcd", first, x, optimize=True) / n + problem.penalty * points


def _grouped(values: Array) -> Array:
    return values.reshape(GROUPS, -1, *values.shape[1:])


def _add(sums: list[Array], values: list[Array]) -> list[Array]:
    return [a + b for a, b in zip(sums, values, strict=True)] if sums else values


# Section 4: upper bounds


def bound_rows(chains: StationaryChains) -> list[StatementRow]:
    """Return rows on moments and covariances."""
    return [*_local(chains), *_moments(chains), *_covariance(chains)]


def _local(chains: StationaryChains) -> list[StatementRow]:
    case = chains.case
    own, squares = np.einsum("gccii->gc", chains.xi), chains.local[:, 0]
    mean, third = squares @ case.problem.weights, "third line, Σ w_c E‖θ_c^h−θ*‖² ≤ 16.62γσ²/μ for all h"
    return [
        bounded(f"stationary law: {claim}", case.text, over_groups(groups), [bound])
        for claim, groups, bound in (
            (third, mean, case.bounds.mean_local_iterates()),
            ("E‖θ_c^h−θ*‖² ≤ 28γσ*²/μ for all c, h", squares, case.bounds.local_iterates()),
            ("E‖ξ_c−ξ*_c‖² ≤ 54Lσ*²/(μH) for all c", own, case.bounds.control_variates()),
        )
    ]


def _moments(chains: StationaryChains) -> list[StatementRow]:
    """Return rows on E^{2/q} of the state and of every local model, with errors by the delta method."""
    case, rows = chains.case, []
    for k, order in enumerate(ORDERS):
        p, (whole, local) = order // 2, MOMENTS[order]
        for moment, factor, groups, bound in (
            ("‖X−X*‖^q_Λ", whole, chains.distance[:, k], case.bounds.stationary_moment),
            ("‖θ_c^h−θ*‖^q for all c, h", local, chains.local[:, k], case.bounds.local_moment),
        ):
            mean, error = over_groups(groups)
            root = Measured(mean ** (1 / p), error * mean ** (1 / p - 1) / p)
            claim = f"of higher order, q = {order}: E^{{2/q}}{moment} ≤ {factor:.3g}γσ*²/μ"
            rows.append(bounded(claim, case.text, root, [bound(order=order)]))
    return rows


def _covariance(chains: StationaryChains) -> list[StatementRow]:
    case, trace = chains.case, over_groups(np.einsum("gii->g", chains.theta))
    curved = case.constants.Q > 0
    higher = " + O(γ^{3/2}Q) + O(γ³HQ²)" if curved else ""
    sharp = "(√(0.7γσ*²/(Nμ)) + 3.4Qγσ*²/μ²)²" if curved else "0.7γσ*²/(Nμ)"
    claims: tuple[tuple[str, Proof], ...] = (
        (f"{sharp}, by fourth moments", "sharp"),
        (f"10γσ*²/(Nμ){higher}, the paper's constants", "paper"),
    )
    return [
        bounded(
            f"stationary law: tr E(θ−θ*)(θ−θ*)ᵀ ≤ {claim}", case.text, trace,
            [case.bounds_by(proof).stationary_covariance()],
        )
        for claim, proof in claims
    ]  # fmt: skip


# Section 5: expansions to first order, and the signs that are wrong in print

Part = tuple[str, str, Array, Measured, Printed | None]  # statement, claim, predicted, measured, as printed


def expansion_rows(chains: StationaryChains, budget: Budget) -> list[StatementRow]:
    """Return rows on covariances, and on biases for logistic regression, as ridge has none."""
    case = chains.case
    found = expansion(case.problem, case.method, batch_size=case.batch_size)
    spread = case.problem.client_hessians(case.problem.optimum()) - found.hessian
    parts = _covariances(chains, found, spread)
    if case.problem.kind != "ridge":
        parts += _biases(chains, found, spread)
    conditions = case.bounds.stationary_covariance().conditions
    return [
        close(
            statement, claim, case.text, value, seen, 0.05 * budget.loosen, conditions=conditions, printed=printed
        )
        for statement, claim, value, seen, printed in parts
    ]


def _covariances(chains: StationaryChains, found: Expansion, spread: Array) -> list[Part]:
    clients = range(chains.case.problem.n_clients)
    cross = np.stack([found.cov_theta_xi(c) for c in clients])
    as_printed = cross + 2.0 * found.cov_theta @ spread
    measured, of_xi = over_groups(chains.theta_xi), over_groups(chains.xi)
    printed = Printed("(γ/N){+𝐀C̄(∇²f_c−∇²f) + C_c − C̄}", norm(as_printed), norm(measured.value - as_printed))
    result: list[Part] = [
        ("Lemma 5.1", "Cov θ = (γ/N)𝐀C̄", found.cov_theta, over_groups(chains.theta), None),
        ("Lemma 5.1", "Cov(θ, ξ_c) = (γ/N){−𝐀C̄(∇²f_c−∇²f) + C_c − C̄}", cross, measured, printed),
    ]
    for claim, pairs in (
        ("Cov ξ_c = (1−2/N)C_c/H + C̄/(NH)", [(c, c) for c in clients]),
        ("Cov(ξ_c, ξ_c') = (C̄ − C_c − C_c')/(NH)", [(c, i) for c in clients for i in clients if c != i]),
    ):
        value = np.stack([found.cov_xi(c, i) for c, i in pairs])
        result.append(("Lemma 5.1", claim, value, of_xi.at(tuple(np.array(pairs).T)), None))
    return result


def _biases(chains: StationaryChains, found: Expansion, spread: Array) -> list[Part]:
    N = chains.case.problem.n_clients
    bias, bias_xi = over_groups(chains.bias), over_groups(chains.bias_xi)
    of_xi = np.stack([found.bias_xi(c) for c in range(N)])
    too_small, wrong_sign = found.bias / N, spread @ found.bias
    printed = Printed("−(1/2N) ∇²f⁻¹ ∇³f[Cov θ]", norm(too_small), norm(bias.value - too_small))
    printed_xi = Printed("+(∇²f_c−∇²f) b", norm(wrong_sign), norm(bias_xi.value - wrong_sign))
    before = "b = −½ ∇²f⁻¹ ∇³f[Cov θ] (lemma before Theorem 5.3)"
    claim_xi = "E ξ_c − ξ*_c = −(∇²f_c−∇²f) b − ½(∇³f_c−∇³f)[Cov θ] (sign as in Lemma 5.1)"
    return [
        ("Theorem 5.3", "b = E θ − θ* = −(γ/2N) ∇²f⁻¹ ∇³f[𝐀C̄]", found.bias, bias, None),
        ("Lemma E.4", before, found.bias, bias, printed),
        ("Lemma E.2", claim_xi, of_xi, bias_xi, printed_xi),
    ]
