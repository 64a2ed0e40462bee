"""Regression of positive means with the logarithm as link: counts (Poisson) and positive amounts (Gamma)."""

from __future__ import annotations  # so that help() shows ArrayLike, not what it stands for

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.types import Array
from fedscaffold.problems.glm import Glm
from fedscaffold.problems.newton import minimise
from fedscaffold.problems.record_weights import OFFSET, TARGET, WEIGHT, refuse_records

NO_OPTIMUM = 4.0  # how many times its value at θ = 0 a curvature is taken for where there is no optimum


class LogLink(Glm):
    """A loss whose second derivative is convex in the margin and has no bound: e^z or e^−z times a constant."""

    has_columns = True

    def record_curvatures(self, x: Array, y: Array) -> Array:
        """Bounds on the records' ℓ'' for all θ between 0 and θ*, weights included, (records,).

        ℓ'' has no bound for all θ. Being convex in the margin, it is largest at an end of a segment. Where the
        problem has no optimum of its own, as that of one client may, four times those at θ = 0.
        """
        at = y[:, OFFSET]
        begin = self.d2(at, y[:, TARGET])
        try:
            end = self.d2(at + x @ self.optimum(), y[:, TARGET])
        except InvalidInput:
            end = NO_OPTIMUM * begin
        return y[:, WEIGHT] * np.maximum(begin, end)

    def _solve_optimum(self) -> Array:
        """θ* by Newton's method, from least squares on the logarithm of what y and its mean are halfway between.

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
        """Counts; negative ones are refused."""
        refuse_records(targets < 0.0, targets, offsets, "counts must not be negative")
        return targets

    @staticmethod
    def value(z: Array, y: Array) -> Array:
        """ℓ(z, y) = exp(z) − y z."""
        return np.exp(z) - y * z

    @staticmethod
    def d1(z: Array, y: Array) -> Array:
        """ℓ'(z, y) = exp(z) − y."""
        return np.exp(z) - y

    @staticmethod
    def d2(z: Array, y: Array) -> Array:
        """ℓ''(z, y) = exp(z)."""
        return np.exp(z)

    @staticmethod
    def d3(z: Array, y: Array) -> Array:
        """ℓ'''(z, y) = exp(z)."""
        return np.exp(z)


class Gamma(LogLink):
    """f_c(θ) = mean of y exp(−xᵀθ) + xᵀθ over client c's records, plus l2/2 ‖θ‖²: regression of amounts y > 0.

    The mean of y is exp(xᵀθ) and its standard deviation proportional to the mean, as with costs or durations.

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
    >>> X = np.stack([rng.normal(size=(4, 500)), np.ones((4, 500))], axis=2)  # 4 clients; the last column is 1
    >>> costs = rng.gamma(2.0, np.exp(X @ [0.5, 3.0]) / 2.0)
    >>> fs.problems.Gamma(X, costs).optimum().round(1)
    array([0.5, 3. ])
    """

    kind = "gamma"

    @staticmethod
    def check_targets(targets: Array, offsets: NDArray[np.int64]) -> Array:
        """Positive amounts; others are refused."""
        refuse_records(targets <= 0.0, targets, offsets, "the targets of a Gamma regression must be positive")
        return targets

    @staticmethod
    def value(z: Array, y: Array) -> Array:
        """ℓ(z, y) = y exp(−z) + z."""
        return y * np.exp(-z) + z

    @staticmethod
    def d1(z: Array, y: Array) -> Array:
        """ℓ'(z, y) = 1 − y exp(−z)."""
        return 1.0 - y * np.exp(-z)

    @staticmethod
    def d2(z: Array, y: Array) -> Array:
        """ℓ''(z, y) = y exp(−z)."""
        return y * np.exp(-z)

    @staticmethod
    def d3(z: Array, y: Array) -> Array:
        """ℓ'''(z, y) = −y exp(−z)."""
        return -y * np.exp(-z)


def log_exposure(exposure: Any) -> list[Array]:
    """Logarithm of positive exposures, one array per client; others are refused."""
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
