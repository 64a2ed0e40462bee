"""A fast model of Scaffold for searches: every f_c replaced by its quadratic model at θ*, noise as it is at θ*.

Its mean and covariance follow from the clients' Hessians, gradients and noise at θ* alone, so that a step size
and a number of local steps cost a few small matrix products. Of very many clients it takes those that stand
out, by weight, curvature or gradient, and evenly spaced ones for all others, whose weights and noise they
carry.
"""

import math
from dataclasses import dataclass

import numpy as np

from fedscaffold.core.capabilities import SmoothProblem
from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.random.batches import Batches
from fedscaffold.core.types import Array, IntArray
from fedscaffold.theory.client_blocks import ClientBlock, for_blocks, noise_factors
from fedscaffold.theory.prediction.local_steps import Curvature, divided, no_contraction, rotate
from fedscaffold.theory.prediction.reduced_system import ReducedSystem, noise_input, reduced_system
from fedscaffold.theory.prediction.setting import cloud_averages

COARSE = 1e-2  # of the interpolation
STAND_OUT, EVENLY = 16, 32  # clients taken for each reason, and evenly spaced ones
DOUBLINGS = 40
GROWN = 1e12


@dataclass(frozen=True, eq=False)
class LinearModel:
    """Clients at θ*: weights, curvatures, gradients and noise."""

    w: Array  # (n,)
    own: Array  # the weight of a client's noise in the mean; less where a client stands for many, (n,)
    lam: Array  # (n, d)
    U: Array  # (n, d, d)
    slopes: Array  # ∇f_c(θ*) in the eigenbasis, (n, d)
    noise: Array  # C_c(θ*) in the eigenbasis, (n, d, d)
    optimum: Array

    @classmethod
    def of(cls, problem: SmoothProblem, batches: Batches, optimum: Array) -> "LinearModel":
        """The model of a problem, or of clients that stand for all of it."""
        factors = noise_factors(problem, batches)
        hessians, slopes = problem.client_hessians(optimum), problem.client_gradients(optimum)
        at, w, own = representatives(problem.weights, hessians, slopes)
        noise = np.empty_like(hessians)
        averages, d = cloud_averages(problem), problem.dim

        def work(block: ClientBlock) -> None:
            points = np.broadcast_to(optimum, (block.clients.size, 1, d))
            noise[block.clients] = averages.noise_at(block, points, factors[block.clients])[:, 0]

        for_blocks(problem, work)
        lam, U = np.linalg.eigh(hessians[at])
        centred = slopes[at] - w @ slopes[at]  # of a sample: as if θ* were its optimum
        return cls(w, own, lam, U, np.einsum("kij,ki->kj", U, centred), rotate(U, noise[at]), optimum)

    @property
    def largest(self) -> float:
        """The largest curvature of any client."""
        return float(self.lam.max())

    def outcome(self, gamma: float, H: int, aim: float, most_rounds: int) -> tuple[float, float]:
        """Rounds until the error is below the aim, with a fraction, inf if it never is; and the plateau.

        Where the rounds are more than `most_rounds`, they are extrapolated at the pace of the slowest direction.
        """
        try:
            cur = Curvature.of(self.U, self.lam, gamma, H)
            system = reduced_system(self.w, cur, COARSE)
            variances, radius = self.variances(system, cur, gamma, H)
        except InvalidInput:  # it does not contract
            return math.inf, math.inf
        plateau = float(variances[-1])
        squares, found = [float(self.optimum @ self.optimum)], 0.0
        for t, square in enumerate(self.path(cur, gamma * H), start=1):
            spread = variance_at(t, variances)
            squares.append(square)
            before, found = found or squares[0], square + spread
            if found <= aim:
                drop = math.log(max(before, found) / max(found, 1e-300))
                part = math.log(max(before, aim) / aim) / drop if drop else 1.0
                return t - 1 + min(1.0, part), plateau
            if not square < GROWN * squares[0]:
                return math.inf, math.inf
            if t >= most_rounds:
                break
        if plateau >= aim or radius >= 1.0:
            return math.inf, plateau
        fall = -2.0 * math.log(radius)  # of mean and of what the noise lacks to its plateau, per round
        initial = math.log(squares[-1]) + fall * (len(squares) - 1)
        lacking = math.exp(min(initial, 700.0)) - plateau
        return max(len(squares) - 1.0, math.log(lacking / (aim - plateau)) / fall), plateau

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
            if size < 1e-3:
                return np.array(found), radius
            radius = size ** (0.5**k)
            P = P + power @ P @ power.T
            power = power @ power
        raise no_contraction(1.0)

    def path(self, cur: Curvature, length: float) -> "Path":
        """‖m_t‖² for t = 1, 2, ... of the mean from θ = 0, ξ = 0."""
        return Path(self, cur, length)


class Path:
    """Iterator over the squared distances of the mean, round by round; see `first_order.noiseless_path`."""

    def __init__(self, model: LinearModel, cur: Curvature, length: float) -> None:
        n, d = model.slopes.shape
        self.into_bases = model.U.transpose(0, 2, 1).reshape(n * d, d)
        self.mean = (model.w[:, None, None] * model.U).transpose(1, 0, 2).reshape(d, n * d)
        self.power, self.share, self.length = cur.gH.ravel(), length * cur.delta.ravel(), length
        self.m, self.ahead = -model.optimum, model.slopes.ravel()

    def __iter__(self) -> "Path":
        return self

    def __next__(self) -> float:
        local = self.power * (self.into_bases @ self.m) - self.share * self.ahead
        self.m = self.mean @ local
        self.ahead = self.ahead + (local - self.into_bases @ self.m) / self.length
        return float(self.m @ self.m)


def representatives(w: Array, hessians: Array, slopes: Array) -> tuple[IntArray, Array, Array]:
    """Clients that stand for all, their weights, and the weights of their noise; all where they are few."""
    N = w.size
    everyone = np.arange(N)
    if N <= 3 * STAND_OUT + 2 * EVENLY:
        return everyone, w, w
    sizes = (w, np.trace(hessians, axis1=1, axis2=2), np.linalg.norm(slopes, axis=1))
    loud = np.unique(np.concatenate([np.argsort(size)[-STAND_OUT:] for size in sizes]))
    rest = np.setdiff1d(everyone, loud)
    some = rest[np.linspace(0, rest.size - 1, EVENLY).round().astype(np.int64)]
    left = float(w[rest].sum())
    weights = np.concatenate([w[loud], np.full(EVENLY, left / EVENLY)])
    own = np.concatenate([w[loud], np.full(EVENLY, float(w[rest] @ w[rest]) / left)])
    return np.concatenate([loud, some]), weights, own


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
