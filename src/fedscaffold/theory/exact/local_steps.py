"""H local steps in closed form, in the eigenbasis of each client's Hessian.

With Γ_c = I − γ∇²f_c diagonal, whatever varies along the local steps is written as a sum of m powers b_p^h. Every
sum over steps is then a divided difference of powers, and costs the same for any H.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from fedscaffold.core.types import Array, IntArray


@dataclass(frozen=True, eq=False)
class Steps:
    """Nodes h_q among the local steps 0..H−1 and rates b_p: v(h) ≈ Σ_p b_p^h Σ_q fit[p, q] v(h_q)."""

    H: int
    nodes: list[int]  # m of them
    rates: Array  # (m,)
    fit: Array  # (m, m)


def steps(gamma: float, H: int, smallest: float, largest: float, growth: float, tolerance: float) -> Steps:
    """Return nodes and rates for curvatures from `smallest` to `largest`, as many as the tolerance requires.

    Means of local models vary as combinations of 1 and g^h, their second moments also of (g g')^h, with g and g'
    eigenvalues of Γ. An interpolative decomposition of all such powers, a QR factorisation that pivots first over
    rates and then over steps, finds the few rates and nodes from which the others are combined within the
    tolerance, relative to powers that fall as slowly as any second moment does. If noise makes the second moments
    of single clients grow along a round, `growth` is the largest factor of a step.
    """
    low, high = 1.0 - gamma * largest, 1.0 - gamma * smallest
    candidates = _candidates(low, high, H)
    if growth > 1.0 + 1e-3 / H:
        candidates = np.append(candidates, 1.0 + np.geomspace(1e-3 / H, growth - 1.0, 20))
    where = np.arange(H)
    if H > 300:  # as many steps as 150 close to the first and 150 over the whole round show all powers
        both = np.concatenate([np.geomspace(1, H, 150) - 1.0, np.linspace(0, H - 1, 150)])
        where = np.unique(np.round(both)).astype(np.int64)
    fall = np.log(np.clip(max(abs(low), abs(high)), 1e-3, 1.0))
    weight = np.exp(np.minimum(-2.0 * fall * where, np.log(1e3)))  # noise may fall by 1e3 and stay precise
    powers = weight[:, None] * candidates[None, :] ** where[:, None]
    chosen, basis = _pivots(powers / np.abs(powers).max(axis=0), tolerance)
    rates, nodes = candidates[chosen], np.sort(where[_pivots(basis.T, 0.0)[0]])
    fit = np.asarray(np.linalg.inv(rates[None, :] ** nodes[:, None]), dtype=np.float64)
    return Steps(H, [int(h) for h in nodes], rates, fit)


def _pivots(matrix: Array, tolerance: float) -> tuple[list[int], Array]:
    """Return which columns span the others within a relative tolerance, and their orthonormal basis."""
    left, chosen, basis = matrix, list[int](), list[Array]()
    least = tolerance * np.linalg.norm(matrix, axis=0).max()
    while len(chosen) < min(20, len(matrix)):  # with more than 20, rounding errors of `fit` grow
        sizes = np.linalg.norm(left, axis=0)
        k = int(sizes.argmax())
        if sizes[k] <= least:
            break
        chosen.append(k)
        basis.append(left[:, k] / sizes[k])
        for _ in range(2):  # the second time for what rounding left
            left = left - np.outer(basis[-1], basis[-1] @ left)
    return chosen, np.stack(basis, axis=1)


def _candidates(low: float, high: float, H: int) -> Array:
    """Return 1, and rates b over the range of g and g g' for g and g' in [low, high], spaced by log(1 − |b|)."""
    bottom, top = (min(low, low * high), max(high, low * low)) if low < 0.0 else (low * low, high)

    def between(first: float, last: float) -> Array:
        gaps = np.clip([1.0 - last, 1.0 - first], 1e-3 / H, 1.0 - 1e-6)  # slower ones are as good as constant
        return 1.0 - np.geomspace(gaps[0], gaps[1], 60)

    parts = [np.ones(1)]
    if top > 0.0:
        parts.append(between(max(bottom, 0.0), top))
    if bottom < 0.0:
        parts.append(-between(max(-top, 0.0), -bottom))
    return np.concatenate(parts)


@dataclass(frozen=True, eq=False)
class Powers:
    """∇²f_c = U diag(λ) Uᵀ of some clients, and powers of g = 1 − γλ."""

    U: Array  # (k, d, d)
    lam: Array  # (k, d)
    g: Array  # (k, d)
    gH: Array  # (k, d): g^H
    delta: Array  # (k, d): (1/H) Σ_{h<H} g^h, so that C̃ = 1 − δ

    @classmethod
    def of(cls, U: Array, lam: Array, gamma: float, H: int) -> "Powers":
        """Return the powers for ∇²f_c = U diag(λ) Uᵀ; infinite if they overflow."""
        g = 1.0 - gamma * lam
        with np.errstate(over="ignore", invalid="ignore"):
            gH = g**H
            return cls(U, lam, g, gH, divided(g, gH, 1.0, H) / H)

    def __getitem__(self, clients: IntArray | slice) -> "Powers":
        """Return the powers of some of the clients, by their positions."""
        return Powers(*(array[clients] for array in vars(self).values()))

    def matrices(self, values: Array) -> Array:
        """Return U diag(values) Uᵀ, (k, d, d), of values (k, d)."""
        return (self.U * values[:, None, :]) @ np.swapaxes(self.U, 1, 2)

    def at(self, hs: Sequence[int]) -> Array:
        """Return g^h for h in hs, (k, len(hs), d)."""
        return np.stack([self.g**h for h in hs], axis=1)

    def sums(self, hs: Sequence[int]) -> Array:
        """Return Σ_{k<h} g^k for h in hs, (k, len(hs), d)."""
        return np.stack([divided(self.g, self.g**h, 1.0, h) if h else np.zeros_like(self.g) for h in hs], axis=1)


def mean_path(
    own: Powers, weights: Array, slopes: Array, theta: Array, gamma: float, H: int, *, scaffold: bool
) -> Iterator[tuple[Array, Array]]:
    """Yield θ − θ* of rounds without noise and ξ_c − ξ*_c, the latter in the eigenbases, (k, d), for t = 0, 1, ...

    Local models end at Γ^H (θ − θ*) − γHδ (ξ_c − ξ*_c); FedAvg leaves ξ_c = 0. `theta` is θ_0 − θ*, and `slopes`
    are ∇f_c(θ*).
    """
    d = theta.size
    into = own.U.transpose(0, 2, 1).reshape(-1, d)
    back = (weights[:, None, None] * own.U).transpose(1, 0, 2).reshape(d, -1)
    power, pull = own.gH.ravel(), gamma * H * own.delta.ravel()
    ahead = np.einsum("cij,ci->cj", own.U, slopes).ravel()
    while True:
        yield theta, ahead.reshape(-1, d)
        local = power * (into @ theta) - pull * ahead
        theta = back @ local
        if scaffold:
            ahead = ahead + (local - into @ theta) / (gamma * H)


def divided(base: Array, power: Array, rate: float, h: int | IntArray) -> Array:
    """Return Σ_{k<h} base^{h−1−k} rate^k = (base^h − rate^h)/(base − rate), given power = base^h."""
    gap = base - rate
    near = np.abs(gap) * h < 1e-3 * abs(rate)  # the quotient would lose digits; the series' next term is 1e-13
    some = near.nonzero()
    if not some[0].size:
        return (power - rate**h) / gap
    found = (power - rate**h) / np.where(gap == 0.0, 1.0, gap)
    x, k = np.broadcast_to(gap, near.shape)[some] / rate, np.broadcast_to(np.asarray(h), near.shape)[some]
    series = 1.0 + 0.5 * (k - 1) * x * (1.0 + (k - 2) / 3.0 * x * (1.0 + (k - 3) / 4.0 * x))
    found[some] = k * rate ** (k - 1.0) * series
    return found


def accumulate(s: Steps, own: Powers, values: Array, hs: Sequence[int]) -> Array:
    """Return Σ_{k<h} Γ^{h−1−k} C(k) Γ^{h−1−k} for h in hs, (k, len(hs), d, d), from C at the nodes."""
    powers, base = own.at(hs), own.g[:, :, None] * own.g[:, None, :]
    powers = powers[..., :, None] * powers[..., None, :]
    fitted = _along(s.fit, values)
    gaps = base[:, None] - s.rates[:, None, None]
    close = np.abs(gaps) < 0.1 / s.H  # differences would lose digits
    share = fitted / np.where(close, np.inf, gaps)
    at_rates = s.rates[None, :] ** np.asarray(hs)[:, None]
    total = share.sum(axis=1)[:, None] * powers - _along(at_rates, share)
    for p in np.flatnonzero(close.any(axis=(0, 2, 3))):
        where = np.nonzero(close[:, p])
        by_step = np.moveaxis(total, 1, -1), np.moveaxis(powers, 1, -1)  # views with steps last
        quotients = divided(base[where][:, None], by_step[1][where], float(s.rates[p]), np.asarray(hs))
        by_step[0][where] += fitted[:, p][where][:, None] * quotients
    return total


def _along(matrix: Array, values: Array) -> Array:
    """Return Σ_q matrix[p, q] values[k, q, ...]."""
    shape = values.shape
    return (matrix @ values.reshape(shape[0], shape[1], -1)).reshape(shape[0], -1, *shape[2:])
