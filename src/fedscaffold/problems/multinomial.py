"""Logistic regression with more than two classes."""

from __future__ import annotations  # so that help() shows ArrayLike, not what it stands for

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedscaffold.core.checks import whole_number
from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.machine import check_memory, one_blas_thread
from fedscaffold.core.types import Array
from fedscaffold.problems.base import (
    TARGET,
    WEIGHT,
    TabularProblem,
    flatten,
    log_softmax,
    softmax,
    with_columns,
)
from fedscaffold.problems.newton import minimise


class Multinomial(TabularProblem):
    """f_c(θ) = mean of log Σ_k exp(xᵀθ_k) − xᵀθ_y over client c's records, plus l2/2 ‖θ‖².

    θ holds one vector per class, θ_0, ..., θ_{K−1}, one after another. Where some features are not penalised, θ is
    defined up to a vector added to all classes; the one with Σ_k θ_k = 0 is meant, and runs from θ = 0 stay there.

    Parameters
    ----------
    X, l2, weights, n_unpenalised, sample_weight
        As for `Ridge`.
    y
        Classes 0, ..., K − 1: an array of shape (N, n), or a sequence of N arrays of shape (n_c,).
    n_classes
        K, the number of classes; one more than the largest class by default.

    Examples
    --------
    >>> import numpy as np
    >>> import fedscaffold as fs
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(4, 50, 3))  # 4 clients with 50 records of 3 features each
    >>> fs.problems.Multinomial(X, X.argmax(axis=2), l2=0.1)
    Multinomial(n_clients=4, dim=9, n_records=200, l2=0.1)
    """

    kind = "multinomial"
    curvature = 0.5

    def __init__(
        self,
        X: ArrayLike | Sequence[ArrayLike],
        y: ArrayLike | Sequence[ArrayLike],
        *,
        n_classes: int | None = None,
        l2: float = 0.0,
        weights: ArrayLike | None = None,
        n_unpenalised: int = 0,
        sample_weight: ArrayLike | Sequence[ArrayLike] | None = None,
    ) -> None:
        x, targets, offsets = flatten(X, y)
        if not ((targets >= 0) & (targets == np.floor(targets))).all():
            raise InvalidInput("classes must be whole numbers from 0 on; number them first")
        largest = int(targets.max())
        most = 1_000_000  # beyond it, targets are most likely not classes
        if largest > most:
            raise InvalidInput(f"classes must be numbered from 0 on, but there is a class {targets.max():g}")
        self.vectors = largest + 1
        if n_classes is not None:
            self.vectors = whole_number("n_classes", n_classes, least=2, most=most)
        check_memory(f"a model with {self.vectors:,} classes", 8 * self.vectors * x.shape[1])
        if not largest < self.vectors >= 2:
            raise InvalidInput(f"n_classes={self.vectors}, but the classes go from 0 to {largest}")
        if sample_weight is not None:
            targets = with_columns(targets, offsets, sample_weight=sample_weight, offset=None)
        self._set_data(x, targets, offsets, l2=l2, weights=weights, n_unpenalised=n_unpenalised)

    @property
    def n_classes(self) -> int:
        """K, the number of classes."""
        return self.vectors

    def loss(self, theta: Array) -> float:
        """Return f(θ) = Σ w_c f_c(θ)."""
        return float(self.weights @ self.client_losses(theta))

    def gradient(self, theta: Array) -> Array:
        """Return the gradient ∇f(θ), shape (dim,)."""
        return self.weights @ self.client_gradients(theta)

    def hessian(self, theta: Array) -> Array:
        """Return the Hessian ∇²f(θ), shape (dim, dim)."""
        total = np.diag(self.penalty)
        for x, y, shares in self.pieces():
            total += self.curvature_of(x, softmax(self._margins(theta, x)), shares * _weights(y))
        return total

    def _solve_optimum(self) -> Array:
        """Return θ* = argmin f, by Newton's method."""
        return minimise(_Centred(self))

    def accuracy(self, theta: Array) -> float:
        """Return the share of all records, sample weights counted, whose class has the largest margin at θ."""
        right = self._margins(theta, self.x).argmax(axis=1) == _classes(self.y)
        return float(np.average(right, weights=_weights(self.y)))

    @one_blas_thread
    def client_losses(self, theta: Array) -> Array:
        """Return the clients' losses f_c(θ), shape (N,)."""
        penalty = 0.5 * float(self.penalty @ theta**2)
        return np.array([-self._log_shares(theta, x, y).mean() + penalty for x, y in self._clients()])

    def client_hessians(self, theta: Array) -> Array:
        """Return ∇²f_c(θ), shape (N, dim, dim)."""
        blocks = [
            self.curvature_of(x, softmax(self._margins(theta, x)), _weights(y) / len(y))
            for x, y in self._clients()
        ]
        return np.stack(blocks) + np.diag(self.penalty)

    def record_gradients(self, client: int, points: Array) -> Array:
        """Return each record's gradient, penalty included, of one client at (p, dim) points, shape (p, n, dim)."""
        rows = slice(self.offsets[client], self.offsets[client + 1])
        x, y = self.x[rows], self.y[rows]
        each = [(self._slopes(theta, x, y)[:, :, None] * x[:, None, :]).reshape(len(y), -1) for theta in points]
        return np.stack(each) + (self.penalty * points)[:, None, :]

    def _margins(self, theta: Array, x: Array) -> Array:
        return x @ theta.reshape(self.n_classes, self.n_features).T

    def _log_shares(self, theta: Array, x: Array, y: Array) -> Array:
        """Return log p_y(x) of each record, times its weight."""
        return _weights(y) * log_softmax(self._margins(theta, x))[np.arange(len(y)), _classes(y)]

    def _slopes(self, theta: Array, x: Array, y: Array) -> Array:
        """Return p_k(x) − [y = k] of each record, times its weight, (records, K)."""
        shares = softmax(self._margins(theta, x))
        shares[np.arange(len(y)), _classes(y)] -= 1.0
        return shares if y.ndim == 1 else y[:, WEIGHT, None] * shares

    def curvature_of(self, x: Array, p: Array, weight: Array) -> Array:
        """Return Σ_i weight_i p_k(δ_kl − p_l) x xᵀ of probabilities p, (records, K), as a (dim, dim) matrix."""
        K, d = self.n_classes, self.n_features
        blocks = np.empty((K, d, K, d))
        for k in range(K):
            for m in range(k + 1):
                blocks[k, :, m, :] = gram(x, weight * p[:, k] * ((k == m) - p[:, m]))
                blocks[m, :, k, :] = blocks[k, :, m, :].T
        return blocks.reshape(self.dim, self.dim)


def gram(x: Array, weight: Array) -> Array:
    """Return Σ weight_i x_i x_iᵀ; faster, by a product of a matrix with itself, if no weight is negative."""
    if weight.size and weight.min() < 0.0:
        return x.T @ (weight[:, None] * x)
    scaled = np.sqrt(weight)[:, None] * x
    return scaled.T @ scaled


def _classes(y: Array) -> NDArray[np.int64]:
    return (y if y.ndim == 1 else y[:, TARGET]).astype(np.int64)


def _weights(y: Array) -> Array:
    return np.ones(len(y)) if y.ndim == 1 else y[:, WEIGHT]


class _Centred:
    """f plus ½‖Σ_k θ_k‖² over the features that are not penalised: the same minimiser, made unique."""

    def __init__(self, problem: Multinomial) -> None:
        self._problem, self.dim = problem, problem.dim
        free = problem.penalty == 0.0
        K, d = problem.n_classes, problem.n_features
        self._ties = np.kron(np.ones((K, K)), np.eye(d)) * free * free[:, None]

    def loss(self, theta: Array) -> float:
        return self._problem.loss(theta) + 0.5 * float(theta @ self._ties @ theta)

    def gradient(self, theta: Array) -> Array:
        return self._problem.gradient(theta) + self._ties @ theta

    def hessian(self, theta: Array) -> Array:
        return self._problem.hessian(theta) + self._ties
