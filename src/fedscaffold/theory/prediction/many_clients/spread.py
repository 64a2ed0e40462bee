"""The covariance of the reduced state from round to round, with noise that is found at some rounds.

P_{t+1} = A P_t Aᵀ + W_t, where W_t lies on straight lines between the rounds at which noise was found. Of P_t only
tr Cov θ_t = tr E P_t Eᵀ is wanted at every round. With V_k = E A^k, of d rows, it is

    tr V_n P V_nᵀ + Σ_{k<n} tr V_k W_{n−1−k} V_kᵀ

n rounds after a known P. P itself follows over many rounds by doubling.
"""

import numpy as np

from fedscaffold.core.types import Array
from fedscaffold.theory.prediction.plateau import theta_covariance

AT_ONCE = 256  # rounds for which V_k is kept
FEW_ROUNDS, FEW_POINTS = 8, 4  # with fewer rounds, or points of the reduced state, every round is taken


class SpreadOfRounds:
    """Cov θ_t by round.

    Parameters
    ----------
    A
        Of the reduced state; of θ for FedAvg.
    d
        Number of features.
    """

    def __init__(self, A: Array, d: int) -> None:
        self.A, self.d = A, d
        self.P = np.zeros_like(A)  # at the round of the last trace
        self.known = [0.0]  # tr Cov θ_t for t = 0, 1, ...
        self.last: tuple[int, Array] | None = None  # round at which noise was found last, and that noise
        self._views = np.tile(np.eye(d), A.shape[0] // d)[None]  # V_k, (k, d, M d)

    def waits(self, rounds: int) -> bool:
        """Whether some of so many rounds are after the last at which noise was found, and wait for the next."""
        return self.last is None or self.last[0] < rounds - 1

    def guess(self, t: int) -> Array:
        """Cov θ_t, with the noise of the last round at which it was found for those since."""
        if self.last is None:
            return theta_covariance(self.P, self.d)
        P = after_rounds(self.A, self.P, self.last[1], None, t - len(self.known) + 1)
        return theta_covariance(P, self.d)

    def found(self, t: int, noise: Array) -> None:
        """Take note of the noise of round t, and with it of the covariances up to there."""
        if self.last is not None:
            begin, before = self.last
            self.go_on(before, (noise - before) / (t - begin), t - begin)
        self.last = t, noise

    def traces(self, rounds: int, later: Array) -> Array:
        """Tr Cov θ_t for t = 0, ..., rounds, with the noise `later` after the last round at which it was found."""
        missing = rounds + 1 - len(self.known)
        if missing > 0 and self.last is not None:
            self.go_on(self.last[1], None, 1)
            self.go_on(later, None, missing - 1)
        return np.array(self.known[: rounds + 1])

    def go_on(self, noise: Array, slope: Array | None, rounds: int) -> None:
        """Some rounds more, with `noise` in the first of them, and more by `slope` in each that follows."""
        while rounds > 0:
            n = min(rounds, AT_ONCE)
            if n < FEW_ROUNDS or self.A.shape[0] <= FEW_POINTS * self.d:
                n = 1
                self.P = self.A @ self.P @ self.A.T + noise
                self.known.append(float(np.trace(theta_covariance(self.P, self.d))))
            else:
                V = self.views(n + 1)
                totals = squares(V[1:], self.P) + np.cumsum(squares(V[:n], noise))
                if slope is not None:
                    totals[1:] += np.cumsum(np.cumsum(squares(V[: n - 1], slope)))
                self.known += totals.tolist()
                self.P = after_rounds(self.A, self.P, noise, slope, n)
            noise = noise if slope is None else noise + n * slope
            rounds -= n

    def views(self, count: int) -> Array:
        """V_k for k < count, (count, d, M d)."""
        while len(self._views) < count:  # twice as many each time
            more = self._views @ np.linalg.matrix_power(self.A, len(self._views))
            self._views = np.concatenate([self._views, more])
        return self._views[:count]


def after_rounds(A: Array, P: Array, noise: Array, slope: Array | None, rounds: int) -> Array:
    """P_{t + rounds} from P_t, with noise as in `SpreadOfRounds.go_on`.

    By what 1, 2, 4, ... rounds make of it: P ← B P Bᵀ + S + k R from round k on.
    """
    B, S, R, k, step = A, noise, slope, 0, 1
    while rounds:
        if rounds & 1:
            P = B @ P @ B.T + S
            P = P if R is None else P + k * R
            k += step
        rounds >>= 1
        if rounds:
            S = B @ S @ B.T + S
            if R is not None:
                S, R = S + step * R, B @ R @ B.T + R
            B, step = B @ B, 2 * step
    return P


def squares(V: Array, matrix: Array) -> Array:
    """Tr V_k M V_kᵀ for every k, of V (k, d, n) and M (n, n)."""
    turned = (V.reshape(-1, V.shape[2]) @ matrix).reshape(V.shape)
    return np.asarray(np.einsum("kij,kij->k", turned, V))
