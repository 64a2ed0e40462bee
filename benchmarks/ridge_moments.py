"""Exact second moments of Scaffold and FedAvg on ridge regression: what predictions are measured against.

Written from Algorithm 1 and sharing nothing with the predictor. The vector u = (θ_1, ..., θ_N, ξ_1, ..., ξ_N,
1) of all local models and control variates goes through every local step by a random matrix; E u uᵀ goes
through it by one matrix on the entries of u uᵀ. Its power is a round, exact for any number of local steps; for
a few tens of numbers in u.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedscaffold.core.random.stream import Batches
from fedscaffold.problems import Ridge

Array = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class ExactRidge:
    """E‖θ_t − θ*‖² of a method on a ridge problem, without approximation."""

    problem: Ridge
    gamma: float
    H: int
    batches: Batches
    scaffold: bool

    def round_matrix(self) -> Array:
        """The matrix of a round on the entries of E v vᵀ, v = (θ, ξ_1, ..., ξ_N, 1), Σ w_c ξ_c sent to 0."""
        N, d, w = self.problem.n_clients, self.problem.dim, self.problem.weights
        eye, size = np.eye(d), N * d
        begin = np.zeros((2 * size + 1, size + d + 1))
        begin[:size, :d] = np.tile(eye, (N, 1))
        begin[size:, d:] = np.eye(size + 1)
        mean = np.kron(w[None], eye)
        centred = np.eye(size) - np.kron(np.ones((N, 1)), mean)
        end = np.zeros((size + d + 1, 2 * size + 1))
        end[:d, :size] = mean
        if self.scaffold:
            end[d : d + size, size : 2 * size] = centred
            end[d : d + size, :size] = centred / (self.gamma * self.H)
        end[-1, -1] = 1.0
        with np.errstate(over="ignore", invalid="ignore"):  # a step size that is far too large
            step = np.linalg.matrix_power(self.step_matrix(), self.H)
            return np.asarray(np.kron(end, end) @ step @ np.kron(begin, begin))

    def step_matrix(self) -> Array:
        """The matrix of a local step on the entries of E u uᵀ."""
        problem, gamma = self.problem, self.gamma
        N, d = problem.n_clients, problem.dim
        size = N * d
        plain = np.eye(2 * size + 1)
        plain[:size, size : 2 * size] -= gamma * np.eye(size)
        random = []
        optimum = problem.optimum()
        for c in range(N):
            rows, at = slice(problem.offsets[c], problem.offsets[c + 1]), slice(c * d, (c + 1) * d)
            x = problem.x[rows]
            residual = x @ optimum - problem.y[rows]
            slopes, shifts = x[:, :, None] * x[:, None, :], x * residual[:, None]
            plain[at, at] -= gamma * (slopes.mean(axis=0) + np.diag(problem.penalty))
            plain[at, -1] -= gamma * (shifts.mean(axis=0) + problem.penalty * optimum)
            factor = self.batches.noise_factor(len(x))
            for slope, shift in zip(slopes - slopes.mean(axis=0), shifts - shifts.mean(axis=0), strict=True):
                matrix = np.zeros_like(plain)
                matrix[at, at], matrix[at, -1] = slope, shift
                random.append(gamma * np.sqrt(factor / len(x)) * matrix)
        return np.asarray(np.kron(plain, plain) + sum(np.kron(one, one) for one in random))

    def curve(self, rounds: int) -> Array:
        """E‖θ_t − θ*‖² for t = 0, ..., rounds from θ_0 = 0, ξ_c = 0."""
        d = self.problem.dim
        start = np.zeros((self.problem.n_clients + 1) * d + 1)
        start[:d], start[-1] = -self.problem.optimum(), 1.0
        moments, matrix, found = np.outer(start, start).ravel(), self.round_matrix(), []
        for _ in range(rounds + 1):
            found.append(self._trace(moments))
            moments = matrix @ moments
        return np.array(found)

    def plateau(self) -> float:
        """E‖θ − θ*‖² of the stationary law; infinite where there is none."""
        matrix = self.round_matrix()
        if self._radius(matrix) >= 1.0:
            return np.inf
        size = matrix.shape[0]
        fixed = np.zeros(size)
        fixed[-1] = 1.0
        rest = np.linalg.solve(np.eye(size - 1) - matrix[:-1, :-1], matrix[:-1, -1])
        fixed[:-1] = rest
        return self._trace(fixed)

    def radius(self) -> float:
        """By what a round multiplies second moments in the long run; below 1 where there is a plateau."""
        return self._radius(self.round_matrix())

    def _radius(self, matrix: Array) -> float:
        if not np.isfinite(matrix).all():
            return np.inf
        return float(np.abs(np.linalg.eigvals(matrix[:-1, :-1])).max())

    def _trace(self, moments: Array) -> float:
        d, size = self.problem.dim, (self.problem.n_clients + 1) * self.problem.dim + 1
        return float(np.trace(moments.reshape(size, size)[:d, :d]))
