"""E‖θ_t − θ*‖² round by round for small problems: means and covariances from the beginning on.

The map of a round is found anew where means and covariances have changed, and in between it is taken on the
straight line from one map to the next. How far apart the maps are found depends on what they say, never on how
many rounds were asked for: a longer curve begins with the shorter one.
"""

from dataclasses import replace

import numpy as np

from fedscaffold.core.types import Array
from fedscaffold.theory.prediction.moments.local_round import Cloud, LocalRound, RoundMap
from fedscaffold.theory.prediction.moments.skewness import skewness_sources, skewness_steps
from fedscaffold.theory.prediction.moments.state import (
    Moments,
    beginning,
    mean_after,
    start_of,
    theta_covariance,
    theta_rows,
    transition,
)
from fedscaffold.theory.prediction.moments.third_order import turned
from fedscaffold.theory.prediction.setting import Setting

CHANGE = 0.005  # relative difference of what two neighbouring maps make of the same moments
LONGEST = 4096  # rounds between two maps


def small_curve(s: Setting, local: LocalRound, rounds: int, shift: Array | None = None) -> tuple[Array, Array]:
    """‖E θ_t − θ*‖² and tr Cov θ_t for t = 0, ..., rounds from θ_0 = 0, ξ_c = 0; inf from where they overflow.

    With a shift the first is ‖E θ_t − θ* + shift‖², the distance to another point than the setting's θ*.
    """
    away = np.zeros(s.problem.dim) if shift is None else shift
    now = beginning(s, skew=local.skewed is not None)
    squares, variances = [float(np.square(now.theta + away).sum())], [0.0]
    with np.errstate(over="ignore", invalid="ignore"):
        map, gap = local(start_of(s, now)), 1
        while len(squares) <= rounds:
            tried = travel(s, map, map, now, gap)
            if not all(np.isfinite(one.cov).all() and np.isfinite(one.theta).all() for one in tried):
                if gap == 1:
                    break
                gap = 1
                continue
            if gap == 1 and len(squares) == rounds:  # no map of a further round is needed
                squares.append(float(np.square(tried[0].theta + away).sum()))
                variances.append(float(np.trace(theta_covariance(s, tried[0]))))
                break
            later = local(start_of(s, tried[-1]))
            change = maps_differ(s, map, later, tried[-1])
            if gap > 1 and not change <= CHANGE:
                gap //= 2
                continue
            passed = tried if gap == 1 else travel(s, map, later, now, gap)
            squares += [float(np.square(one.theta + away).sum()) for one in passed]
            variances += [float(np.trace(theta_covariance(s, one))) for one in passed]
            now = passed[-1]
            map = later if gap == 1 else local(start_of(s, now))
            gap = min(2 * gap, LONGEST) if change < 0.25 * CHANGE else gap
    missing = [np.inf] * (rounds + 1 - len(squares))
    return np.array((squares + missing)[: rounds + 1]), np.array((variances + missing)[: rounds + 1])


def travel(s: Setting, first: RoundMap, last: RoundMap, moments: Moments, rounds: int) -> list[Moments]:
    """Moments after each of some rounds, the map of which goes from `first` to `last`."""
    found = []
    skewed = moments.theta_skew is not None and moments.ahead_skew is not None
    sources = skewness_sources(s, first, transition(s, first)[0], moments.cov) if skewed else None
    steps = skewness_steps(s, first) if skewed else None
    for k in range(rounds):
        map = first if first is last else blend(first, last, k / rounds)
        theta, ahead = means_between(s, first, last, moments, k / rounds)
        skews: tuple[Array | None, Array | None] = (None, None)
        if sources is not None and steps is not None:
            assert moments.theta_skew is not None
            assert moments.ahead_skew is not None
            by_theta = steps[0][None]
            skews = (
                turned(moments.theta_skew[None], by_theta, by_theta, by_theta)[0] + sources[0],
                turned(moments.ahead_skew, steps[1], steps[1], steps[1]) + sources[1],
            )
        moments = Moments(theta, ahead, covariance_after(s, map, moments), *skews, s.theta_noise)
        found.append(moments)
    return found


def means_between(
    s: Setting, first: RoundMap, last: RoundMap, moments: Moments, share: float
) -> tuple[Array, Array]:
    """Means after a round whose map lies between two others."""
    one = mean_after(s, first, moments.theta, moments.ahead)
    if first is last:
        return one
    other = mean_after(s, last, moments.theta, moments.ahead)
    return (1.0 - share) * one[0] + share * other[0], (1.0 - share) * one[1] + share * other[1]


def blend(first: RoundMap, last: RoundMap, share: float) -> RoundMap:
    """B and Cov n between those of two maps."""
    B = (1.0 - share) * first.end.B + share * last.end.B
    noise = (1.0 - share) * first.end.noise + share * last.end.noise
    return RoundMap(first.start, Cloud(first.end.mean, B, noise, None))


def covariance_after(s: Setting, map: RoundMap, moments: Moments) -> Array:
    """A Cov x Aᵀ + W, by the blocks that A is made of."""
    N, d = s.gradients.shape
    if not s.scaffold:
        A, W = transition(s, map)
        return A @ moments.cov @ A.T + W
    B = map.end.B
    D = np.eye(d) + B[:, :, d:] / (s.gamma * s.H)
    R = B[:, :, :d] - D

    def half(matrix: Array) -> Array:
        return (D @ matrix.reshape(N, d, N * d) + R @ theta_rows(s, matrix)).reshape(N * d, N * d)

    after = half(half(moments.cov).T).reshape(N, d, N, d)
    after[np.arange(N), :, np.arange(N)] += map.end.noise
    by_fresh = R.reshape(N * d, d)
    matrix = after.reshape(N * d, N * d) + moments.fresh * by_fresh @ by_fresh.T
    return 0.5 * (matrix + matrix.T)


def maps_differ(s: Setting, first: RoundMap, last: RoundMap, moments: Moments) -> float:
    """How differently two maps go on from given moments: means and covariances of θ, and noise, relative."""
    theta = [mean_after(s, map, moments.theta, moments.ahead)[0] for map in (first, last)]
    covs = [theta_covariance(s, replace(moments, cov=covariance_after(s, map, moments))) for map in (first, last)]
    size = float(np.trace(covs[1]) + theta[1] @ theta[1]) + 1e-300
    mean = float(np.linalg.norm(theta[1] - theta[0])) / size**0.5
    cov = float(np.abs(covs[1] - covs[0]).max()) / size
    each = [np.trace(map.end.noise, axis1=1, axis2=2) for map in (first, last)]
    noise = float((s.problem.weights @ np.abs(each[1] - each[0])) / (s.problem.weights @ each[1] + 1e-18 * size))
    return max(mean, cov, noise)
