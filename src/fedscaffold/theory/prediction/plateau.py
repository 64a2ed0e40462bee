"""Where Scaffold and FedAvg settle: mean and covariance of their stationary laws, self-consistently.

Around θ*, with G_c the mean curvature that client c meets along its local steps, Γ_c = I − γG_c and M_c^h the
covariance of its h-th local model, the recursions are

    θ_c^{h+1} = θ_c^h − γ (∇f_c(θ*) + G_c (θ_c^h − θ*) + ξ_c + t_c(h) + ε_c(h)),

where t_c(h) is what the mean gradient over the cloud N(mean, M_c^h) has beyond its linear part, and ε_c(h) has the
mean noise covariance E C_c over the same cloud. G_c, t_c and Cov ε_c depend on the means and covariances that
they cause; a few passes over the clients find the fixed point. For ridge t = 0, G_c is the Hessian and the
fixed point is exact.
"""

from dataclasses import dataclass

import numpy as np

from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.types import Array, IntArray
from fedscaffold.theory.client_blocks import ClientBlock, for_blocks
from fedscaffold.theory.prediction.anderson import Anderson
from fedscaffold.theory.prediction.expansion import weighted
from fedscaffold.theory.prediction.local_steps import Curvature, accumulate, curvature, no_contraction, rotate
from fedscaffold.theory.prediction.reduced_system import (
    ReducedSystem,
    client_covariances,
    noise_input,
    reduced_system,
    solve_lyapunov,
)
from fedscaffold.theory.prediction.setting import Setting

MOST_PASSES = 40
MEMORY = 6
LARGEST_ACCELERATED = 2_000_000  # numbers in the noise of all clients, of which a dozen copies are kept
NOTHING = 1e-22  # of ‖θ*‖²: rounding errors


@dataclass(frozen=True, eq=False)
class PlateauState:
    """A guess of the stationary law; arrays over clients are in the eigenbasis of the client's G_c."""

    cur: Curvature
    system: ReducedSystem | None  # None for FedAvg
    A: Array  # of the reduced state, as in its system; Γ̄ = Σ w_c Γ_c^H for FedAvg
    P: Array  # covariance of the reduced state; of θ for FedAvg
    cov_theta: Array
    bias: Array  # E θ − θ*
    eta: Array  # E η_c − θ*, (N, d), in the original basis; zero for FedAvg
    noise: Array  # Cov ε_c(h_q), (N, m, d, d)
    Q: Array  # Σ_h Γ^{H−1−h} Cov ε_c(h) Γ^{H−1−h}, (N, d, d)
    residual: Array  # t_c(h_q), (N, m, d)


def solve_stationary(s: Setting) -> PlateauState:
    """The stationary law; passes end when further ones would change it by less than `settled`, relative.

    What they would change follows from the last two changes, as of a geometric series. Passes contract about
    tenfold where noise depends little on where it acts. Where it depends much, for ridge, whose noise is an
    affine function of itself, Anderson's acceleration finds the fixed point.
    """
    state = linear_start(s)
    if s.scaffold and not s.factors.any():
        return state
    last, before, floor = np.inf, np.full(2, np.inf), NOTHING * float(s.optimum @ s.optimum)
    history = Anderson(MEMORY) if s.quadratic and state.noise.size <= LARGEST_ACCELERATED else None
    for _ in range(MOST_PASSES):
        with np.errstate(over="ignore", invalid="ignore"):  # what grows beyond all numbers is refused below
            later = one_pass(s, state)
        now = np.array([np.trace(later.cov_theta), later.bias @ later.bias])
        if not np.isfinite(now).all() or now[0] < -floor:
            break
        change = np.abs(now - before)
        rate = float(np.clip(change.sum() / max(last, 1e-300), 0.0, 0.9)) if np.isfinite(last) else 0.5
        if (change * rate / (1.0 - rate) <= s.settled * np.array([now[0], now.sum()]) + floor).all():
            return later
        last = float(change.sum())
        state, before = later if history is None else accelerated(s, history, state, later), now
    raise InvalidInput(
        "no plateau found: the noise grows with the distance that it causes faster than the method contracts; "
        "take a smaller step_size or a larger batch_size"
    )


def accelerated(s: Setting, history: Anderson, state: PlateauState, later: PlateauState) -> PlateauState:
    """The next guess for ridge: the law that a combination of the noises of past passes causes."""
    noise = history.next(state.noise.ravel(), later.noise.ravel()).reshape(later.noise.shape)
    Q = accumulate(s.steps, later.cur, noise, [s.H])[:, 0]
    return solved(s, later.cur, noise, Q, later.residual, system=later.system)


def linear_start(s: Setting) -> PlateauState:
    """First guess of the stationary law: no covariance, the curvature at θ*, the mean of the linear model."""
    N, d, m = s.problem.n_clients, s.problem.dim, s.steps.nodes.size
    cur = curvature(s.problem.client_hessians(s.optimum), s.gamma, s.H)
    return solved(s, cur, np.zeros((N, m, d, d)), np.zeros((N, d, d)), np.zeros((N, m, d)))


def one_pass(s: Setting, state: PlateauState) -> PlateauState:
    """Clouds of local models from the last guess, and from them noise, curvature, means and covariances."""
    theta_eta, eta = covariances(s, state)
    N, d, m = s.problem.n_clients, s.problem.dim, s.steps.nodes.size
    noise, Q, residual = np.empty((N, m, d, d)), np.empty((N, d, d)), np.empty((N, m, d))
    U, lam = np.empty((N, d, d)), np.empty((N, d))
    weights = s.steps.average_weights()

    def work(block: ClientBlock) -> None:
        at = block.clients
        mean, cov = local_means(s, state, at), local_covariances(s, state, at, theta_eta[at], eta[at])
        found = s.averages.over_clouds(block, s.optimum + mean, cov, s.factors[at])
        if s.quadratic:
            own, matrices = state.cur[at], found.hessian[:, 0]
        else:
            matrices = np.einsum("q,kqij->kij", weights, found.hessian)
            own = curvature(matrices, s.gamma, s.H)
        U[at], lam[at] = own.U, own.lam
        noise[at] = rotate(own.U[:, None], found.noise)
        Q[at] = accumulate(s.steps, own, noise[at], [s.H])[:, 0]
        residual[at] = (found.gradient - s.gradients[at][:, None] - mean @ matrices) @ own.U

    for_blocks(s.problem, work, copies=m)
    cur = Curvature.of(U, lam, s.gamma, s.H)
    return solved(s, cur, noise, Q, residual, system=state.system if s.quadratic else None)


def solved(
    s: Setting, cur: Curvature, noise: Array, Q: Array, residual: Array, *, system: ReducedSystem | None = None
) -> PlateauState:
    """Mean and covariance of the linear recursions with given noise and residuals.

    Scaffold: γHḠ b = −Σ w_c (I − C̃_c)⁻¹ r_c and (I − C̃_c) η_c = (Γ_c^H − C̃_c) b − r_c, which solves the means'
    equations exactly. FedAvg: (I − Γ̄) b = −Σ w_c (γ Σ_h Γ_c^h ∇f_c(θ*) + r_c) and Σ = Γ̄ΣΓ̄ + γ² Σ w_c² Q_c.
    Here r_c = γ Σ_h Γ_c^{H−1−h} t_c(h).
    """
    w, U = s.problem.weights, cur.U
    r = s.gamma * accumulate(s.steps, cur, residual, [s.H])[:, 0]
    if s.scaffold:
        system = system or reduced_system(w, cur, s.tolerance)
        P = solve_lyapunov(system.A, s.gamma**2 * noise_input(system, w * s.own, cur, Q))
        d, M = s.problem.dim, system.c.size
        cov = P.reshape(M, d, M, d).sum(axis=(0, 2))
        total = s.gamma * s.H * weighted(w, cur.with_eigenvalues(cur.lam))
        bias = -np.linalg.solve(total, np.einsum("k,kij,kj->i", w, U, r / cur.delta))
        own = np.einsum("kij,i->kj", U, bias)
        eta = np.einsum("kij,kj->ki", U, ((cur.gH - 1.0 + cur.delta) * own - r) / cur.delta)
        return PlateauState(cur, system, system.A, P, cov, bias, eta, noise, Q, residual)
    mean_power = weighted(w, cur.with_eigenvalues(cur.gH))
    radius = float(np.abs(np.linalg.eigvalsh(mean_power)).max())
    if radius >= 1.0:
        raise no_contraction(radius)
    drift = s.gamma * s.H * cur.delta * np.einsum("kij,ki->kj", U, s.gradients) + r
    pull = np.einsum("k,kij,kj->i", w, U, drift)
    bias = -np.linalg.solve(np.eye(s.problem.dim) - mean_power, pull)
    cov = solve_lyapunov(mean_power, s.gamma**2 * weighted(w * s.own, U @ Q @ np.swapaxes(U, 1, 2)))
    return PlateauState(cur, None, mean_power, cov, cov, bias, np.zeros_like(s.gradients), noise, Q, residual)


def local_means(s: Setting, state: PlateauState, at: IntArray) -> Array:
    """E θ_c^h − θ* = Γ^h b − γ Σ_{k<h} Γ^k (E ξ_c − ξ*_c) − γ Σ_{k<h} Γ^{h−1−k} t_c(k) at the nodes, (k, m, d)."""
    cur = state.cur[at]
    ahead = (state.eta[at] - state.bias) / (s.gamma * s.H) if s.scaffold else s.gradients[at]
    start, pull = np.einsum("kij,i->kj", cur.U, state.bias), np.einsum("kij,ki->kj", cur.U, ahead)
    powers, sums = cur.powers(s.steps.along), cur.sums(s.steps.along)
    forced = accumulate(s.steps, cur, state.residual[at], s.steps.along) + sums * pull[:, None]
    return (powers * start[:, None] - s.gamma * forced) @ np.swapaxes(cur.U, 1, 2)


def covariances(s: Setting, state: PlateauState) -> tuple[Array, Array]:
    """Cov(θ, η_c) and Cov η_c in the clients' eigenbases, (N, d, d); for FedAvg, which has no η_c, zero."""
    if state.system is None:
        zero = np.broadcast_to(np.float64(0.0), state.Q.shape)
        return zero, zero
    return client_covariances(state.system, state.P, s.gamma, s.own, state.cur, state.Q)


def local_covariances(s: Setting, state: PlateauState, at: IntArray, theta_eta: Array, eta: Array) -> Array:
    """M_c^h = Cov θ_c^h at the nodes, in the original basis, (k, m, d, d).

    θ_c^h = (Γ^h + K_h/γH) θ − (K_h/γH) η_c − γ Σ_{k<h} Γ^{h−1−k} ε(k) with K_h = γ Σ_{k<h} Γ^k; FedAvg has no η_c.
    """
    cur = state.cur[at]
    theta = rotate(cur.U, state.cov_theta)[:, None]
    a = cur.powers(s.steps.along)
    clouds = s.gamma**2 * accumulate(s.steps, cur, state.noise[at], s.steps.along)
    if s.scaffold:
        k = cur.sums(s.steps.along) / s.H
        a += k
        mixed = a[..., :, None] * theta_eta[:, None] * k[..., None, :]
        clouds -= mixed
        clouds -= np.swapaxes(mixed, -1, -2)
        clouds += k[..., :, None] * eta[:, None] * k[..., None, :]
    clouds += a[..., :, None] * theta * a[..., None, :]
    return cur.rotate_back(clouds)


def control_variate_biases(s: Setting, state: PlateauState) -> Array:
    """E ξ_c − ξ*_c = (E η_c − E θ)/(γH), (N, d); FedAvg's ξ_c is 0, so ∇f_c(θ*)."""
    return (state.eta - state.bias) / (s.gamma * s.H) if s.scaffold else s.gradients.copy()
