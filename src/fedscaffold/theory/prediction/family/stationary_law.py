"""The stationary law of a method, and the laws of its rounds on the way there."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.types import Array
from fedscaffold.theory.prediction.family.family_setting import FamilySetting
from fedscaffold.theory.prediction.family.local_law import (
    Linearisation,
    at_optimum,
    off_between_nodes,
    relinearised,
)
from fedscaffold.theory.prediction.family.round_map import FamilyRound, round_map
from fedscaffold.theory.prediction.local_steps import no_contraction

MOST_PASSES, SETTLED = 60, 1e-6
MOST_SWEEPS, SWEPT = 40, 1e-5
DOUBLINGS, GROWN, KRYLOV, AT_REST = 50, 1e12, 40, 1e-7
LONG_ROUND = 8  # local steps for each node, from which on following every step takes longer
BETWEEN_NODES = 1e-4  # of the noise: more, and every step is followed
RESIDUAL = 1e-8  # of a solution, relative to the noise of a round


@dataclass(frozen=True, eq=False)
class StationaryLaw:
    """Mean and covariance of z̃ without its first entry 1, and the mean's map of a round around them."""

    mean: Array  # (size − 1,)
    cov: Array  # (size − 1, size − 1)
    mean_map: Array  # (size − 1, size − 1), without what is conserved
    linearisation: Linearisation


def stationary_law(s: FamilySetting) -> StationaryLaw:
    """Where a method settles: mean, covariance, noise and curvature found together."""
    lin = at_optimum(s)
    start, before = s.start(), np.full(2, np.inf)
    for _ in range(MOST_PASSES):
        rounds = round_map(s, lin)
        matrix = rounds.mean_map()
        limit = _limit(matrix)
        mean = limit @ start
        cov = _covariance(s, rounds, matrix, limit, mean)
        law = StationaryLaw(mean[1:], cov[1:, 1:], (matrix - limit)[1:, 1:], lin)
        at = s.server(0)
        now = np.array([np.trace(cov[at, at]), mean[at] @ mean[at]])
        if not np.isfinite(now).all() or now[0] < 0.0:
            break
        if (np.abs(now - before) <= SETTLED * np.array([now[0], now.sum()]) + 1e-300).all() or s.quadratic:
            return law
        before = now
        lin = _relinearise(s, rounds, cov + np.outer(mean, mean))
    raise no_plateau()


def no_plateau() -> InvalidInput:
    """The refusal of a method whose noise grows faster than the method contracts."""
    return InvalidInput(
        "no plateau found: the noise grows with the distance that it causes faster than the method contracts; "
        "take a smaller step_size or a larger batch_size"
    )


def laws_of_rounds(s: FamilySetting) -> Iterator[Array]:
    """E z̃z̃ᵀ after 0, 1, ... rounds from θ_0 = 0; for quadratic f_c exact, or to about 1e-4 in long rounds."""
    state = s.start()
    by_nodes = s.step_by_step and LONG_ROUND * s.steps.nodes.size < s.steps.H
    s = replace(s, step_by_step=s.step_by_step and not by_nodes)
    second, one = np.outer(state, state), round_map(s, at_optimum(s))
    yield second
    while True:
        following = self_consistent(s, one, second)
        if by_nodes and off_between_nodes(s, following.lin, following.round_start(second)) > BETWEEN_NODES:
            by_nodes, s = False, replace(s, step_by_step=True)
            following = self_consistent(s, replace(one, s=s), second)
        one = following
        second = one.after(second)
        yield second


def self_consistent(s: FamilySetting, rounds: FamilyRound, second: Array) -> FamilyRound:
    """The round around the linearisation that its own local models from this law bring about."""
    if s.step_by_step:  # the noise follows from the law of the start alone, and nothing else changes
        if s.linear.noisy_exchange:  # which has the noise of exchanged gradients in it
            rounds = replace(rounds, lin=_relinearise(s, rounds, second))
        return replace(rounds, lin=_relinearise(s, rounds, second))
    for _ in range(MOST_SWEEPS):
        lin, after = rounds.lin, _relinearise(s, rounds, second)
        change = np.abs(after.noise - lin.noise).max() + np.abs(after.residual - lin.residual).max()
        moved = np.abs(after.cur.lam - lin.cur.lam).max() / np.abs(lin.cur.lam).max()
        size = np.abs(after.noise).max() + np.abs(after.residual).max()
        rounds = replace(rounds, lin=after) if s.quadratic else round_map(s, after)
        if change <= SWEPT * size and moved <= SWEPT:
            break
    return rounds


def _relinearise(s: FamilySetting, rounds: FamilyRound, second: Array) -> Linearisation:
    at = s.server(0)
    mean = second[0, at]
    theta = mean, second[at, at] - np.outer(mean, mean)
    return relinearised(s, rounds.lin, rounds.round_start(second), theta)


def _limit(matrix: Array) -> Array:
    """The power of the mean's map after so many rounds that it rests, by doubling; conserved sums stay."""
    power, before = matrix, np.inf
    for _ in range(DOUBLINGS):
        twice = power @ power
        change = float(np.abs(twice - power).max())
        if not change < GROWN:
            raise no_contraction(np.inf)
        if change >= before and before <= AT_REST * (1.0 + np.abs(power).max()):
            return power  # from here on only rounding errors of what is conserved grow
        power, before = twice, change
    raise no_contraction(1.0)


def _covariance(s: FamilySetting, rounds: FamilyRound, matrix: Array, limit: Array, mean: Array) -> Array:
    """P = 𝓛P + W, with 𝓛 the round's map of covariances, by preconditioned minimal residuals (GMRES).

    For quadratic f_c the noise is linear in P and part of 𝓛. The preconditioner solves P = M̄PM̄ᵀ + X with the mean
    map M̄, by doubling: it is exact where neither noise nor who takes part feeds back.
    """
    from scipy.sparse.linalg import LinearOperator, gmres

    centre = np.outer(mean, mean)
    conserved = limit.copy()  # a projection; what is conserved does not vary, and is kept out of all covariances
    conserved[0], conserved[:, 0] = 0.0, 0.0
    varying = np.eye(len(matrix)) - conserved
    linear_part = varying @ matrix
    linear_part[0], linear_part[:, 0] = 0.0, 0.0

    def after(second: Array) -> Array:
        if not s.quadratic:
            return rounds.after(second)
        return self_consistent(s, rounds, second).after(second)

    resting = after(centre)
    given = _varying(varying, resting - centre)
    if not np.abs(given).max() > 0.0:
        return given
    shape, scale = given.shape, float(np.abs(given).max())

    def apply(flat: Array) -> Array:
        P = _varying(varying, flat.reshape(shape)) * scale
        return flat - _varying(varying, after(centre + P) - resting).ravel() / scale

    def precondition(flat: Array) -> Array:
        return _lyapunov(linear_part, flat.reshape(shape)).ravel()

    size = given.size
    operator = LinearOperator((size, size), matvec=apply)
    about = LinearOperator((size, size), matvec=precondition)
    right = (given / scale).ravel()
    found, _ = gmres(operator, right, M=about, rtol=RESIDUAL, restart=KRYLOV, maxiter=3)
    failed = not np.linalg.norm(apply(found) - right) <= 100.0 * RESIDUAL * np.linalg.norm(right)
    P = _varying(varying, found.reshape(shape)) * scale
    lowest = np.linalg.eigvalsh(P)[0]
    if failed or lowest < -1e-6 * np.trace(P):
        raise no_plateau()
    return P


def _varying(varying: Array, matrix: Array) -> Array:
    """A covariance without its first row and column and without what is conserved."""
    found = 0.5 * (matrix + matrix.T)
    found[0], found[:, 0] = 0.0, 0.0
    return varying @ found @ varying.T


def _lyapunov(A: Array, X: Array) -> Array:
    """P = A P Aᵀ + X by doubling."""
    P, power = X, A
    for _ in range(DOUBLINGS):
        more = power @ P @ power.T
        P = P + more
        if np.abs(more).max() <= 1e-12 * np.abs(P).max():
            return P
        power = power @ power
        if not np.abs(power).max() < GROWN:
            break
    raise no_contraction(1.0)
