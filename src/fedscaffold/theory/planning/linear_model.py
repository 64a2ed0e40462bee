"""A fast model of Scaffold for searches: every f_c replaced by its quadratic model at θ*, noise as it is at θ*.

Its mean and covariance follow from the clients' Hessians, gradients and noise at θ* alone, so that a step size
and a number of local steps cost a few small matrix products. Of very many clients it takes those that stand
out, by weight, curvature or gradient, and evenly spaced ones for all others, whose weights and noise they
carry.
"""

import math
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice

import numpy as np

from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.types import Array, IntArray
from fedscaffold.theory.prediction.local_steps import Curvature, divided, no_contraction, rotate
from fedscaffold.theory.prediction.many_clients.bases import Bases
from fedscaffold.theory.prediction.reduced_system import noise_input, reduced_system
from fedscaffold.theory.prediction.setting import Setting, at_point

COARSE = 1e-2  # of the interpolation
FEW_CLIENTS = 5  # up to so many, the whole system is smaller than the reduced one
STAND_OUT, EVENLY = 8, 24  # clients taken for each reason, and evenly spaced ones
DOUBLINGS = 40
GROWN = 1e12
GAUSS = ((0.5 - 0.15**0.5, 5 / 18), (0.5, 8 / 18), (0.5 + 0.15**0.5, 5 / 18))  # points and weights on [0, 1]
NEARBY = 0.2  # of ‖θ*‖²: below it, curvatures are those at θ*
SMALLEST = 1e-12  # pace of a round


@dataclass(frozen=True)
class Correction:
    """What a better predictor makes of the linear model near a step size: factors of its mean and of its noise."""

    mean: float = 1.0  # of ‖m_t‖²
    noise: float = 1.0  # of tr Cov θ_t
    at: float = 1.0  # γ at which they were found

    def factors(self, gamma: float) -> tuple[float, float]:
        """Both factors at another γ: noise that feeds on itself grows like 1/(1 − γ/γ_max)."""
        if self.noise <= 1.0:
            return self.mean, self.noise
        fed = gamma / self.at * (1.0 - 1.0 / self.noise)
        return self.mean, 1.0 / (1.0 - fed) if fed < 1.0 else math.inf


@dataclass(frozen=True, eq=False)
class LinearModel:
    """Clients at θ*: weights, curvatures, gradients and noise."""

    w: Array  # (n,)
    own: Array  # the weight of a client's noise in the mean; less where a client stands for many, (n,)
    lam: Array  # (n, d)
    U: Array  # (n, d, d)
    bases: Bases
    far: "Far | None"  # None for quadratic f_c
    slopes: Array  # ∇f_c(θ*), (n, d)
    noise: Array  # C_c(θ*) in the eigenbasis, (n, d, d)
    optimum: Array
    known: "dict[tuple[float, int], Trajectory | None]" = field(default_factory=dict)

    @classmethod
    def of(cls, base: Setting) -> "LinearModel":
        """The model of the problem of a setting, whatever its method, or of clients that stand for all of it."""
        problem, optimum, here = base.problem, base.optimum, base.at_optimum
        at, w, own = representatives(base.weights, here.lam, here.gradients, here.noise)
        lam, U = here.lam[at], here.U[at]
        centred = here.gradients[at] - w @ here.gradients[at]  # of a sample: as if θ* were its optimum
        far = None
        if not base.quadratic:
            points = (at_point(problem, base.averages, at, x * optimum, base.factors[at]) for x, _ in GAUSS)
            mean = sum(share * point.hessian for (_, share), point in zip(GAUSS, points, strict=True))
            far_lam, far_U = np.linalg.eigh(mean)
            far = Far(far_lam, far_U, Bases.of(w, far_U))
        return cls(w, own, lam, U, Bases.of(w, U), far, centred, rotate(U, here.noise[at]), optimum)

    @property
    def largest(self) -> float:
        """The largest curvature of any client."""
        return float(self.lam.max())

    def trajectory(self, gamma: float, H: int) -> "Trajectory | None":
        """Mean and noise by round; None where a round does not contract, at θ* or on the way there."""
        key = (gamma, H)
        if key not in self.known:
            self.known[key] = None
            with suppress(InvalidInput):
                self.known[key] = self._trajectory(gamma, H)
        return self.known[key]

    @np.errstate(over="ignore", invalid="ignore")
    def _trajectory(self, gamma: float, H: int) -> "Trajectory":
        cur = Curvature.of(self.U, self.lam, gamma, H)
        base, powers = cur.g[:, :, None] * cur.g[:, None, :], cur.gH[:, :, None] * cur.gH[:, None, :]
        Q = gamma**2 * divided(base, powers, 1.0, H) * self.noise
        if self.w.size <= FEW_CLIENTS:
            variances, radius = variances_by_round(*self.whole_system(cur, Q))
        else:
            system = reduced_system(self.w, cur, COARSE)
            noise = noise_input(system, self.w * self.own, cur, Q)
            variances, radius = variances_by_round(system.A, noise, np.ones(system.c.size))
        return Trajectory(variances, radius, self.path(cur, gamma, H))

    @np.errstate(over="ignore", invalid="ignore")  # a mean that grows beyond all numbers is out of the question
    def outcome(
        self, gamma: float, H: int, aim: float, most_rounds: int, correction: "Correction | None" = None
    ) -> tuple[float, float]:
        """Rounds until the error is below the aim, with a fraction, inf if it never is; and the plateau.

        Where the rounds are more than `most_rounds`, they are extrapolated at the pace of the slowest direction.
        """
        found = self.trajectory(gamma, H)
        of_mean, of_noise = (1.0, 1.0) if correction is None else correction.factors(gamma)
        if found is None or math.isinf(of_noise):
            return math.inf, math.inf
        plateau, first = of_noise * float(found.variances[-1]), float(self.optimum @ self.optimum)
        begin, last = 1, first
        while begin <= most_rounds:
            t = np.arange(begin, min(max(8, 2 * begin), most_rounds + 1))
            squares, spread = found.squares(int(t[-1]))[t - 1], of_noise * found.variance_at(t)
            errors = of_mean * squares + spread
            reached, lost = errors <= aim, ~(squares < GROWN * first) | (spread >= aim)  # spread only grows
            end = int(np.argmax(reached | lost))
            if reached[end]:
                before, there = float(errors[end - 1]) if end else last, float(errors[end])
                drop = math.log(max(before, there) / max(there, 1e-300))
                part = math.log(max(before, aim) / aim) / drop if drop else 1.0
                return float(t[end]) - 1.0 + min(1.0, part), plateau
            if lost[end]:
                return math.inf, plateau if squares[end] < GROWN * first else math.inf
            begin, last = int(t[-1]) + 1, float(errors[-1])
        if plateau >= aim or found.radius >= 1.0:
            return math.inf, plateau
        fall = -2.0 * math.log(found.radius)  # of mean and of what the noise lacks to its plateau, per round
        return most_rounds + math.log((last - plateau) / (aim - plateau)) / fall, plateau

    def parts(self, gamma: float, H: int, t: int) -> tuple[float, float] | None:
        """‖m_t‖² and tr Cov θ_t after t rounds; None where the method does not contract."""
        found = self.trajectory(gamma, H)
        if found is None:
            return None
        return float(found.squares(t)[t - 1]), float(found.variance_at(np.array([t]))[0])

    def whole_system(self, cur: Curvature, Q: Array) -> tuple[Array, Array, Array]:
        """A and the noise of a round of x = (η_1, ..., η_N), and the weights with which x adds up to θ.

        See `reduced_system`, which takes the place of this one where there are more clients than its points.
        """
        (n, d), everyone = cur.lam.shape, np.arange(self.w.size)
        own = cur.with_eigenvalues(1.0 - cur.delta)
        by_theta = cur.with_eigenvalues(cur.gH - 1.0 + cur.delta)
        A = by_theta[:, :, None, :] * self.w[None, None, :, None]
        A[everyone, :, everyone] += own
        noise = np.zeros((n, d, n, d))
        noise[everyone, :, everyone] = cur.U @ Q @ np.swapaxes(cur.U, 1, 2)
        return A.reshape(n * d, n * d), noise.reshape(n * d, n * d), self.w

    def path(self, cur: Curvature, gamma: float, H: int) -> Iterator[float]:
        """‖m_t‖² for t = 1, 2, ... of the mean from θ = 0, ξ = 0; refuses too large curvatures on the way."""
        curved = None if self.far is None else Curvature.of(self.far.U, self.far.lam, gamma, H)
        return self._path(cur, curved, gamma * H)

    def _path(self, cur: Curvature, curved: Curvature | None, length: float) -> Iterator[float]:
        start, slopes, near = -self.optimum, self.slopes, NEARBY * float(self.optimum @ self.optimum)
        if self.far is not None and curved is not None:
            for m, ahead in rounds_of_mean(self.far.bases, curved, length, start, slopes):
                square = float(m @ m)
                yield square
                if not square > near:
                    start, slopes = m, np.einsum("kij,kj->ki", curved.U, ahead)
                    break
        for m, _ in rounds_of_mean(self.bases, cur, length, start, slopes):
            yield float(m @ m)


def variances_by_round(A: Array, noise: Array, weights: Array) -> tuple[Array, float]:
    """Tr Cov θ_t for t = 1, 2, 4, 8, ..., until it no longer grows, and the pace of the slowest direction.

    θ is the weighted sum of the vectors that a state x, with x⁺ = A x + noise, has one below another.
    """
    n = weights.size
    P, power, d, both = noise, A, A.shape[0] // n, weights[:, None] * weights
    found: list[float] = []
    radius = 0.0
    for k in range(DOUBLINGS):
        found.append(float((both * np.trace(P.reshape(n, d, n, d), axis1=1, axis2=3)).sum()))
        size = math.sqrt(float(np.vdot(power, power)))
        if not size < GROWN:
            raise no_contraction(size ** (0.5**k))
        radius = max(size ** (0.5**k), SMALLEST) if k == 0 or size >= 1e-3 else radius
        if size < 1e-3:
            return np.array(found), radius
        P = P + power @ P @ power.T
        power = power @ power
    raise no_contraction(1.0)


class Trajectory:
    """Mean and noise of one step size and number of local steps, the mean as far as it was asked for.

    Parameters
    ----------
    variances
        Tr Cov θ_t for t = 1, 2, 4, ..., the last of which is the plateau.
    radius
        The pace of the slowest direction.
    path
        ‖m_t‖² for t = 1, 2, ...
    """

    def __init__(self, variances: Array, radius: float, path: Iterator[float]) -> None:
        self.variances, self.radius = variances, radius
        self._path, self._squares = path, np.empty(0)
        plateau = float(variances[-1])
        lacking = np.maximum(1.0 - variances / plateau, 1e-15) if plateau > 0.0 else np.full(variances.size, 1e-15)
        if variances.size > 1:
            lacking[-1] = lacking[-2] ** 2  # after twice as many rounds
        self._logs = np.log(lacking)

    @np.errstate(over="ignore", invalid="ignore")
    def squares(self, rounds: int) -> Array:
        """‖m_t‖² for t = 1, 2, ..., at least `rounds` of them."""
        missing = rounds - self._squares.size
        if missing > 0:
            self._squares = np.append(self._squares, list(islice(self._path, missing)))
        return self._squares

    def variance_at(self, t: IntArray) -> Array:
        """Tr Cov θ_t; what is lacking to the plateau falls like a power, so its logarithm is interpolated."""
        powers = 2.0 ** np.arange(self.variances.size)
        share = np.where(t >= powers[-1], 1.0, -np.expm1(np.interp(t, powers, self._logs)))
        return np.asarray(float(self.variances[-1]) * share)


@dataclass(frozen=True, eq=False)
class Far:
    """Curvatures on the way from 0 to θ*, averaged: with them the first gradients are right."""

    lam: Array
    U: Array
    bases: Bases


def rounds_of_mean(
    bases: Bases, cur: Curvature, length: float, m: Array, ahead: Array
) -> Iterator[tuple[Array, Array]]:
    """Rounds of θ − θ* and of ξ_c − ξ*_c, (n, d) in the eigenbases, without noise, for γH = length.

    From m and ahead, both in the original basis; see `first_order.noiseless_path`.
    """
    power, share = cur.gH.ravel(), length * cur.delta.ravel()
    inside = np.einsum("kij,ki->kj", cur.U, ahead).ravel()
    while True:
        local = power * (bases.into @ m) - share * inside
        m = bases.mean @ local
        inside = inside + (local - bases.into @ m) / length
        yield m, inside.reshape(cur.g.shape)


def representatives(w: Array, lam: Array, slopes: Array, noise: Array) -> tuple[IntArray, Array, Array]:
    """Clients that stand for all, their weights, and the weights of their noise; all where they are few.

    Those that stand out by weight, curvature, gradient or noise stand for themselves. Of the others, some that cut
    their weights into equal parts stand for all, with as much noise in the mean as all of them have.
    """
    N = w.size
    everyone = np.arange(N)
    if N <= 4 * STAND_OUT + 2 * EVENLY:
        return everyone, w, w
    spread = np.trace(noise, axis1=1, axis2=2)
    curvatures = lam.sum(axis=1)
    sizes = (w, curvatures, w * curvatures, w * np.linalg.norm(slopes, axis=1), w**2 * spread)
    loud = np.unique(np.concatenate([np.argsort(size)[-STAND_OUT:] for size in sizes]))
    rest = np.setdiff1d(everyone, loud)
    shares = np.cumsum(w[rest]) / w[rest].sum()
    some = rest[np.searchsorted(shares, (np.arange(EVENLY) + 0.5) / EVENLY)]
    left = float(w[rest].sum())
    own = np.full(EVENLY, float(w[rest] @ w[rest]) / left)
    total, seen = float(w[rest] ** 2 @ spread[rest]), float(own @ spread[some]) * left / EVENLY
    own *= total / seen if seen > 0.0 else 1.0
    weights = np.concatenate([w[loud], np.full(EVENLY, left / EVENLY)])
    chosen = np.concatenate([loud, some])
    order = np.argsort(chosen)
    return chosen[order], weights[order], np.concatenate([w[loud], own])[order]
