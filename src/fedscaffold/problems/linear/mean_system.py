"""What linear stochastic approximation has in common: mean systems Ā_c θ = b̄_c, one per client."""

import math
from abc import abstractmethod

import numpy as np

from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.random.batches import Batches
from fedscaffold.core.types import Array
from fedscaffold.problems.base import RecordsProblem

NEUTRAL = 1e-13  # of the largest eigenvalue: a real part below it is rounding


class LinearSystem(RecordsProblem):
    """Find θ* with Σ_c w_c (Ā_c θ* − b̄_c) = 0; a "gradient" of client c has mean Ā_c θ − b̄_c.

    Attributes
    ----------
    client_matrices
        Ā_c, (N, d, d).
    client_vectors
        b̄_c, (N, d).
    """

    client_matrices: Array
    client_vectors: Array

    @abstractmethod
    def client_second_moments(self) -> Array:
        """E[A_c(z)ᵀ A_c(z)] of one record, (N, d, d)."""

    @abstractmethod
    def noise_factor(self, batches: Batches, n: int) -> float:
        """v, such that a batch of a client with n records has E[AᵀA] ≤ v E[A(z)ᵀA(z)] + (1 − v) ĀᵀĀ."""

    @property
    def matrix(self) -> Array:
        """Ā = Σ w_c Ā_c, (d, d)."""
        return np.einsum("c,cij->ij", self.weights, self.client_matrices)

    @property
    def vector(self) -> Array:
        """b̄ = Σ w_c b̄_c, (d,)."""
        return np.einsum("c,ci->i", self.weights, self.client_vectors)

    def _solve_optimum(self) -> Array:
        """θ* = Ā⁻¹ b̄, where the clients' mean gradient vanishes."""
        return np.asarray(np.linalg.solve(self.matrix, self.vector), dtype=np.float64)

    def loss(self, theta: Array) -> float:
        """½‖Āθ − b̄‖².

        Its gradient is not the one that methods follow: Āθ − b̄ has no potential when Ā is not symmetric.
        """
        return 0.5 * float(np.square(self.gradient(theta)).sum())

    def gradient(self, theta: Array) -> Array:
        """Āθ − b̄, what the clients' gradients are on average."""
        return self.matrix @ theta - self.vector

    def client_gradients(self, theta: Array) -> Array:
        """Ā_c θ − b̄_c, shape (N, d)."""
        return self.client_matrices @ theta - self.client_vectors

    def smoothness(self, batches: Batches) -> float:
        """The least L with E‖g_c(θ) − g_c(θ')‖² ≤ L⟨Ā_c(θ − θ'), θ − θ'⟩ for every client.

        L = max_c λ_max(S_c^{-1/2} M_c S_c^{-1/2}), S_c = (Ā_c + Ā_cᵀ)/2, M_c = v E[AᵀA] + (1 − v) Ā_cᵀĀ_c, with v
        the batch's noise factor. Infinite where some S_c is not positive definite: then there is no such L, the
        methods' rules vouch for no step size but 0, and whether a small one converges is seen by trying it.
        """
        A = self.client_matrices
        if self._smallest_symmetric() <= 0.0:
            return math.inf
        v = np.array([self.noise_factor(batches, int(n)) for n in self.sizes])[:, None, None]
        moments = v * self.client_second_moments() + (1.0 - v) * np.swapaxes(A, 1, 2) @ A
        root = np.linalg.cholesky(0.5 * (A + np.swapaxes(A, 1, 2)))
        half = np.linalg.solve(root, moments)
        whole = np.linalg.solve(root, np.swapaxes(half, 1, 2))
        return float(np.linalg.eigvalsh(0.5 * (whole + np.swapaxes(whole, 1, 2)))[:, -1].max())

    def strong_convexity(self) -> float:
        """μ with ⟨Ā_c u, u⟩ ≥ μ‖u‖² for every client: the smallest eigenvalue of (Ā_c + Ā_cᵀ)/2, or 0."""
        return max(0.0, self._smallest_symmetric())

    def _smallest_symmetric(self) -> float:
        A = self.client_matrices
        return float(np.linalg.eigvalsh(0.5 * (A + np.swapaxes(A, 1, 2)))[:, 0].min())

    def _check_stable(self) -> None:
        """Refuse a mean system that local steps would run away from."""
        eigenvalues = np.linalg.eigvals(self.matrix)
        least = float(eigenvalues.real.min())
        if least <= NEUTRAL * float(np.abs(eigenvalues).max()):
            raise InvalidInput(
                "the clients' mean matrix must have eigenvalues with positive real parts only, so that steps "
                f"θ − γ(Aθ − b) settle; it has one with real part {least:.3g}: check the sign of A (and of b)"
            )
