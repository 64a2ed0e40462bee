"""The same quantities as theory's, by plain dense algebra on small problems; slow, short and independent."""

from typing import Any

import numpy as np
from scipy.linalg import block_diag, solve_discrete_lyapunov

from fedscaffold.core.types import Array
from fedscaffold.problems import Ridge
from fedscaffold.theory.exact import ExactLaw


def curve_of(law: ExactLaw) -> Array:
    """The curve of a law that was asked for rounds."""
    assert law.curve is not None
    return law.curve


def round_matrices(hessians: Array, w: Array, gamma: float, H: int) -> tuple[Array, Array]:
    """(A, L) of (θ, ξ_1, ..., ξ_N)⁺ = A (θ, ξ_1, ..., ξ_N) + L (e_1, ..., e_N), written from Algorithm 1.

    Algorithm 1 conserves Σ w_c ξ_c, which is 0. A sends it to 0, so that there is one stationary solution.
    """
    N, d, _ = hessians.shape
    eye = np.eye(d)
    power = [np.linalg.matrix_power(eye - gamma * hessian, H) for hessian in hessians]
    total = [sum(np.linalg.matrix_power(eye - gamma * h, k) for k in range(H)) for h in hessians]
    local = np.zeros((N * d, (N + 1) * d))  # θ_c^H from θ and ξ
    for c in range(N):
        local[c * d : (c + 1) * d, :d] = power[c]
        local[c * d : (c + 1) * d, (c + 1) * d : (c + 2) * d] = -gamma * total[c]
    noise = -gamma * np.eye(N * d)
    mean = np.kron(w[None, :], eye)
    centred = np.eye(N * d) - np.kron(np.ones((N, 1)), mean)
    keep = np.concatenate([np.zeros((N * d, d)), centred], axis=1)
    A = np.concatenate([mean @ local, keep + centred @ local / (gamma * H)])
    return A, np.concatenate([mean @ noise, centred @ noise / (gamma * H)])


def lyapunov(hessians: Array, w: Array, gamma: float, H: int, Q: Array) -> Array:
    """Stationary covariance of (θ, ξ) when e_c has covariance Q_c."""
    A, L = round_matrices(hessians, w, gamma, H)
    return np.asarray(solve_discrete_lyapunov(A, L @ block_diag(*Q) @ L.T))


def ridge_covariance(
    problem: Ridge, gamma: float, H: int, batch_size: int, *, scaffold: bool
) -> tuple[Array, Array]:
    """Exact stationary (covariance of (θ, ξ), mean of (θ − θ*, ξ − ξ*)) for ridge, one local step after another.

    The noise of a step is that of θ* plus what the second moments of the local models add, without any
    approximation, since gradients of ridge are linear in θ. A round is then an affine map of the covariance, which
    is applied to a basis of symmetric matrices to find its fixed point.
    """
    N, d, w = problem.n_clients, problem.dim, problem.weights
    optimum, eye = problem.optimum(), np.eye(problem.dim)
    hessians, ahead = problem.client_hessians(optimum), problem.client_gradients(optimum)
    lift = block_diag(np.kron(np.ones((N, 1)), eye), np.eye(N * d))
    average = np.kron(w[None, :], eye)
    centred = np.eye(N * d) - np.kron(np.ones((N, 1)), average)
    turn = np.zeros(((N + 1) * d, 2 * N * d))
    turn[:d, : N * d] = average
    turn[d:, N * d :] = centred if scaffold else np.eye(N * d)  # Σ w_c ξ_c stays 0: see `round_matrices`
    if scaffold:
        turn[d:, : N * d] = centred / (gamma * H)
    step = np.block(
        [
            [np.eye(N * d) - gamma * block_diag(*hessians), -gamma * np.eye(N * d)],
            [np.zeros((N * d, N * d)), np.eye(N * d)],
        ]
    )
    records = [record_slopes(problem, c) for c in range(N)]
    mean = np.zeros((N + 1) * d)
    if not scaffold:  # ξ_c = 0 in every round, and θ is where a round leads back to
        A = turn @ np.linalg.matrix_power(step, H) @ lift
        mean[d:] = ahead.ravel()
        mean[:d] = np.linalg.solve(eye - A[:d, :d], A[:d, d:] @ mean[d:])

    def one_round(covariance: Array) -> Array:
        local, local_mean = lift @ covariance @ lift.T, lift @ mean
        for _ in range(H):
            noise = np.zeros_like(local)
            for c in range(N):
                at = slice(c * d, (c + 1) * d)
                noise[at, at] = batch_noise(records[c], local[at, at], optimum + local_mean[at], batch_size)
            local, local_mean = step @ local @ step.T + gamma**2 * noise, step @ local_mean
        return np.asarray(turn @ local @ turn.T)

    size = (N + 1) * d if scaffold else d  # FedAvg's ξ does not vary
    rows, columns = np.triu_indices(size)
    nothing = np.zeros(((N + 1) * d,) * 2)
    offset = one_round(nothing)
    columns_of_map = []
    for i, j in zip(rows, columns, strict=True):
        basis = nothing.copy()
        basis[i, j] = basis[j, i] = 1.0
        columns_of_map.append((one_round(basis) - offset)[rows, columns])
    entries = np.linalg.solve(np.eye(rows.size) - np.array(columns_of_map).T, offset[rows, columns])
    covariance = nothing.copy()
    covariance[rows, columns] = covariance[columns, rows] = entries
    return covariance, mean


def record_slopes(problem: Any, client: int) -> tuple[Any, Any, Any]:
    """Each record's gradient as slope θ − shift, and its probability; of ridge without its penalty."""
    rows = slice(problem.offsets[client], problem.offsets[client + 1])
    if hasattr(problem, "A"):
        slopes, shifts = problem.A[rows], problem.b[rows]
    else:
        x, y = problem.x[rows], problem.y[rows]
        slopes, shifts = np.einsum("ij,ik->ijk", x, getattr(problem, "margins", problem.x)[rows]), x * y[:, None]
    drawn = getattr(problem, "probabilities", None)
    return slopes, shifts, np.full(len(shifts), 1 / len(shifts)) if drawn is None else np.ravel(drawn)[rows]


def batch_noise(records: tuple[Any, Any, Any], covariance: Array, mean: Array, batch_size: int) -> Array:
    """E Cov(batch gradient | θ) for θ of given mean and covariance, with replacement."""
    slopes, shifts, p = records
    values = slopes @ mean - shifts
    values = values - p @ values
    slopes = slopes - np.tensordot(p, slopes, axes=1)
    spread = np.einsum("i,ijk,kl,iml->jm", p, slopes, covariance, slopes, optimize=True)
    return ((p[:, None] * values).T @ values + spread) / batch_size
