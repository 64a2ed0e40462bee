"""A fast model of Scaffold for searches: every f_c replaced by its quadratic model at θ*, noise as it is at θ*.

Its mean and covariance follow from the clients' Hessians, gradients and noise at θ* alone, so that a step size
and a number of local steps cost a few small matrix products. Of very many clients it takes those that stand
out, by weight, curvature or gradient, and evenly spaced ones for all others, whose weights and noise they
carry.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

import numpy as np

from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.types import Array, IntArray
from fedscaffold.theory.prediction.local_steps import Curvature, divided, no_contraction, rotate
from fedscaffold.theory.prediction.reduced_system import ReducedSystem, noise_input, reduced_system
from fedscaffold.theory.prediction.setting import Setting, at_point

COARSE = 1e-2  # of the interpolation
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
    bases: "Bases"
    far: "Far | None"  # None for quadratic f_c
    slopes: Array  # ∇f_c(θ*), (n, d)
    noise: Array  # C_c(θ*) in the eigenbasis, (n, d, d)
    optimum: Array

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

    @np.errstate(over="ignore", invalid="ignore")  # a mean that grows beyond all numbers is out of the question
    def outcome(
        self, gamma: float, H: int, aim: float, most_rounds: int, correction: "Correction | None" = None
    ) -> tuple[float, float]:
        """Rounds until the error is below the aim, with a fraction, inf if it never is; and the plateau.

        Where the rounds are more than `most_rounds`, they are extrapolated at the pace of the slowest direction.
        """
        try:
            cur = Curvature.of(self.U, self.lam, gamma, H)
            system = reduced_system(self.w, cur, COARSE)
            variances, radius = self.variances(system, cur, gamma, H)
            path = self.path(cur, gamma, H)
        except InvalidInput:  # it does not contract, at θ* or on the way there
            return math.inf, math.inf
        of_mean, of_noise = (1.0, 1.0) if correction is None else correction.factors(gamma)
        if math.isinf(of_noise):
            return math.inf, math.inf
        variances = of_noise * variances
        plateau, first = float(variances[-1]), float(self.optimum @ self.optimum)
        found = first
        for t, square in enumerate(path, start=1):
            spread = variance_at(t, variances)
            before, found = found, of_mean * square + spread
            if found <= aim:
                drop = math.log(max(before, found) / max(found, 1e-300))
                part = math.log(max(before, aim) / aim) / drop if drop else 1.0
                return t - 1 + min(1.0, part), plateau
            if not square < GROWN * first:
                return math.inf, math.inf
            if spread >= aim:  # and it only grows
                return math.inf, plateau
            if t >= most_rounds:
                break
        if plateau >= aim or radius >= 1.0:
            return math.inf, plateau
        fall = -2.0 * math.log(radius)  # of mean and of what the noise lacks to its plateau, per round
        return most_rounds + math.log((found - plateau) / (aim - plateau)) / fall, plateau

    @np.errstate(over="ignore", invalid="ignore")
    def parts(self, gamma: float, H: int, t: int) -> tuple[float, float]:
        """‖m_t‖² and tr Cov θ_t after t rounds, as far as the method contracts."""
        cur = Curvature.of(self.U, self.lam, gamma, H)
        variances, _ = self.variances(reduced_system(self.w, cur, COARSE), cur, gamma, H)
        return next(islice(self.path(cur, gamma, H), t - 1, None)), variance_at(t, variances)

    def variances(self, system: ReducedSystem, cur: Curvature, gamma: float, H: int) -> tuple[Array, float]:
        """Tr Cov θ_t for t = 1, 2, 4, 8, ..., until it no longer grows, and the pace of the slowest direction."""
        base, powers = cur.g[:, :, None] * cur.g[:, None, :], cur.gH[:, :, None] * cur.gH[:, None, :]
        Q = divided(base, powers, 1.0, H) * self.noise
        P, power = gamma**2 * noise_input(system, self.w * self.own, cur, Q), system.A
        d, M, found, radius = self.optimum.size, system.c.size, [], 0.0
        for k in range(DOUBLINGS):
            found.append(float(np.einsum("aibi->", P.reshape(M, d, M, d))))
            size = float(np.linalg.norm(power))
            if not size < GROWN:
                raise no_contraction(size ** (0.5**k))
            radius = max(size ** (0.5**k), SMALLEST) if k == 0 or size >= 1e-3 else radius
            if size < 1e-3:
                return np.array(found), radius
            P = P + power @ P @ power.T
            power = power @ power
        raise no_contraction(1.0)

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


@dataclass(frozen=True, eq=False)
class Bases:
    """Clients' eigenbases one below another: into all of them at once, and back with the mean over clients."""

    into: Array  # (n d, d)
    mean: Array  # (d, n d)

    @classmethod
    def of(cls, w: Array, U: Array) -> "Bases":
        """The bases of clients with weights w."""
        n, d, _ = U.shape
        mean = (w[:, None, None] * U).transpose(1, 0, 2).reshape(d, n * d)
        return cls(U.transpose(0, 2, 1).reshape(n * d, d), mean)


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


def variance_at(t: int, variances: Array) -> float:
    """Tr Cov θ_t from its values at t = 1, 2, 4, ..., the last of which is the plateau.

    What is lacking to the plateau falls like a power, so its logarithm is interpolated.
    """
    plateau = float(variances[-1])
    if t >= 2 ** (variances.size - 1) or plateau == 0.0:
        return plateau
    lacking = np.maximum(1.0 - variances / plateau, 1e-15)
    if variances.size > 1:
        lacking[-1] = lacking[-2] ** 2  # after twice as many rounds
    return plateau * (1.0 - math.exp(float(np.interp(t, 2.0 ** np.arange(variances.size), np.log(lacking)))))
