"""Where Scaffold and FedAvg settle: mean and covariance of their stationary laws, self-consistently.

Around θ*, with G_c the mean curvature that client c meets along its local steps, Γ_c = I − γG_c and M_c^h the
covariance of its h-th local model, the recursions are

    θ_c^{h+1} = θ_c^h − γ (∇f_c(θ*) + G_c (θ_c^h − θ*) + ξ_c + t_c(h) + ε_c(h)),

where t_c(h) is what the mean gradient over the cloud N(mean, M_c^h) has beyond its linear part, and ε_c(h) has the
mean noise covariance E C_c over the same cloud. G_c, t_c and Cov ε_c depend on the means and covariances that
they cause; a few passes over the clients find the fixed point. For ridge t = 0, G_c is the Hessian and the
fixed point is exact.
"""

from dataclasses import dataclass, replace

import numpy as np

from fedscaffold.core.types import Array, IntArray
from fedscaffold.theory.client_blocks import ClientBlock
from fedscaffold.theory.expansion import weighted
from fedscaffold.theory.prediction.local_steps import (
    Curvature,
    accumulate,
    curvature,
    no_contraction,
    rotate,
)
from fedscaffold.theory.prediction.reduced_system import (
    ReducedSystem,
    client_covariances,
    coupling,
    noise_input,
    points_for,
    solve_lyapunov,
    system_of,
)
from fedscaffold.theory.prediction.setting import MANY_CLIENTS, Setting

MARGIN = 0.3  # how far curvatures may move, as logarithm of δ, from pass to pass


@dataclass(frozen=True, eq=False)
class Sums:
    """What clients add up to: all that the law of θ needs of them."""

    points: Array  # of the reduced system, (M,); none for FedAvg
    coupling: Array  # J, (M, d, d); Γ̄ = Σ w_c Γ_c^H for FedAvg
    noise: Array  # of the reduced state in a round, (M d, M d); of θ for FedAvg
    curvature: Array  # γHḠ, (d, d)
    pull: Array  # on the mean, (d,)

    def plus(self, other: "Sums", sign: float = 1.0) -> "Sums":
        """The sums of two sets of clients together, or of the first without the second."""
        pairs = zip(list(vars(self).values())[1:], list(vars(other).values())[1:], strict=True)
        return Sums(self.points, *(mine + sign * theirs for mine, theirs in pairs))


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
    sums: Sums
    others: Sums | None = None  # of the clients that are not in a sample


def squared_parts(state: PlateauState) -> Array:
    """Variance and squared bias of θ."""
    return np.array([np.trace(state.cov_theta), state.bias @ state.bias])


def theta_covariance(P: Array, d: int) -> Array:
    """Cov θ, (d, d), from the covariance P of the reduced state."""
    M = P.shape[0] // d
    return P.reshape(M, d, M, d).sum(axis=(0, 2))


def linear_start(s: Setting) -> PlateauState:
    """First guess of the stationary law: curvature and noise at θ*, the mean of the linear model."""
    (N, d), m = s.gradients.shape, s.steps.nodes.size
    cur = Curvature.of(s.at_optimum.U, s.at_optimum.lam, s.gamma, s.H)
    noise = rotate(cur.U, s.at_optimum.noise)[:, None]
    Q = accumulate(s.steps, cur, noise, [s.H])[:, 0]
    return solved(s, cur, noise, Q, np.zeros((N, m, d)))


def one_pass(s: Setting, state: PlateauState) -> PlateauState:
    """Clouds of local models from the last guess, and from them noise, curvature, means and covariances."""
    theta_eta, eta = covariances(s, state)
    (N, d), m = s.gradients.shape, s.steps.nodes.size
    noise, Q, residual = np.empty((N, m, d, d)), np.empty((N, d, d)), np.empty((N, m, d))
    U, lam = np.empty((N, d, d)), np.empty((N, d))
    weights = s.steps.average_weights()

    def work(block: ClientBlock) -> None:
        at = s.places(block)
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

    s.for_blocks(work)
    cur = state.cur if s.quadratic else Curvature.of(U, lam, s.gamma, s.H)
    return solved(s, cur, noise, Q, residual, others=state.others)


def solved(
    s: Setting, cur: Curvature, noise: Array, Q: Array, residual: Array, *, others: Sums | None = None
) -> PlateauState:
    """Mean and covariance of the linear recursions with given noise and residuals.

    Scaffold: γHḠ b = −Σ w_c (I − C̃_c)⁻¹ r_c and (I − C̃_c) η_c = (Γ_c^H − C̃_c) b − r_c, which solves the means'
    equations exactly. FedAvg: (I − Γ̄) b = −Σ w_c (γ Σ_h Γ_c^h ∇f_c(θ*) + r_c) and Σ = Γ̄ΣΓ̄ + γ² Σ w_c² Q_c.
    Here r_c = γ Σ_h Γ_c^{H−1−h} t_c(h).
    """
    r = round_pulls(s, cur, residual)
    sums = client_sums(s, cur, Q, r, None if others is None else others.points)
    sums = sums if others is None else sums.plus(others)
    if s.scaffold:
        system = system_of(sums.points, sums.coupling)
        P = solve_lyapunov(system.A, sums.noise)
        cov = theta_covariance(P, s.problem.dim)
        bias, eta = means(s, cur, sums, r)
        return PlateauState(cur, system, system.A, P, cov, bias, eta, noise, Q, residual, sums, others)
    radius = float(np.abs(np.linalg.eigvalsh(sums.coupling)).max())
    if radius >= 1.0:
        raise no_contraction(radius)
    cov = solve_lyapunov(sums.coupling, sums.noise)
    bias, zero = means(s, cur, sums, r)
    return PlateauState(cur, None, sums.coupling, cov, cov, bias, zero, noise, Q, residual, sums, others)


def with_residual(s: Setting, state: PlateauState, residual: Array) -> PlateauState:
    """A law of all clients with other residuals and the means that these cause, but the same covariances."""
    r = round_pulls(s, state.cur, residual)
    sums = replace(state.sums, pull=total_pull(s, state.cur, r))
    bias, eta = means(s, state.cur, sums, r)
    return replace(state, residual=residual, sums=sums, bias=bias, eta=eta)


def round_pulls(s: Setting, cur: Curvature, residual: Array) -> Array:
    """r_c = γ Σ_h Γ_c^{H−1−h} t_c(h), in the eigenbasis, (N, d)."""
    if s.quadratic:
        return np.zeros(cur.lam.shape)
    return s.gamma * accumulate(s.steps, cur, residual, [s.H])[:, 0]


def total_pull(s: Setting, cur: Curvature, r: Array) -> Array:
    """The pull of all clients on the mean, (d,)."""
    if s.scaffold:
        each = r / cur.delta
    else:
        each = s.gamma * s.H * cur.delta * np.einsum("kij,ki->kj", cur.U, s.gradients) + r
    return np.einsum("kij,kj->i", cur.U, s.weights[:, None] * each)


def means(s: Setting, cur: Curvature, sums: Sums, r: Array) -> tuple[Array, Array]:
    """E θ − θ*, and E η_c − θ* in the original basis, (N, d); the latter zero for FedAvg."""
    if s.scaffold:
        bias = -np.asarray(np.linalg.solve(sums.curvature, sums.pull), dtype=np.float64)
        return bias, control_means(cur, bias, r)
    bias = -np.asarray(np.linalg.solve(np.eye(s.problem.dim) - sums.coupling, sums.pull), dtype=np.float64)
    return bias, np.zeros_like(s.gradients)


def control_means(cur: Curvature, bias: Array, r: Array) -> Array:
    """E η_c − θ* of Scaffold, (N, d), from E θ − θ* and r_c in the eigenbasis."""
    own = np.einsum("kij,i->kj", cur.U, bias)
    return np.einsum("kij,kj->ki", cur.U, ((cur.gH - 1.0 + cur.delta) * own - r) / cur.delta)


def client_sums(s: Setting, cur: Curvature, Q: Array, r: Array, points: Array | None) -> Sums:
    """The sums over the clients of a setting, at given points of the reduced system or at points that suit."""
    w, U = s.weights, cur.U
    total = s.gamma * s.H * weighted(w, cur.with_eigenvalues(cur.lam))
    if not s.scaffold:
        noise = s.gamma**2 * weighted(w * s.own, U @ Q @ np.swapaxes(U, 1, 2))
        return Sums(np.empty(0), weighted(w, cur.with_eigenvalues(cur.gH)), noise, total, total_pull(s, cur, r))
    if points is None:
        sampled_later = s.clients.size > MANY_CLIENTS and not s.quadratic
        points = points_for(cur, s.tolerance, MARGIN if sampled_later else 0.0)
    system = system_of(points, coupling(points, w, cur))
    noise = s.gamma**2 * noise_input(system, w * s.own, cur, Q)
    return Sums(points, system.J, noise, total, total_pull(s, cur, r))


def local_means(s: Setting, state: PlateauState, at: IntArray) -> Array:
    """E θ_c^h − θ* = Γ^h b − γ Σ_{k<h} Γ^k (E ξ_c − ξ*_c) − γ Σ_{k<h} Γ^{h−1−k} t_c(k) at the nodes, (k, m, d)."""
    cur = state.cur[at]
    if s.scaffold and s.quadratic:  # the mean is where the optimum is
        return np.zeros((at.size, s.steps.nodes.size, s.problem.dim))
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
    """M_c^h = Cov θ_c^h at the nodes, in the original basis, (k, m, d, d)."""
    return state.cur[at].rotate_back(eigenbasis_covariances(s, state, at, theta_eta, eta))


def eigenbasis_covariances(s: Setting, state: PlateauState, at: IntArray, theta_eta: Array, eta: Array) -> Array:
    """M_c^h = Cov θ_c^h at the nodes, in the clients' eigenbases, (k, m, d, d).

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
    return clouds


def control_variate_biases(s: Setting, state: PlateauState) -> Array:
    """E ξ_c − ξ*_c = (E η_c − E θ)/(γH), (N, d); FedAvg's ξ_c is 0, so ∇f_c(θ*)."""
    return (state.eta - state.bias) / (s.gamma * s.H) if s.scaffold else s.gradients.copy()
