"""Many stationary chains side by side: second moments of θ, ξ_c and local models, and their means.

Means of θ and ξ_c are small next to their noise. But some other quantities have mean exactly 0 in the stationary
law: the noise ε_c^h of each gradient; Z, the mean over clients and local steps of ∇f_c(θ_c^h), because
E θ⁺ = E θ and Σ ξ_c = 0; and V_c = ξ_c + mean over h of ∇f_c(θ_c^h), because E θ_c^H = E θ⁺. Regressing θ − θ* and
ξ_c − ξ*_c on them and taking the intercept leaves the means as they are and removes nearly all of the noise.
"""

from dataclasses import dataclass

import numpy as np

from fedscaffold.core.protocols import LocalSgd
from fedscaffold.core.random.batches import Batches
from fedscaffold.core.types import Array
from fedscaffold.engines import choose_engine
from fedscaffold.paper.coupling import squared_norm
from fedscaffold.paper.verify.settings import Budget, Case
from fedscaffold.problems import Logistic, Ridge
from fedscaffold.simulation.observers import squared_distance
from fedscaffold.simulation.rounds import State, initial_state, open_rounds
from fedscaffold.simulation.setup import RunSetup, divergence_limit

GROUPS = 20
POWERS = (1, 2, 3)  # of squared distances
BURN = 3.0  # relaxation times before the first sample, from X*: e^{-6} of the variance is missing then
THIN = 5  # local models are looked at in every fifth round


@dataclass(frozen=True)
class StationaryChains:
    """Means over chains and rounds, one for each of 20 groups of chains: errors come from their spread.

    Attributes
    ----------
    theta
        (θ − θ*)(θ − θ*)ᵀ, (groups, d, d).
    theta_xi
        (θ − θ*)(ξ_c − ξ*_c)ᵀ, (groups, N, d, d).
    xi
        (ξ_c − ξ*_c)(ξ_c' − ξ*_c')ᵀ, (groups, N, N, d, d).
    distance
        ‖X − X*‖_Λ to the powers 2, 4 and 6, (groups, 3).
    local
        ‖θ_c^h − θ*‖ to the powers 2, 4 and 6 for h = 0, ..., H, (groups, 3, H + 1, N).
    bias
        E θ − θ*, (groups, d).
    bias_xi
        E ξ_c − ξ*_c, (groups, N, d).
    """

    case: Case
    theta: Array
    theta_xi: Array
    xi: Array
    distance: Array
    local: Array
    bias: Array
    bias_xi: Array


def simulate(case: Case, budget: Budget, *, seed: int = 7) -> StationaryChains:
    """`budget.chains` chains from X*, over `budget.rounds` rounds after burn-in."""
    problem, method, optimum, ideal = case.problem, case.method, case.problem.optimum(), case.ideal
    repetitions = budget.chains // GROUPS * GROUPS
    batches = Batches(case.batch_size)
    state = initial_state(problem, method, np.tile(optimum, (repetitions, 1)), ideal)
    setup = RunSetup(
        problem=problem, method=method, engine=choose_engine("auto", problem), theta=state.theta, batches=batches,
        seed=seed, limit=divergence_limit(optimum),
    )  # fmt: skip
    burn = int(BURN * case.relaxation) + 1
    every: list[Array] = []
    thinned: list[Array] = []
    with (
        setup.engine.open(problem, batches, seed=seed) as local_sgd,
        open_rounds(setup) as step,
    ):
        for t in range(burn + budget.rounds):
            if t >= burn:
                every = _add(every, _moments(case, state.theta - optimum, state.client_state.xi - ideal))
                if (t - burn) % THIN == 0:
                    thinned = _add(thinned, _inside(case, state, _local_models(case, state, local_sgd)))
            state = step(state)
    theta, theta_xi, xi, distance = (total / budget.rounds for total in every)
    local, *sums = (total / len(range(0, budget.rounds, THIN)) for total in thinned)
    means = _intercepts(*sums)
    bias_xi = means[:, problem.dim :].reshape(GROUPS, problem.n_clients, problem.dim)
    return StationaryChains(case, theta, theta_xi, xi, distance, local, means[:, : problem.dim], bias_xi)


def _local_models(case: Case, state: State, local_sgd: LocalSgd) -> Array:
    """θ_c^h of the coming round, (H + 1, repetitions, N, d)."""
    xi, gamma = state.client_state.xi, case.method.step_size
    start = np.broadcast_to(state.theta[:, None], xi.shape)
    later = (
        local_sgd(state.theta, xi, step_size=gamma, local_steps=h, round=state.round)
        for h in range(1, case.method.uniform_local_steps + 1)
    )
    return np.stack([start, *later])


def _moments(case: Case, theta: Array, xi: Array) -> list[Array]:
    a, b = _grouped(theta), _grouped(xi)
    distance = _grouped(squared_norm(theta, xi, case.method, case.problem.weights))
    n = a.shape[1]
    return [
        np.einsum("gri,grj->gij", a, a, optimize=True) / n,
        np.einsum("gri,grcj->gcij", a, b, optimize=True) / n,
        np.einsum("grci,grej->gceij", b, b, optimize=True) / n,
        np.stack([(distance**p).mean(axis=1) for p in POWERS], axis=1),
    ]


def _inside(case: Case, state: State, local: Array) -> list[Array]:
    """‖θ_c^h − θ*‖^q; then y, u, yuᵀ, uuᵀ for y = (θ − θ*, −mean_h ∇f_c(θ_c^h) − ξ*_c) and u = (Z, V_c, ε_c)."""
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
    powers = np.stack([(squares**p).mean(axis=1) for p in POWERS], axis=1)
    products = [np.einsum("gri,grj->gij", v, u, optimize=True) / n for v in (y, u)]
    return [powers, y.mean(axis=1), u.mean(axis=1), *products]


def _intercepts(y: Array, u: Array, yu: Array, uu: Array) -> Array:
    """Mean of y less what the zero-mean u explain of it, per group; coefficients from all groups together."""
    scale = np.sqrt(np.maximum(np.diagonal(uu.mean(axis=0)), 1e-300))
    cov_u = (uu.mean(axis=0) - np.outer(u.mean(axis=0), u.mean(axis=0))) / np.outer(scale, scale)
    cov_yu = (yu.mean(axis=0) - np.outer(y.mean(axis=0), u.mean(axis=0))) / scale
    coefficients = cov_yu @ np.linalg.pinv(cov_u, rcond=1e-11, hermitian=True) / scale
    return y - u @ coefficients.T


def gradients_at(problem: Ridge | Logistic, points: Array) -> Array:
    """∇f_c at points (repetitions, N, d), for clients with equally many records."""
    n = int(problem.sizes[0])
    x, y = problem.x.reshape(problem.n_clients, n, problem.dim), problem.y.reshape(problem.n_clients, n)
    first = problem.d1(np.einsum("cnd,rcd->rcn", x, points, optimize=True), y)
    return np.einsum("rcn,cnd->rcd", first, x, optimize=True) / n + problem.penalty * points


def _grouped(values: Array) -> Array:
    return values.reshape(GROUPS, -1, *values.shape[1:])


def _add(sums: list[Array], values: list[Array]) -> list[Array]:
    return [a + b for a, b in zip(sums, values, strict=True)] if sums else values
