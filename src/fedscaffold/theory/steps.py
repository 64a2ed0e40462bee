"""H local steps in closed form, in the eigenbasis of each client's curvature.

With Γ_c = I − γG_c diagonal, what varies along the local steps is written as a sum of m powers b_p^h, so that
every sum over steps is a divided difference of powers and costs the same for any H.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.types import Array

FEW, MANY = 5, 7  # nodes
LONG = 20.0  # rounds longer than this, in units of the fastest time, take many
VERY_LONG = 2000.0  # in the same units: evenly spaced nodes would miss the fast part altogether
FAR = 1e-4


@dataclass(frozen=True)
class Steps:
    """Nodes h_q among the local steps 0..H−1 and rates b_p: v(h) ≈ Σ_p b_p^h Σ_q fit[p, q] v(h_q)."""

    gamma: float
    H: int
    nodes: NDArray[np.int64]  # (m,)
    rates: Array  # (m,)
    fit: Array  # (m, m)


def steps(gamma: float, H: int, largest: float, *, still: bool = False) -> Steps:
    """Nodes and rates for curvatures up to `largest`: rates from 1 to about (1 − γ largest)².

    Nodes are crowded near the start of a round, where models move fastest, and rates are spaced geometrically, by
    halves or more widely where the fastest part settles early in the round. `still` says that local models do not
    drift, so that their noise hardly changes along a round and fewer nodes do. On ridge, against exact sums:
    Scaffold's plateau is right to 1e-6, FedAvg's variance to 1e-3, or to 1e-1 where the noise changes a
    thousandfold along a round, as on data that some θ fits exactly.
    """
    fastest = max(2.0, min(2.0 * gamma * largest * H, 0.9 * H))
    nodes = FEW if still and fastest <= LONG else MANY
    apart = min(0.5, fastest ** (-1.0 / (nodes - 2)))
    spread = np.linspace(0.0, 1.0, nodes) ** 2
    if fastest > VERY_LONG:  # so that no two of the powers are zero at the same nodes
        spread = np.concatenate([[0.0], apart ** np.arange(nodes - 1)[::-1]])
    where = np.unique(np.round(spread * (H - 1)).astype(np.int64))
    if where.size == 1:
        return Steps(gamma, H, where, np.ones(1), np.ones((1, 1)))
    shape = np.concatenate([[0.0], apart ** np.arange(where.size - 1)[::-1]])
    rates = np.exp(-fastest * shape / H)
    fit = np.linalg.inv(rates[None, :] ** where[:, None])
    return Steps(gamma, H, where, rates, fit)


@dataclass(frozen=True)
class Curvature:
    """G_c = U diag(λ) Uᵀ of some clients, and powers of Γ_c = I − γG_c."""

    U: Array  # (k, d, d)
    lam: Array  # (k, d)
    g: Array  # (k, d): 1 − γλ
    gH: Array  # (k, d): (1 − γλ)^H
    delta: Array  # (k, d): (1/H) Σ_{h<H} g^h, so that C̃ = 1 − δ

    def __getitem__(self, clients: NDArray[np.int64]) -> "Curvature":
        """Of some of them."""
        return Curvature(
            self.U[clients], self.lam[clients], self.g[clients], self.gH[clients], self.delta[clients]
        )


def curvature(matrices: Array, gamma: float, H: int) -> Curvature:
    """Eigenvectors and powers for symmetric G_c, (k, d, d)."""
    lam, U = np.linalg.eigh(matrices)
    return from_eigenvectors(U, lam, gamma, H)


def from_eigenvectors(U: Array, lam: Array, gamma: float, H: int) -> Curvature:
    """Powers for G_c = U diag(λ) Uᵀ."""
    g = 1.0 - gamma * lam
    with np.errstate(over="ignore", invalid="ignore"):
        gH = g**H
    if not np.isfinite(gH).all():
        raise no_contraction(np.inf)
    return Curvature(U, lam, g, gH, divided(g, gH, 1.0, H) / H)


def no_contraction(radius: float) -> InvalidInput:
    """The refusal of a method that diverges even without noise."""
    grows = "" if np.isinf(radius) else f" (it multiplies errors by {radius:.4g} in a round)"
    return InvalidInput(
        f"without noise the method does not contract near its fixed point{grows}, so there is no plateau to "
        "predict; take a smaller step_size or fewer local_steps"
    )


def divided(base: Array, power: Array, rate: float, h: int) -> Array:
    """Σ_{k<h} base^{h−1−k} rate^k = (base^h − rate^h)/(base − rate), given power = base^h."""
    x = base / rate - 1.0
    near = np.abs(x) * h < FAR
    if not near.any():
        return (power - rate**h) / (base - rate)
    series = 1.0 + 0.5 * (h - 1) * x + (h - 1) * (h - 2) / 6.0 * x * x
    safe = np.where(near, 1.0, base - rate)
    return np.where(near, h * rate ** (h - 1) * series, (power - rate**h) / safe)


def rotate(U: Array, matrices: Array) -> Array:
    """Uᵀ M U: into the eigenbasis; M is (k, d, d), or (d, d)."""
    return np.swapaxes(U, -1, -2) @ matrices @ U


def rotate_back(U: Array, matrices: Array) -> Array:
    """U M Uᵀ, for M (k, m, d, d) and U (k, d, d)."""
    return U[:, None] @ matrices @ np.swapaxes(U, -1, -2)[:, None]


def accumulate(s: Steps, cur: Curvature, fitted: Array, h: int) -> Array:
    """Σ_{k<h} Γ^{h−1−k} C(k) Γ^{h−1−k} in the eigenbasis, from fitted = Σ_q fit[p, q] Ĉ(h_q), (k, m, d, d)."""
    total = np.zeros(fitted[:, 0].shape)
    if h == 0:
        return total
    base = cur.g[:, :, None] * cur.g[:, None, :]
    gh = cur.g**h
    power = gh[:, :, None] * gh[:, None, :]
    for p, rate in enumerate(s.rates):
        total += fitted[:, p] * divided(base, power, float(rate), h)
    return total


def accumulate_vectors(s: Steps, cur: Curvature, fitted: Array, h: int) -> Array:
    """Σ_{k<h} Γ^{h−1−k} v(k) in the eigenbasis, from fitted = Σ_q fit[p, q] v̂(h_q), (k, m, d)."""
    total = np.zeros(cur.g.shape)
    if h == 0:
        return total
    power = cur.g**h
    for p, rate in enumerate(s.rates):
        total += fitted[:, p] * divided(cur.g, power, float(rate), h)
    return total


def fitted(s: Steps, values: Array) -> Array:
    """Coefficients of the rates, Σ_q fit[p, q] v(h_q), along axis 1."""
    return np.einsum("pq,kq...->kp...", s.fit, values)
