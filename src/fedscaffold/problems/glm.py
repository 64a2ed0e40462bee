"""Generalised linear problems: f_c(θ) = mean over client c's records of ℓ(xᵀθ, y), plus l2/2 ‖θ‖².

Everything about the loss is in five functions of the margin z = xᵀθ; the rest is the same for all. With offsets
o and sample weights s, records have losses s ℓ(xᵀθ + o, y).
"""

from __future__ import annotations  # so that help() shows ArrayLike, not what it stands for

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.machine import one_blas_thread
from fedscaffold.core.random.stream import Batches, Sampling
from fedscaffold.core.types import Array
from fedscaffold.problems.base import (
    OFFSET,
    TARGET,
    WEIGHT,
    TabularProblem,
    expit,
    flatten,
    refuse_records,
    with_columns,
)
from fedscaffold.problems.newton import minimise


def of_records(function: Callable[[Array, Array], Array], z: Array, y: Array) -> Array:
    """Return function(z, y), (records,), or s · function(z + o, y) if y has three columns."""
    if y.ndim == 1:
        return function(z, y)
    return y[:, WEIGHT] * function(z + y[:, OFFSET], y[:, TARGET])


class Glm(TabularProblem, ABC):
    """f = Σ_c w_c f_c over clients that hold tables of records (x, y), with a loss ℓ of the margin z = xᵀθ."""

    loss_derivative_bounds: ClassVar[tuple[float, float] | None] = None  # the largest |ℓ'''| and |ℓ''''|, if any
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
        """Return targets as the loss takes them; raise if it cannot."""
        return targets

    @staticmethod
    @abstractmethod
    def value(z: Array, y: Array) -> Array:
        """Return the loss ℓ(z, y) of margins z and targets y, elementwise."""

    @staticmethod
    @abstractmethod
    def d1(z: Array, y: Array) -> Array:
        """Return ℓ'(z, y), with respect to z."""

    @staticmethod
    @abstractmethod
    def d2(z: Array, y: Array) -> Array:
        """Return ℓ''(z, y), with respect to z."""

    @staticmethod
    @abstractmethod
    def d3(z: Array, y: Array) -> Array:
        """Return ℓ'''(z, y), with respect to z."""

    # f and its derivatives

    @one_blas_thread
    def loss(self, theta: Array) -> float:
        """Return f(θ) = Σ w_c f_c(θ), the same bits whatever the threads of linear algebra."""
        total = 0.0
        for x, y, share in self.pieces():
            total += float(share @ of_records(self.value, x @ theta, y))
        return total + 0.5 * float(self.penalty @ theta**2)

    @one_blas_thread
    def gradient(self, theta: Array) -> Array:
        """Return the gradient ∇f(θ), shape (d,), the same bits whatever the threads of linear algebra."""
        total = self.penalty * theta
        for x, y, share in self.pieces():
            total = total + (share * of_records(self.d1, x @ theta, y)) @ x
        return total

    def hessian(self, theta: Array) -> Array:
        """Return the Hessian ∇²f(θ) of the objective, shape (d, d)."""
        total = np.diag(self.penalty)
        for x, y, share in self.pieces():
            total += x.T @ ((share * of_records(self.d2, x @ theta, y))[:, None] * x)
        return total

    def _solve_optimum(self) -> Array:
        """Return θ* = argmin f, by Newton's method, to a gradient of 1e-12 relative."""
        return minimise(self)

    # each client's f_c and its derivatives, one row per client

    @one_blas_thread
    def client_losses(self, theta: Array) -> Array:
        """Return the loss f_c(θ) of each client, (n_clients,)."""
        penalty = 0.5 * float(self.penalty @ theta**2)
        return np.array([of_records(self.value, x @ theta, y).mean() + penalty for x, y in self._clients()])

    def client_hessians(self, theta: Array) -> Array:
        """Return ∇²f_c(θ), shape (N, d, d)."""
        found = np.empty((self.n_clients, self.dim, self.dim))
        for c, hessian in enumerate(self._client_hessians(theta)):
            found[c] = hessian
        return found

    def _client_hessians(self, theta: Array) -> Iterator[Array]:
        """Yield ∇²f_c(θ) of each client, in order."""
        for x, y in self._clients():
            yield x.T @ ((of_records(self.d2, x @ theta, y) / len(y))[:, None] * x) + np.diag(self.penalty)

    def client_third_derivatives(self, theta: Array, matrix: Array) -> Array:
        """Return ∇³f_c(θ)[M], shape (N, d): entry i is Σ_jk ∂³f_c/∂i∂j∂k M_jk; M is (d, d) or (N, d, d)."""
        matrices = np.broadcast_to(matrix, (self.n_clients, self.dim, self.dim))
        rows = [
            (of_records(self.d3, x @ theta, y) * np.einsum("ij,ij->i", x @ m, x)) @ x / len(y)
            for (x, y), m in zip(self._clients(), matrices, strict=True)
        ]
        return np.stack(rows)

    def client_noise_covariances(
        self, theta: Array, *, batch_size: int | None, sampling: Sampling = "with_replacement"
    ) -> Array:
        """Return C_c(θ) = Cov of a minibatch gradient, shape (N, d, d).

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

    def _slopes(self, theta: Array, x: Array, y: Array) -> Array:
        """Return ℓ' of each record, times its weight, (records,)."""
        return of_records(self.d1, x @ theta, y)


class Ridge(Glm):
    """f_c(θ) = mean of ½(xᵀθ − y)² over client c's records, plus l2/2 ‖θ‖²: linear regression.

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
        Number of last features without a penalty; 1 if the last one is an intercept's column of ones.
    sample_weight
        Factors s ≥ 0 of the records' losses, in the form of y; 1 by default.
    offset
        Numbers added to the margins xᵀθ, in the form of y; 0 by default.

    Examples
    --------
    >>> import numpy as np
    >>> import fedscaffold as fs
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(4, 50, 3))  # 4 clients with 50 records of 3 features each
    >>> problem = fs.problems.Ridge(X, X @ np.array([1.0, 2.0, 3.0]), l2=0.01)
    >>> problem
    Ridge(n_clients=4, dim=3, n_records=200, l2=0.01)
    >>> problem.optimum().round(1)
    array([1., 2., 3.])
    """

    kind = "ridge"
    curvature = 1.0
    loss_derivative_bounds = (0.0, 0.0)
    value = staticmethod(lambda z, y: 0.5 * (z - y) ** 2)
    d1 = staticmethod(lambda z, y: z - y)
    d2 = staticmethod(lambda z, y: np.ones_like(z))
    d3 = staticmethod(lambda z, y: np.zeros_like(z))

    def strong_convexity(self) -> float:
        """Return the smallest eigenvalue of any client's Hessian."""
        hessians = self._client_hessians(np.zeros(self.dim))
        return max(0.0, min(float(np.linalg.eigvalsh(hessian)[0]) for hessian in hessians))


LOGISTIC_DERIVATIVE_BOUNDS = (1.0 / (6.0 * float(np.sqrt(3.0))), 1.0 / 8.0)  # of |ℓ'''| and |ℓ''''|


class Logistic(Glm):
    """f_c(θ) = mean of log(1 + exp(−y xᵀθ)) over client c's records, plus l2/2 ‖θ‖²: logistic regression.

    Labels y are {0, 1} or {−1, 1}; they are kept as ±1.

    Parameters
    ----------
    X, y, l2, weights, n_unpenalised, sample_weight, offset
        As for `Ridge`.

    Examples
    --------
    >>> import numpy as np
    >>> import fedscaffold as fs
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(4, 50, 3))  # 4 clients with 50 records of 3 features each
    >>> problem = fs.problems.Logistic(X, X[:, :, 0] > 0, l2=0.1)
    >>> problem
    Logistic(n_clients=4, dim=3, n_records=200, l2=0.1)
    >>> bool(problem.loss(problem.optimum()) < problem.loss(np.zeros(3)))
    True
    """

    kind = "logistic"
    curvature = 0.25
    loss_derivative_bounds = LOGISTIC_DERIVATIVE_BOUNDS
    value = staticmethod(lambda z, y: np.logaddexp(0.0, -y * z))
    d1 = staticmethod(lambda z, y: -y * expit(-y * z))
    d2 = staticmethod(lambda z, y: expit(z) * expit(-z))
    d3 = staticmethod(lambda z, y: expit(z) * expit(-z) * (expit(-z) - expit(z)))

    @staticmethod
    def check_targets(targets: Array, offsets: NDArray[np.int64]) -> Array:
        """Return labels as ±1; raise if they are neither {0, 1} nor {−1, 1}."""
        pair = (0.0, 1.0) if (targets == 0.0).any() else (-1.0, 1.0)
        refuse_records(~np.isin(targets, pair), targets, offsets, "labels must be 0 and 1, or -1 and 1")
        return 2.0 * targets - 1.0 if 0.0 in pair else targets

    def accuracy(self, theta: Array) -> float:
        """Return the share of all records, sample weights counted, whose label is the sign of the margin at θ."""
        right = of_records(lambda z, y: (z > 0.0) == (y > 0.0), self.x @ theta, self.y)
        return float(right.mean() if self.y.ndim == 1 else right.sum() / self.y[:, WEIGHT].sum())


class LogLink(Glm):
    """A loss whose second derivative is convex in the margin and has no bound: e^z or e^−z times a constant."""

    has_columns = True

    def record_curvatures(self, x: Array, y: Array) -> Array:
        """Return the bounds on the records' ℓ'' for all θ between 0 and θ*, weights included, (records,).

        ℓ'' has no bound for all θ. Being convex in the margin, it is largest at an end of a segment. Where the
        problem has no optimum, which may happen with one client, four times the ones at θ = 0.
        """
        at = y[:, OFFSET]
        begin = self.d2(at, y[:, TARGET])
        try:
            end = self.d2(at + x @ self.optimum(), y[:, TARGET])
        except InvalidInput:
            end = 4.0 * begin
        return y[:, WEIGHT] * np.maximum(begin, end)

    def _solve_optimum(self) -> Array:
        """Return θ* by Newton's method, from least squares on the logarithm of the midpoint of y and its mean.

        From θ = 0 a step could be so long that the exponential overflows.
        """
        total = weight = 0.0
        for _, y, share in self.pieces():
            total += float(share @ (y[:, WEIGHT] * y[:, TARGET]))
            weight += float(share @ y[:, WEIGHT])
        if total == 0.0:
            raise InvalidInput("all counts are 0; there is nothing to learn from them")
        gram, moment = np.diag(self.penalty), np.zeros(self.dim)
        for x, y, share in self.pieces():
            own = share * y[:, WEIGHT]
            gram += (x.T * own) @ x
            moment += (own * (np.log(0.5 * (y[:, TARGET] + total / weight)) - y[:, OFFSET])) @ x
        with np.errstate(over="ignore", invalid="ignore"):  # where a step is too long, which is then halved
            return minimise(self, np.asarray(np.linalg.lstsq(gram, moment)[0], dtype=np.float64))


class Poisson(LogLink):
    """f_c(θ) = mean of exp(xᵀθ) − y xᵀθ over client c's records, plus l2/2 ‖θ‖²: regression of counts y ≥ 0.

    The mean of y is exp(xᵀθ), or with exposures E, such as days under observation, E exp(xᵀθ).

    Parameters
    ----------
    X, y, l2, weights, n_unpenalised, sample_weight, offset
        As for `Ridge`.
    exposure
        Positive numbers E in the form of y, in place of the offset log E.

    Examples
    --------
    >>> import numpy as np
    >>> import fedscaffold as fs
    >>> rng = np.random.default_rng(0)
    >>> X = np.stack([rng.normal(size=(4, 500)), np.ones((4, 500))], axis=2)  # 4 clients; the last column is 1
    >>> days = rng.uniform(1, 10, size=(4, 500))
    >>> visits = rng.poisson(days * np.exp(X @ [0.5, -1.0]))
    >>> fs.problems.Poisson(X, visits, exposure=days).optimum().round(1)
    array([ 0.5, -1. ])
    """

    kind = "poisson"
    value = staticmethod(lambda z, y: np.exp(z) - y * z)
    d1 = staticmethod(lambda z, y: np.exp(z) - y)
    d2 = staticmethod(lambda z, y: np.exp(z))
    d3 = staticmethod(lambda z, y: np.exp(z))

    def __init__(
        self,
        X: ArrayLike | Sequence[ArrayLike],
        y: ArrayLike | Sequence[ArrayLike],
        *,
        exposure: ArrayLike | Sequence[ArrayLike] | None = None,
        **more: Any,
    ) -> None:
        if exposure is not None:
            if more.get("offset") is not None:
                raise InvalidInput("give either exposure or offset, which is its logarithm")
            more["offset"] = log_exposure(exposure)
        super().__init__(X, y, **more)

    @staticmethod
    def check_targets(targets: Array, offsets: NDArray[np.int64]) -> Array:
        """Return the counts; raise if one is negative."""
        refuse_records(targets < 0.0, targets, offsets, "counts must not be negative")
        return targets


class Gamma(LogLink):
    """f_c(θ) = mean of y exp(−xᵀθ) + xᵀθ over client c's records, plus l2/2 ‖θ‖²: regression of amounts y > 0.

    The mean of y is exp(xᵀθ) and its standard deviation proportional to the mean, as with costs or durations.

    Parameters
    ----------
    X, y, l2, weights, n_unpenalised, sample_weight, offset
        As for `Ridge`.

    Examples
    --------
    >>> import numpy as np
    >>> import fedscaffold as fs
    >>> rng = np.random.default_rng(0)
    >>> X = np.stack([rng.normal(size=(4, 500)), np.ones((4, 500))], axis=2)  # 4 clients; the last column is 1
    >>> costs = rng.gamma(2.0, np.exp(X @ [0.5, 3.0]) / 2.0)
    >>> fs.problems.Gamma(X, costs).optimum().round(1)
    array([0.5, 3. ])
    """

    kind = "gamma"
    value = staticmethod(lambda z, y: y * np.exp(-z) + z)
    d1 = staticmethod(lambda z, y: 1.0 - y * np.exp(-z))
    d2 = staticmethod(lambda z, y: y * np.exp(-z))
    d3 = staticmethod(lambda z, y: -y * np.exp(-z))

    @staticmethod
    def check_targets(targets: Array, offsets: NDArray[np.int64]) -> Array:
        """Return the amounts; raise if one is not positive."""
        refuse_records(targets <= 0.0, targets, offsets, "the targets of a Gamma regression must be positive")
        return targets


def log_exposure(exposure: Any) -> list[Array]:
    """Return logarithms of exposures, one array per client; raise if one is not positive."""
    try:
        parts = [np.asarray(part, dtype=np.float64) for part in exposure]
    except (TypeError, ValueError) as error:
        raise InvalidInput(f"exposure must hold one number per record, one array per client: {error}") from None
    for client, part in enumerate(parts):
        bad = ~(part > 0.0)
        if bad.any():
            record = int(bad.argmax())
            raise InvalidInput(
                f"exposures must be positive; client {client}, record {record} has {part.flat[record]:g}"
            )
    return [np.log(part) for part in parts]
