"""H local steps in closed form, in the eigenbasis of each client's curvature.

With Γ_c = I − γG_c diagonal, what varies along the local steps is written as a sum of m powers b_p^h, so that
every sum over steps is a divided difference of powers and costs the same for any H.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedscaffold.core.errors import NoPlateau
from fedscaffold.core.types import Array, IntArray

MOST_NODES = 20
CANDIDATES = 60  # rates to choose from, of either sign
STEPS_LOOKED_AT = 300
FADED = 1e3  # noise may fall by this factor along a round and still be as precise, relative to itself, at its end
SLOWEST = 1e-3  # slower rates than this, in units of 1/H, are as good as constant
NEAR = 1e-3
CLOSE = 0.1  # of a base to a rate, in units of 1/H: quotients of differences would lose digits


@dataclass(frozen=True, eq=False)
class Steps:
    """Nodes h_q among the local steps 0..H−1 and rates b_p: v(h) ≈ Σ_p b_p^h Σ_q fit[p, q] v(h_q)."""

    gamma: float
    H: int
    nodes: IntArray  # (m,)
    rates: Array  # (m,)
    fit: Array  # (m, m)

    @property
    def along(self) -> list[int]:
        """The nodes h_q as a list of Python integers."""
        return [int(h) for h in self.nodes]

    def average_weights(self) -> Array:
        """Weights of the nodes in the mean over steps 0 to H − 1, (m,), none negative."""
        weights = divided(self.rates, self.rates**self.H, 1.0, self.H) / self.H @ self.fit
        if (weights >= 0).all():
            return weights
        gaps = np.diff(self.nodes, prepend=self.nodes[0], append=self.nodes[-1])
        return 0.5 * (gaps[:-1] + gaps[1:]) / (self.nodes[-1] - self.nodes[0])


def steps(gamma: float, H: int, smallest: float, largest: float, tolerance: float, *, least: int = 1) -> Steps:
    """Nodes and rates for curvatures from `smallest` to `largest`, as many as the tolerance asks for.

    `least` asks for more: where H steps change little, what grows from zero along them would else be seen at one.

    Means of local models vary as combinations of 1 and g^h, their second moments also of (g g')^h, with g and g'
    eigenvalues of Γ. An interpolative decomposition of all such powers, a QR factorisation that pivots first over
    rates and then over steps, finds the few rates and nodes from which the others are combined within the
    tolerance, relative to powers that fall as slowly as any second moment does.
    """
    from scipy.linalg import qr  # here, as it is slow to import

    low, high = 1.0 - gamma * largest, 1.0 - gamma * smallest
    candidates = _candidates(low, high, H)
    where = np.arange(H)
    if H > STEPS_LOOKED_AT:
        half = STEPS_LOOKED_AT // 2
        both = np.concatenate([np.geomspace(1, H, half) - 1.0, np.linspace(0, H - 1, half)])
        where = np.unique(np.round(both)).astype(np.int64)
    fall = np.log(np.clip(max(abs(low), abs(high)), 1e-3, 1.0))
    weight = np.exp(np.minimum(-2.0 * fall * where, np.log(FADED)))
    powers = weight[:, None] * candidates[None, :] ** where[:, None]
    basis, triangle, order = qr(powers / np.abs(powers).max(axis=0), mode="economic", pivoting=True)
    left = np.abs(np.diag(triangle))
    m = min(MOST_NODES, left.size, max(least, int((left > tolerance * left[0]).sum())))
    _, _, rows = qr(basis[:, :m].T, mode="economic", pivoting=True)
    rates, nodes = candidates[order[:m]], np.sort(where[rows[:m]])
    return Steps(gamma, H, nodes, rates, np.linalg.inv(rates[None, :] ** nodes[:, None]))


def _candidates(low: float, high: float, H: int) -> Array:
    """1, and rates b over the range of g and g g' for g and g' in [low, high], spaced by log(1 − |b|)."""
    bottom, top = (min(low, low * high), max(high, low * low)) if low < 0.0 else (low * low, high)

    def between(first: float, last: float) -> Array:
        gaps = np.clip([1.0 - last, 1.0 - first], SLOWEST / H, 1.0 - 1e-6)
        return 1.0 - np.geomspace(gaps[0], gaps[1], CANDIDATES)

    parts = [np.ones(1)]
    if top > 0.0:
        parts.append(between(max(bottom, 0.0), top))
    if bottom < 0.0:
        parts.append(-between(max(-top, 0.0), -bottom))
    return np.concatenate(parts)


@dataclass(frozen=True, eq=False)
class Curvature:
    """G_c = U diag(λ) Uᵀ of some clients, and powers of Γ_c = I − γG_c."""

    U: Array  # (k, d, d)
    lam: Array  # (k, d)
    g: Array  # (k, d): 1 − γλ
    gH: Array  # (k, d): (1 − γλ)^H
    delta: Array  # (k, d): (1/H) Σ_{h<H} g^h, so that C̃ = 1 − δ

    @classmethod
    def of(cls, U: Array, lam: Array, gamma: float, H: int) -> "Curvature":
        """Powers for G_c = U diag(λ) Uᵀ."""
        g = 1.0 - gamma * lam
        with np.errstate(over="ignore", invalid="ignore"):
            gH = g**H
        if not np.isfinite(gH).all():
            raise no_contraction(np.inf)
        return cls(U, lam, g, gH, divided(g, gH, 1.0, H) / H)

    def __getitem__(self, clients: IntArray | slice) -> "Curvature":
        """The curvatures of some of the clients, by their positions."""
        return Curvature(*(array[clients] for array in vars(self).values()))

    def with_eigenvalues(self, values: Array) -> Array:
        """U diag(values) Uᵀ, (k, d, d), of values (k, d)."""
        return (self.U * values[:, None, :]) @ np.swapaxes(self.U, 1, 2)

    def rotate_back(self, matrices: Array) -> Array:
        """U M Uᵀ, out of the eigenbasis, for M (k, m, d, d)."""
        return self.U[:, None] @ matrices @ np.swapaxes(self.U, -1, -2)[:, None]

    def powers(self, hs: Sequence[int]) -> Array:
        """Γ^h in the eigenbasis for h in hs, (k, len(hs), d)."""
        return np.stack([self.g**h for h in hs], axis=1)

    def sums(self, hs: Sequence[int]) -> Array:
        """Σ_{k<h} Γ^k in the eigenbasis for h in hs, (k, len(hs), d)."""
        return np.stack([divided(self.g, self.g**h, 1.0, h) if h else np.zeros_like(self.g) for h in hs], axis=1)


def curvature(matrices: Array, gamma: float, H: int) -> Curvature:
    """Eigenvectors and powers for symmetric G_c, (k, d, d)."""
    lam, U = np.linalg.eigh(matrices)
    return Curvature.of(U, lam, gamma, H)


def no_contraction(radius: float) -> NoPlateau:
    """The refusal of a method that diverges even without noise."""
    grows = "" if np.isinf(radius) else f" (it multiplies errors by {radius:.4g} in a round)"
    return NoPlateau(
        f"without noise the method does not contract near its fixed point{grows}, so there is no plateau to "
        "predict; take a smaller step_size or fewer local_steps"
    )


def divided(base: Array, power: Array, rate: float, h: int | IntArray) -> Array:
    """Σ_{k<h} base^{h−1−k} rate^k = (base^h − rate^h)/(base − rate), given power = base^h."""
    gap = base - rate
    near = np.abs(gap) * h < NEAR * abs(rate)
    some = near.nonzero()
    if not some[0].size:
        return (power - rate**h) / gap
    found = (power - rate**h) / np.where(gap == 0.0, 1.0, gap)
    x, k = np.broadcast_to(gap, near.shape)[some] / rate, np.broadcast_to(np.asarray(h), near.shape)[some]
    series = 1.0 + 0.5 * (k - 1) * x * (1.0 + (k - 2) / 3.0 * x * (1.0 + (k - 3) / 4.0 * x))
    found[some] = k * rate ** (k - 1.0) * series
    return found


def rotate(U: Array, matrices: Array) -> Array:
    """Uᵀ M U: into the eigenbasis; M is (k, d, d), or (d, d)."""
    return np.swapaxes(U, -1, -2) @ matrices @ U


def accumulate(s: Steps, cur: Curvature, values: Array, hs: Sequence[int]) -> Array:
    """Σ_{k<h} Γ^{h−1−k} v(k) in the eigenbasis for h in hs, or of C(k) with Γ^{h−1−k} on both sides.

    From vectors v at the nodes, (k, m, d), or matrices C, (k, m, d, d), or, where they are the same at all steps,
    (k, 1, ...); shape (k, len(hs), ...).
    """
    powers, base = cur.powers(hs), cur.g
    if values.ndim == 4:
        powers, base = powers[..., :, None] * powers[..., None, :], base[:, :, None] * base[:, None, :]
    if values.shape[1] == 1:
        length = np.reshape(hs, (1, -1, *(1,) * (base.ndim - 1)))
        return divided(base[:, None], powers, 1.0, length) * values
    return _sums(s, base, powers, along(s.fit, values), hs)


def _sums(s: Steps, base: Array, powers: Array, fitted: Array, hs: Sequence[int]) -> Array:
    """Σ_p fitted_p (base^h − b_p^h)/(base − b_p) for h in hs; where a base is close to a rate, by `divided`."""
    gaps = base[:, None] - s.rates.reshape(-1, *(1,) * (base.ndim - 1))
    close = np.abs(gaps) < CLOSE / s.H
    any_close = bool(close.any())
    share = np.divide(fitted, np.where(close, np.inf, gaps) if any_close else gaps, out=gaps)
    at_rates = s.rates[None, :] ** np.asarray(hs)[:, None]
    total = share.sum(axis=1)[:, None] * powers
    total -= along(at_rates, share)
    if not any_close:
        return total
    for p in np.flatnonzero(close.any(axis=tuple(i for i in range(close.ndim) if i != 1))):
        where = np.nonzero(close[:, p])
        by_step = np.moveaxis(total, 1, -1), np.moveaxis(powers, 1, -1)  # views with steps last
        quotients = divided(base[where][:, None], by_step[1][where], float(s.rates[p]), np.asarray(hs))
        by_step[0][where] += fitted[:, p][where][:, None] * quotients
    return total


def along(matrix: Array, values: Array) -> Array:
    """Σ_q matrix[p, q] values[k, q, ...]."""
    shape = values.shape
    return (matrix @ values.reshape(shape[0], shape[1], -1)).reshape(shape[0], -1, *shape[2:])
