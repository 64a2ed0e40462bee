"""Generalised linear problems: f_c(θ) = mean over client c's records of ℓ(xᵀθ, y), plus l2/2 ‖θ‖².

Everything about the loss is in five functions of the margin z = xᵀθ; the rest is the same for all. With offsets
o and sample weights s, records have losses s ℓ(xᵀθ + o, y).
"""

from __future__ import annotations  # so that help() shows ArrayLike, not what it stands for

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedscaffold.core.random.batches import Batches, Sampling
from fedscaffold.core.threads import one_blas_thread
from fedscaffold.core.types import Array
from fedscaffold.problems.client_arrays import flatten
from fedscaffold.problems.newton import minimise
from fedscaffold.problems.record_weights import clipped_slopes, of_records, with_columns
from fedscaffold.problems.tabular import TabularProblem


class Glm(TabularProblem, ABC):
    """f = Σ_c w_c f_c over clients that hold tables of records (x, y), with a loss ℓ of the margin z = xᵀθ.

    Parameters
    ----------
    X
        Features: an array of shape (N, n, d), or a sequence of N arrays of shape (n_c, d), one per client.
    y
        Targets: an array of shape (N, n), or a sequence of N arrays of shape (n_c,).
    l2
        Strength of the penalty l2/2 ‖θ‖², which every client's f_c includes.
    weights
        One positive weight per client, scaled to sum to one; uniform by default.
    n_unpenalised
        Number of last features that are not penalised; 1 where the last one is an intercept's column of ones.
    sample_weight
        Factors s ≥ 0 of the records' losses: an array of shape (N, n), or a sequence of N arrays of shape (n_c,);
        1 by default.
    offset
        Numbers o that are added to the margins xᵀθ, in the same form; 0 by default.
    """

    loss_derivative_bounds: ClassVar[tuple[float, float] | None] = (
        None  # the largest |ℓ'''| and |ℓ''''|, if bounded
    )
    has_columns: ClassVar[bool] = False  # whether y has three columns even without offsets and weights
    margin_derivative_bounds: tuple[float, float]  # the same; only where records have neither offsets nor weights

    def __init__(
        self,
        X: ArrayLike | Sequence[ArrayLike],
        y: ArrayLike | Sequence[ArrayLike],
        *,
        l2: float = 0.0,
        weights: ArrayLike | None = None,
        n_unpenalised: int = 0,
        sample_weight: ArrayLike | Sequence[ArrayLike] | None = None,
        offset: ArrayLike | Sequence[ArrayLike] | None = None,
    ) -> None:
        x, targets, offsets = flatten(X, y)
        targets = self.check_targets(targets, offsets)
        if self.has_columns or sample_weight is not None or offset is not None:
            targets = with_columns(targets, offsets, sample_weight=sample_weight, offset=offset)
        self._set_data(x, targets, offsets, l2=l2, weights=weights, n_unpenalised=n_unpenalised)

    def _set_data(self, x: Array, y: Array, offsets: NDArray[np.int64], **more: Any) -> None:
        """Take the records; theory's `MarginLoss` is given by those without offsets and weights."""
        super()._set_data(x, y, offsets, **more)
        if y.ndim == 1 and self.loss_derivative_bounds is not None:
            self.margin_derivative_bounds = self.loss_derivative_bounds

    @staticmethod
    def check_targets(targets: Array, offsets: NDArray[np.int64]) -> Array:
        """Targets as the loss takes them; those that it cannot take are refused."""
        return targets

    @staticmethod
    @abstractmethod
    def value(z: Array, y: Array) -> Array:
        """Loss ℓ(z, y) of margins z and targets y, elementwise."""

    @staticmethod
    @abstractmethod
    def d1(z: Array, y: Array) -> Array:
        """ℓ'(z, y), with respect to z."""

    @staticmethod
    @abstractmethod
    def d2(z: Array, y: Array) -> Array:
        """ℓ''(z, y), with respect to z."""

    @staticmethod
    @abstractmethod
    def d3(z: Array, y: Array) -> Array:
        """ℓ'''(z, y), with respect to z."""

    # f and its derivatives

    @one_blas_thread
    def loss(self, theta: Array) -> float:
        """f(θ) = Σ w_c f_c(θ), the same bits whatever the threads of linear algebra."""
        total = 0.0
        for x, y, share in self.pieces():
            total += float(share @ of_records(self.value, x @ theta, y))
        return total + 0.5 * float(self.penalty @ theta**2)

    @one_blas_thread
    def gradient(self, theta: Array) -> Array:
        """Gradient ∇f(θ) of the objective, shape (d,), the same bits whatever the threads of linear algebra."""
        total = self.penalty * theta
        for x, y, share in self.pieces():
            total = total + (share * of_records(self.d1, x @ theta, y)) @ x
        return total

    def hessian(self, theta: Array) -> Array:
        """Hessian ∇²f(θ) of the objective, shape (d, d)."""
        total = np.diag(self.penalty)
        for x, y, share in self.pieces():
            total += x.T @ ((share * of_records(self.d2, x @ theta, y))[:, None] * x)
        return total

    def _solve_optimum(self) -> Array:
        """θ* = argmin f, by Newton's method, to a gradient of 1e-12 relative."""
        return minimise(self)

    # each client's f_c and its derivatives, one row per client

    @one_blas_thread
    def client_losses(self, theta: Array) -> Array:
        """Loss f_c(θ) of each client, (n_clients,)."""
        penalty = 0.5 * float(self.penalty @ theta**2)
        return np.array([of_records(self.value, x @ theta, y).mean() + penalty for x, y in self._clients()])

    @one_blas_thread
    def client_gradients(self, theta: Array) -> Array:
        """∇f_c(θ), shape (N, d), the same bits whatever the threads of linear algebra."""
        rows = [of_records(self.d1, x @ theta, y) @ x / len(y) for x, y in self._clients()]
        return np.stack(rows) + self.penalty * theta

    def client_hessians(self, theta: Array) -> Array:
        """∇²f_c(θ), shape (N, d, d)."""
        found = np.empty((self.n_clients, self.dim, self.dim))
        for c, hessian in enumerate(self._client_hessians(theta)):
            found[c] = hessian
        return found

    def _client_hessians(self, theta: Array) -> Iterator[Array]:
        """∇²f_c(θ) of each client, in order."""
        for x, y in self._clients():
            yield x.T @ ((of_records(self.d2, x @ theta, y) / len(y))[:, None] * x) + np.diag(self.penalty)

    def client_third_derivatives(self, theta: Array, matrix: Array) -> Array:
        """∇³f_c(θ)[M], shape (N, d): entry i is Σ_jk ∂³f_c/∂i∂j∂k M_jk; M is (d, d) or (N, d, d)."""
        matrices = np.broadcast_to(matrix, (self.n_clients, self.dim, self.dim))
        rows = [
            (of_records(self.d3, x @ theta, y) * np.einsum("ij,jk,ik->i", x, m, x, optimize=True)) @ x / len(y)
            for (x, y), m in zip(self._clients(), matrices, strict=True)
        ]
        return np.stack(rows)

    def client_noise_covariances(
        self, theta: Array, *, batch_size: int | None, sampling: Sampling = "with_replacement"
    ) -> Array:
        """C_c(θ) = Cov of a minibatch gradient, shape (N, d, d).

        Cov_i(∇f_{c,i}(θ))/B with replacement, times (n − B)/(n − 1) without, and 0 for full gradients.
        """
        batches = Batches(batch_size, sampling)
        batches.check_fits(self.sizes)
        blocks = []
        for x, y in self._clients():
            gradients = of_records(self.d1, x @ theta, y)[:, None] * x
            gradients -= gradients.mean(axis=0)
            blocks.append(batches.noise_factor(len(y)) / len(y) * (gradients.T @ gradients))
        return np.stack(blocks)

    def client_noise_along(
        self, theta: Array, directions: Array, *, batch_size: int | None, sampling: Sampling = "with_replacement"
    ) -> Array:
        """Variance of a minibatch gradient along each column of (d, m) directions, shape (N, m)."""
        batches = Batches(batch_size, sampling)
        batches.check_fits(self.sizes)
        rows = [
            batches.noise_factor(len(y))
            * (of_records(self.d1, x @ theta, y)[:, None] * (x @ directions)).var(axis=0)
            for x, y in self._clients()
        ]
        return np.stack(rows)

    # what runs need

    def batch_gradient(self, client: int, theta: Array, rows: NDArray[np.int64]) -> Array:
        """Mean gradient at θ over some of a client's records, penalty included."""
        at = self.offsets[client] + rows
        x, y = self.x[at], self.y[at]
        return of_records(self.d1, x @ theta, y) @ x / at.size + self.penalty * theta

    def clipped_gradient(
        self, client: int, theta: Array, rows: NDArray[np.int64], clip: float, noise: Array | float = 0.0
    ) -> Array:
        """Mean gradient over some of a client's records, each shortened to norm `clip`, noise and the penalty's.

        A record's gradient is ℓ' x, whose norm is that of x times the size of ℓ'.
        """
        at = self.place(client, rows)
        x = self.x[at]
        with np.errstate(over="ignore", invalid="ignore"):
            slopes = clipped_slopes(of_records(self.d1, x @ theta, self.y[at]), self.lengths[at], clip)
        return (slopes @ x / rows.size + noise) + self.penalty * theta
