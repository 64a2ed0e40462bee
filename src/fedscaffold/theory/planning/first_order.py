"""A planner for many dimensions: the mean of the quadratic model at θ*, and Lemma 5.1's covariance.

The sharp planner solves for d × d covariances that depend on themselves. Where d is in the hundreds, this one
takes the error's two parts apart. With λ_i and u_i the eigenvalues and eigenvectors of ∇²f(θ*) and
C̄ = Σ w_c² C_c(θ*),

    E‖θ − θ*‖² ≈ ‖m_T‖² + Σ_i γ u_iᵀC̄u_i / (λ_i(2 − γλ_i)),

where m_t is Scaffold's path without noise when each f_c is replaced by its quadratic model at θ*, and the sum is
the first order of the covariance, that of averaged stochastic gradients. The step size is what the noise allows;
the number of local steps is the one of 1, 2, 4, 8, ... with which the path costs least.
"""

import numpy as np

from fedscaffold.core.arrays import evenly_spaced_clients
from fedscaffold.core.capabilities import HasNoiseAlong
from fedscaffold.core.errors import OutOfReach
from fedscaffold.core.random.batches import Batches
from fedscaffold.core.storage.memmap import grouped
from fedscaffold.core.threads import one_blas_thread
from fedscaffold.core.types import Array
from fedscaffold.theory.planning.plan import Plan
from fedscaffold.theory.planning.request import PlanRequest
from fedscaffold.theory.prediction.local_steps import Curvature

AIM = 0.8  # of the target, since this is a first-order model
NOISE = 0.5  # of the aim, for the covariance; the rest is for the mean
FLAT = 1e-12  # of the largest curvature: directions in which nothing happens
LARGEST = 1_000_000  # numbers in all clients' Hessians; above it, a sample of clients
GROWN = 1e6


@one_blas_thread
def first_order_plan(request: PlanRequest) -> Plan:
    """γ, H, T of about the least cost; H is a power of two, or the most allowed."""
    problem = request.problem
    assert isinstance(problem, HasNoiseAlong)  # as the planner has seen
    aim, longest, optimum = AIM * request.target, request.most_local_steps, request.optimum
    gamma, variance = step_size_for_noise(problem, request.batches, optimum, NOISE * aim)
    weights, hessians, slopes = sampled_clients(problem, optimum)
    slopes = slopes - weights @ slopes  # of a sample: as if θ* were its optimum
    lam, U = np.linalg.eigh(hessians)
    ladder = [2**k for k in range(31) if 2**k < longest] + [longest]
    best: Plan | None = None
    rising = 0
    for H in reversed(ladder):  # long rounds first: their paths are the shortest
        enough = request.most_rounds
        if best is not None:
            enough = min(enough, int(best.cost / request.cost(1, H)))
        squares = noiseless_path(
            weights, Curvature.of(U, lam, gamma, H), slopes, optimum, gamma * H, aim - variance, enough
        )
        if squares is None:
            rising += best is not None
            if rising == 3:
                break
            continue
        T, rising = len(squares) - 1, 0
        curve = squares + variance
        known = {"predicted_mse": float(curve[-1]), "curve": curve, "max_useful_clients": None}
        best = request.plan("first_order", gamma, H, T, variance_part=variance, **known)
    if best is None:
        raise OutOfReach(
            f"a squared error of {request.target:g} is out of reach within {longest:,} local steps a round and "
            f"{request.most_rounds:,} rounds with a step size of {gamma:.3g}, the largest that the noise allows; "
            "allow more local steps or rounds, larger batches, or a larger error"
        )
    return best


def step_size_for_noise(
    problem: HasNoiseAlong, batches: Batches, optimum: Array, most: float
) -> tuple[float, float]:
    """The largest γ ≤ 1/L whose covariance has at most this trace, and that trace."""
    lam, U = np.linalg.eigh(problem.hessian(optimum))
    real = lam > FLAT * lam[-1]
    lam, U = lam[real], U[:, real]
    each = problem.client_noise_along(optimum, U, batch_size=batches.size, sampling=batches.sampling)
    noise = problem.weights**2 @ each

    def trace(gamma: float) -> float:
        return float((gamma * noise / (lam * (2.0 - gamma * lam))).sum())

    gamma = 1.0 / problem.smoothness(batches)
    while trace(gamma) > most:
        gamma *= max(0.1, 0.95 * most / trace(gamma))
    return gamma, trace(gamma)


def sampled_clients(problem: HasNoiseAlong, optimum: Array) -> tuple[Array, Array, Array]:
    """Weights, Hessians and gradients at θ* of all clients, or of evenly spaced ones where the Hessians of all
    would not fit; these some at a time, since their records may not fit either.
    """
    most = max(2, LARGEST // problem.dim**2)
    if problem.n_clients <= most:
        return problem.weights, problem.client_hessians(optimum), problem.client_gradients(optimum)
    chosen = evenly_spaced_clients(problem.n_clients, most)
    parts = []
    for begin, end in grouped(problem.sizes[chosen] * problem.dim, LARGEST):
        few = problem.subset(chosen[begin:end])
        parts.append((few.client_hessians(optimum), few.client_gradients(optimum)))
    weights = problem.weights[chosen] / problem.weights[chosen].sum()
    return weights, np.concatenate([part[0] for part in parts]), np.concatenate([part[1] for part in parts])


def noiseless_path(
    w: Array, cur: Curvature, slopes: Array, optimum: Array, length: float, aim: float, most: int
) -> Array | None:
    """‖m_t‖² for t = 0, ..., T, where T ≥ 1 is the first round of Scaffold from θ = 0, ξ = 0 with ‖m_T‖² ≤ aim.

    Without noise θ_c = Γ^H m − γHδ a_c in client c's eigenbasis, with a_c = ξ_c − ξ*_c and δ = mean of Γ^h, h < H.

    Parameters
    ----------
    w
        Weights of the clients, (n,).
    cur
        Curvatures of the clients for γ and H.
    slopes
        ∇f_c(θ*), (n, dim).
    optimum
        θ*, (dim,).
    length
        γH.
    aim, most
        None is returned if more than `most` rounds are needed.
    """
    into_bases = cur.U.transpose(0, 2, 1).reshape(-1, optimum.size)  # (n · dim, dim), one below another
    mean = (w[:, None, None] * cur.U).transpose(1, 0, 2).reshape(optimum.size, -1)  # back from them, averaged
    power, share = cur.gH.ravel(), length * cur.delta.ravel()
    m = -optimum
    ahead = np.einsum("kij,ki->kj", cur.U, slopes).ravel()
    squares = [float(m @ m)]
    if squares[0] <= aim:
        return np.array(2 * squares)  # a plan has one round at least
    while squares[-1] > aim:
        if len(squares) > most:
            return None
        local = power * (into_bases @ m) - share * ahead
        m = mean @ local
        ahead = ahead + (local - into_bases @ m) / length
        squares.append(float(m @ m))
        if not squares[-1] < GROWN * squares[0]:
            return None
    return np.array(squares)
