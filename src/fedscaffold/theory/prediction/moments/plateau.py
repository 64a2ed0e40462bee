"""The stationary law of a small problem: the means and covariances that a round leaves as they are.

Given the map of a round, its stationary means and covariances follow by linear algebra; given these, the local
steps make a new map. The fixed point is found with Anderson's acceleration, which for ridge, where the noise is
an affine function of the covariances that it causes, is a Krylov method: it converges as long as there is a
plateau, also where the noise feeds back so strongly that plain repetition would hardly move.
"""

from dataclasses import replace

import numpy as np

from fedscaffold.core.errors import NoPlateau
from fedscaffold.core.types import Array
from fedscaffold.theory.prediction.anderson import Anderson
from fedscaffold.theory.prediction.local_steps import no_contraction
from fedscaffold.theory.prediction.moments.local_round import LocalRound, RoundMap, Start
from fedscaffold.theory.prediction.moments.skewness import cubic_fixed_point, skewness_sources, skewness_steps
from fedscaffold.theory.prediction.moments.state import Moments, at_rest, start_of, transition
from fedscaffold.theory.prediction.reduced_system import solve_lyapunov
from fedscaffold.theory.prediction.setting import Setting

MOST_PASSES, MOST_DEAR_PASSES = 60, 24
MEMORY = 12
SETTLED = 1e-6  # relative change from pass to pass
SETTLED_DEAR, PATIENCE = 1e-4, 12  # and where passes are dear, or after so many of them
DEAR, DEAR_ROUND = 200_000, 10_000_000  # records × features³, and these times local steps
NOTHING, SMALL = 1e-22, 1e-14  # of ‖θ*‖²: rounding errors, and errors that leave no noise to speak of
POWER_STEPS = 8
NEGATIVE = 0.05  # of the largest variance in a round's noise: below zero by what expansions may leave


def no_plateau() -> NoPlateau:
    """The refusal where noise feeds on itself."""
    return NoPlateau(
        "no plateau found: the noise grows with the distance that it causes faster than the method contracts; "
        "take a smaller step_size or a larger batch_size"
    )


def small_plateau(s: Setting, local: LocalRound, guess: Moments | None = None) -> tuple[Moments, RoundMap]:
    """The stationary moments, and the map of a round that begins with them; from a guess if there is one."""
    skew, noisy = local.skewed is not None, s.noisy
    if guess is None:
        N, d = s.gradients.shape
        rest = at_rest(s, np.zeros(d), np.zeros((N, d)) if s.scaffold else s.gradients, skew=skew)
        with np.errstate(over="ignore", invalid="ignore"):
            map = local(start_of(s, rest))
        if not np.isfinite(map.end.B).all():
            raise no_contraction(np.inf)
        guess = stationary(s, map)
        if s.scaffold and not noisy:
            return rest, map  # θ = θ*, ξ = ξ* stays where it is
    elif skew:
        guess = replace(at_rest(s, guess.theta, guess.ahead, skew=True), cov=guess.cov)
    floor = NOTHING * float(s.optimum @ s.optimum)
    history = Anderson(MEMORY)
    now = packed(s, start_of(s, guess))
    for done in range(MOST_DEAR_PASSES if skew and is_dear(s) else MOST_PASSES):
        settled = settled_after(s, done, skew=skew)
        start = unpacked(s, now, skew=skew)
        with np.errstate(over="ignore", invalid="ignore"):  # what grows beyond all numbers is refused below
            map = local(start)
        if not (np.isfinite(map.end.noise).all() and np.isfinite(map.end.mean).all()):
            break
        found = stationary(s, map)
        later = packed(s, start_of(s, found))
        size, before = (squared_error(one) for one in (start_of(s, found), start))
        if abs(size - before) <= settled * size + floor and (size <= floor or close(later, now, settled)):
            if np.linalg.eigvalsh(map.end.noise).min() < -NEGATIVE * np.abs(map.end.noise).max() - floor:
                break
            if noisy and size <= SMALL * float(s.optimum @ s.optimum) and grows(s, local, found):
                break
            return found, map
        now = history.next(now, later) if noisy else later
    raise no_plateau()


def grows(s: Setting, local: LocalRound, at: Moments) -> bool:
    """Whether noise that vanishes where the means settle would still make a small spread grow without end.

    So it is where some model fits all records: E‖θ − θ*‖² = 0 is stationary, but no run needs to get there.
    """
    N, d = s.gradients.shape
    size = N * d if s.scaffold else d
    scale = SMALL * float(s.optimum @ s.optimum) + np.finfo(float).tiny
    moments, factor = replace(at, cov=scale * np.eye(size)), 0.0
    for _ in range(POWER_STEPS):
        found = stationary(s, local(start_of(s, moments)))
        factor = float(np.trace(found.cov)) / float(np.trace(moments.cov))
        if not factor > 0.0:
            return False
        moments = replace(found, theta=at.theta, ahead=at.ahead, cov=found.cov / factor)
    return factor >= 1.0


def squared_error(start: Start) -> float:
    """E‖θ − θ*‖² at the beginning of a round."""
    d = start.theta.size
    return float(np.trace(start.cov[0, :d, :d]) + start.theta @ start.theta)


def settled_after(s: Setting, passes: int, *, skew: bool) -> float:
    """The relative change from pass to pass that ends the passes.

    Third cumulants of many features take long. And where steps are taken many at once, how many depends on where
    the round begins, so that maps of rounds jump a little, and no pass may ever change less.
    """
    early = (skew and is_dear(s)) or passes >= PATIENCE
    return SETTLED_DEAR if early and not s.quadratic else SETTLED


def is_dear(s: Setting) -> bool:
    """Whether a pass with third cumulants takes long."""
    cubes = int(s.problem.sizes.sum()) * s.problem.dim**3
    return cubes >= DEAR or s.H * cubes >= DEAR_ROUND


def close(one: Array, other: Array, settled: float) -> bool:
    """Whether two vectors differ by little, in units of their length."""
    return float(np.linalg.norm(one - other)) <= 10.0 * settled * float(np.linalg.norm(one)) + 1e-300


def stationary(s: Setting, map: RoundMap) -> Moments:
    """Means and covariance that a round with this map leaves as they are; refuses a map that does not contract.

    Scaffold: θ_c^H = θ on average for every client, which gives ξ_c from θ, and Σ w_c (ξ_c − ξ*_c) = 0 gives θ.
    """
    A, W = transition(s, map)
    cov = solve_lyapunov(A, W)
    theta, ahead = stationary_means(s, map, A)
    if map.end.third is None:
        return Moments(theta, ahead, cov, None, None, s.theta_noise)
    of_theta, of_ahead = skewness_sources(s, map, A, cov)
    by_theta, by_ahead = skewness_steps(s, map)
    theta_skew = cubic_fixed_point(by_theta[None], of_theta[None])[0]
    return Moments(theta, ahead, cov, theta_skew, cubic_fixed_point(by_ahead, of_ahead), s.theta_noise)


def stationary_means(s: Setting, map: RoundMap, A: Array) -> tuple[Array, Array]:
    """E θ − θ* and E ξ_c − ξ*_c that a round with this map leaves as they are."""
    N, d = s.gradients.shape
    w, B = s.problem.weights, map.end.B
    rest = map.mean_from(np.zeros(d), np.zeros((N, d)))
    if not s.scaffold:
        pull = w @ (rest + np.einsum("kij,kj->ki", B[:, :, d:], s.gradients))
        return np.asarray(np.linalg.solve(np.eye(d) - A, pull)), s.gradients
    by_theta = np.linalg.solve(B[:, :, d:], np.eye(d) - B[:, :, :d])
    fixed = np.linalg.solve(B[:, :, d:], rest[..., None])[..., 0]
    theta = np.linalg.solve(np.tensordot(w, by_theta, axes=1), w @ fixed)
    return np.asarray(theta), np.asarray(by_theta @ theta - fixed)


def packed(s: Setting, start: Start) -> Array:
    """Moments of (θ, ξ_c) as one vector, in units in which they are alike: γHξ for ξ."""
    unit = _units(s)
    covs = start.cov * unit[:, None] * unit
    parts = [start.theta, s.gamma * s.H * start.ahead.ravel(), covs.ravel()]
    if start.skew is not None:
        parts.append((start.skew * unit[:, None, None] * unit[:, None] * unit).ravel())
    return np.concatenate(parts)


def unpacked(s: Setting, vector: Array, *, skew: bool) -> Start:
    """The inverse of `packed`."""
    N, d = s.gradients.shape
    unit = _units(s)
    theta, ahead, covs, rest = np.split(vector, np.cumsum([d, N * d, N * 4 * d * d]))
    found = rest.reshape(N, 2 * d, 2 * d, 2 * d) / (unit[:, None, None] * unit[:, None] * unit) if skew else None
    cov = covs.reshape(N, 2 * d, 2 * d) / (unit[:, None] * unit)
    return Start(theta, ahead.reshape(N, d) / (s.gamma * s.H), cov, found)


def _units(s: Setting) -> Array:
    d = s.problem.dim
    return np.concatenate([np.ones(d), np.full(d, s.gamma * s.H)])
