"""Third cumulants of local models: what the skewness of noise, and noise that depends on where it acts, add.

A round of local steps is a map with a curvature and a noise that depend on its beginning y = (θ, ξ_c),

    θ_c^h = mean + B y + ½ F[y, y] + n,     Cov(n | y) = Cov n + X[y],     κ₃(n) = K,

of which a step θ ← θ − γ(ḡ(θ) + ξ + ε) makes, with Γ = I − γG, T = ∇³f_c and the slope S = ∇C of the noise,

    F⁺ = Γ F − γ T[B·, B·],     X⁺ = Γ X Γ + γ² S[B·] − γ (T[B·] Cov n Γ + its transpose),
    K⁺ = Γ Γ Γ K − γ³ κ₃(ε) + 3 sym( γ² S[Γ Cov n ·] − γ T[Γ Cov n ·, Γ Cov n ·] ),

T, S and κ₃(ε) being means over the cloud. Then, with V = Cov y Bᵀ,

    κ₃(θ_c^h) = B B B κ₃(y) + 3 sym( F[V, V] + X[V] ) + K.
"""

from dataclasses import dataclass

import numpy as np

from fedscaffold.core.types import Array
from fedscaffold.theory.prediction.local_steps import divided


@dataclass(frozen=True, eq=False)
class Third:
    """F (N, d, 2 d, 2 d), X (N, 2 d, d, d) and K (N, d, d, d) of the clouds of all clients."""

    F: Array
    X: Array
    K: Array

    @classmethod
    def zero(cls, N: int, d: int) -> "Third":
        """Those of the beginning of a round."""
        return cls(np.zeros((N, d, 2 * d, 2 * d)), np.zeros((N, 2 * d, d, d)), np.zeros((N, d, d, d)))


@dataclass(frozen=True, eq=False)
class Tilts:
    """Mean third derivative T, slope S of the noise (first index: direction) and κ₃(ε), each (N, d, d, d)."""

    curvature: Array
    noise_slope: Array
    noise_skew: Array
    trusted: Array  # T, less where a margin is so skewed that an expansion has no meaning
    along: Array  # ½ T[κ₃(z, z, ·)] for margins z as if they told all of κ₃, which G has already, (N, d, d)


def symmetric(tensor: Array) -> Array:
    """Sum of the three placements of the first of the last three axes, where the other two are alike."""
    return tensor + np.swapaxes(tensor, -3, -2) + np.moveaxis(tensor, -3, -1)


def turned(tensor: Array, *matrices: Array | None) -> Array:
    """The axes of (N, a, b, c) multiplied by (N, a', a), (N, b', b), (N, c', c); None leaves an axis."""
    N = tensor.shape[0]
    first, second, last = matrices
    if last is not None:
        tensor = (tensor.reshape(N, -1, tensor.shape[3]) @ np.swapaxes(last, 1, 2)).reshape(*tensor.shape[:3], -1)
    if second is not None:
        tensor = second[:, None] @ tensor
    if first is not None:
        shape = tensor.shape
        tensor = (first @ tensor.reshape(N, shape[1], -1)).reshape(N, -1, *shape[2:])
    return tensor


def sources(tilts: Tilts, gamma: float, step: Array, B: Array, noise: Array) -> Third:
    """What one step from a cloud with B and Cov n adds to F, X and K; `step` is Γ, (N, d, d)."""
    T, S = tilts.curvature, tilts.noise_slope
    across, reach = np.swapaxes(B, 1, 2), step @ noise  # (2 d, d) and Γ Cov n
    along = turned(T, across, None, None)  # T[B y], (N, 2 d, d, d)
    F = -gamma * turned(T, None, across, across)
    mixed = along @ np.swapaxes(reach, 1, 2)[:, None]
    X = gamma**2 * turned(S, across, None, None) - gamma * (mixed + np.swapaxes(mixed, -1, -2))
    own = gamma**2 * turned(S, reach, None, None) - gamma * turned(T, None, reach, reach)
    return Third(F, X, symmetric(own) - gamma**3 * tilts.noise_skew)


def advance_third(
    third: Third,
    tilts: Tilts,
    gamma: float,
    step: Array,
    B: Array,
    noise: Array,
    U: Array | None,
    g: Array,
    k: int,
) -> Third:
    """The same after k steps with constant sources; for k > 1, Γ = U diag(g) Uᵀ."""
    more = sources(tilts, gamma, step, B, noise)
    if U is None:
        return Third(
            turned(third.F, step, None, None) + more.F,
            turned(third.X, None, step, step) + more.X,
            turned(third.K, step, step, step) + more.K,
        )
    inverse = np.swapaxes(U, 1, 2)
    one, two = g[:, :, None, None], g[:, None, :, None] * g[:, None, None, :]

    def kept(base: Array, old: Array, new: Array) -> Array:
        power = base**k
        return power * old + divided(base, power, 1.0, k) * new

    def along(base: Array, old: Array, new: Array, first: bool, others: bool) -> Array:
        into = (inverse if first else None, *[inverse if others else None] * 2)
        back = (U if first else None, *[U if others else None] * 2)
        return turned(kept(base, turned(old, *into), turned(new, *into)), *back)

    return Third(
        along(one, third.F, more.F, True, False),
        along(two, third.X, more.X, False, True),
        along(one * two, third.K, more.K, True, True),
    )


def cloud_skewness(B: Array, cov: Array, skew: Array | None, third: Third) -> Array:
    """κ₃(θ_c^h), (N, d, d, d), from Cov y (N, 2 d, 2 d) and κ₃(y) (N, 2 d, 2 d, 2 d)."""
    reach = B @ cov
    total = symmetric(turned(third.F, None, reach, reach) + turned(third.X, reach, None, None)) + third.K
    return total if skew is None else total + turned(skew, B, B, B)


@dataclass(frozen=True, eq=False)
class Bend:
    """What the mean gradient has in common with u = θ_c^h and with y beyond G u, where u is skewed.

    Around its mean ∇f_c(θ_c^h) is G u + r with Cov(r, u) = ½ T[κ₃(u, u, ·)] and likewise for y, less what G has.
    """

    own: Array  # Cov(r, u), (N, d, d)
    start: Array  # Cov(r, y) (Cov y)⁻¹, (N, d, 2 d)


def bend_of(tilts: Tilts, B: Array, cov: Array, reach: Array, skewness: Array, over: Array, third: Third) -> Bend:
    """From u's covariance, Cov(u, y) and κ₃(u), and `over`: κ₃(y) with its last axis times (Cov y)⁻¹."""
    N, d = B.shape[:2]
    with_start = turned(third.F, None, reach, None)
    with_start = with_start + np.swapaxes(with_start, 1, 2) + np.moveaxis(third.X, 1, 3)
    with_start = with_start + turned(over, B, B, None)
    T = 0.5 * tilts.trusted.reshape(N, d, d * d)
    own = T @ skewness.reshape(N, d * d, d) - tilts.along @ cov
    return Bend(own, T @ with_start.reshape(N, d * d, 2 * d) - tilts.along @ B)
