"""Predictions that are measured: where the closure's own estimate says that it leaves out too much.

A closure of moments costs milliseconds and is right within a percent for clouds of local models over which losses
bend little. For wide clouds no next cumulant helps for sure, and there thousands of drawn rounds cost less than a
second. So where the closure says that more than a percent is left out, the method itself is run on drawn records,
and what was measured replaces what was approximated.
"""

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from fedscaffold.core.arrays import evenly_spaced_clients
from fedscaffold.core.capabilities import GeneralisedLinear
from fedscaffold.core.types import Array
from fedscaffold.theory.prediction.local_steps import divided
from fedscaffold.theory.prediction.moments.curve import small_curve
from fedscaffold.theory.prediction.moments.local_round import LocalRound
from fedscaffold.theory.prediction.moments.predict import follows_skewness, is_small
from fedscaffold.theory.prediction.prediction import Prediction
from fedscaffold.theory.prediction.reliability import GAUSSIAN, Reliability
from fedscaffold.theory.prediction.sampled.curve import DRAWN_ROUNDS, SampledCurve, sampled_curve
from fedscaffold.theory.prediction.sampled.pace import rounds_to_forget
from fedscaffold.theory.prediction.sampled.plateau import SampledPlateau, affordable_replicas, sampled_plateau
from fedscaffold.theory.prediction.setting import Setting

SEED = 20_240_917  # of all draws: the same call gives the same prediction
MUCH = 1.0  # percent left out by a closure beyond which it is measured
CURVES_DIFFER = 0.02  # relative, with third cumulants and without: beyond it a curve is measured
WIDE = 0.25  # variance of margins, times features over records, beyond which Gaussian clouds are measured
PER_WIDTH = 15.0  # percent, roughly, that such clouds leave out of clients with fewer records than features
CLIENTS_SEEN = 16
LARGEST_TABLE = 2_000_000  # records × features
ROUGH = 0.025  # relative standard error of a plateau that corrects nothing


class Doubts(NamedTuple):
    """What of a prediction is to be measured, and how much its closure leaves out."""

    plateau: bool
    curve: bool
    neglected: Reliability


def measured(s: Setting, found: Prediction | None, rounds: int | None) -> Prediction | None:
    """The prediction `found`, with what is in doubt replaced by what drawn rounds say.

    Without one, where the closure found no plateau: what drawn rounds say alone; None where they say nothing.
    """
    if not can_be_drawn(s):
        return found
    doubts = Doubts(True, rounds is not None, GAUSSIAN) if found is None else doubts_about(s, found)
    if not (doubts.plateau or doubts.curve):
        return found
    before = None if found is None else replace(found, reliability=doubts.neglected)
    forget = rounds_to_forget(s) if affordable_replicas(s, 1.0) else np.inf
    if not np.isfinite(forget):
        return before
    theta = np.zeros(s.problem.dim) if before is None else before.bias
    ahead = np.zeros_like(s.gradients) if before is None else before.bias_xi
    plateau = sampled_plateau(s, forget, theta, ahead, SEED)
    if plateau is None or (doubts.plateau and max(plateau.error, plateau.drift) > ROUGH):
        return before
    after = corrected(before, plateau) if doubts.plateau or before is None else before
    if rounds is None or not doubts.curve:
        return after
    way = sampled_curve(s, forget, plateau, after.mse, SEED)
    closure = None if before is None or before.curve is None or not np.isfinite(before.curve).all() else before
    curve = with_tail(way if closure is None else shrunk(way, closure.curve), rounds, closure, after.mse)
    left_out = 200.0 * float(np.sqrt(np.square(way.errors).mean()))
    if left_out <= after.reliability.neglected:
        return replace(after, curve=curve)
    return replace(after, curve=curve, reliability=Reliability(left_out, told(plateau, "the curve")))


def can_be_drawn(s: Setting) -> bool:
    """Whether rounds are worth drawing, and their records lie in a table small enough to be read at random."""
    if s.quadratic or not s.noisy or s.batches.size is None or not isinstance(s.problem, GeneralisedLinear):
        return False
    return int(s.problem.sizes.sum()) * s.problem.dim <= LARGEST_TABLE


def doubts_about(s: Setting, found: Prediction) -> Doubts:
    """What is in doubt about a prediction by a closure."""
    left_out = found.reliability
    if not (is_small(s) and follows_skewness(s)):
        crowded = s.problem.dim / float(s.problem.sizes.mean())
        width = margin_variance(s, found.cov_theta) * max(1.0, crowded)
        if width <= WIDE:
            return Doubts(False, False, left_out)
        wide = Reliability(
            GAUSSIAN.neglected + PER_WIDTH * min(1.0, crowded) * width / (1.0 + width),
            "margins of records spread widely over local models, which are taken to be Gaussian",
        )
        return Doubts(True, found.curve is not None, wide)
    much = left_out.neglected > MUCH
    return Doubts(much, found.curve is not None and (much or curves_differ(s, found.curve)), left_out)


def curves_differ(s: Setting, curve: Array) -> bool:
    """Whether third cumulants change the first rounds of a curve much."""
    plain = np.add(*small_curve(s, LocalRound(s, skew=False), DRAWN_ROUNDS))
    return not bool((np.abs(plain - curve[: DRAWN_ROUNDS + 1]) <= CURVES_DIFFER * plain).all())


def margin_variance(s: Setting, cov_theta: Array) -> float:
    """Variance of margins xᵀθ_c at the end of a round, a mean over records, which count by their noise.

    It comes from Cov θ as the round begins and from the round's own noise, with curvature and noise at θ*. Of many
    clients, some are looked at.
    """
    problem, at = s.problem, evenly_spaced_clients(s.problem.n_clients, min(s.problem.n_clients, CLIENTS_SEEN))
    assert isinstance(problem, GeneralisedLinear)
    U, g = s.at_optimum.U[at], 1.0 - s.gamma * s.at_optimum.lam[at]
    products, back = g[:, :, None] * g[:, None, :], np.swapaxes(U, 1, 2)
    with np.errstate(over="ignore"):
        powers = products**s.H
        sums = divided(products, powers, 1.0, s.H)
    begin = back @ cov_theta @ U * powers
    covs = U @ (begin + s.gamma**2 * sums * (back @ s.at_optimum.noise[at] @ U)) @ back
    total = 0.0
    for client, cov in zip(at, covs, strict=True):
        rows = slice(int(problem.offsets[client]), int(problem.offsets[client + 1]))
        x, y = problem.x[rows], problem.y[rows]
        margins, spread = x @ s.optimum, np.einsum("ni,ni->n", x @ cov, x)
        weights = np.square(x).sum(axis=1) * (
            np.square(problem.d1(margins, y)) + np.square(problem.d2(margins, y)) * spread
        )
        total += problem.weights[client] * float(weights @ spread) / max(float(weights.sum()), 1e-300)
    return float(total / problem.weights[at].sum())


def corrected(found: Prediction | None, plateau: SampledPlateau) -> Prediction:
    """The plateau as it was measured, with as much of the bias as stands out of its noise."""
    bias, ahead = plateau.mean, plateau.ahead
    if found is not None:
        change = bias - found.bias
        size = max(float(change @ change), np.finfo(float).tiny)
        share = max(0.0, 1.0 - float(plateau.mean_error.sum()) / size)
        bias, ahead = found.bias + share * change, found.bias_xi + share * (ahead - found.bias_xi)
    cov = plateau.second - np.outer(plateau.mean, plateau.mean)
    spread = max(plateau.mse - float(bias @ bias), 0.0) / max(float(np.trace(cov)), np.finfo(float).tiny)
    left_out = 100.0 * (2.0 * plateau.error + plateau.drift)
    return Prediction(
        cov_theta=spread * cov,
        bias=bias,
        bias_xi=ahead,
        curve=None if found is None else found.curve,
        reliability=Reliability(left_out, told(plateau, "it")),
    )


def shrunk(way: SampledCurve, closure: Array | None) -> SampledCurve:
    """A drawn curve, moved towards the closure's where the two differ by hardly more than the noise of draws.

    By the rule of James and Stein, the same for all rounds: never worse than the drawn curve, on average.
    """
    assert closure is not None
    change = closure[1 : way.values.size] - way.values[1:]
    noise = (way.errors * way.values)[1:]
    apart = float(np.square(change).sum()) / max(float(np.square(noise).sum()), np.finfo(float).tiny)
    share = min(1.0, 1.0 / apart) if apart > 0.0 else 1.0
    values = way.values.copy()
    values[1:] += share * change
    return SampledCurve(values, way.errors)


def with_tail(way: SampledCurve, rounds: int, found: Prediction | None, mse: float) -> Array:
    """The curve; after the last round that was drawn, the closure's curve, led to the measured plateau."""
    last = way.values.size - 1
    if last >= rounds:
        return way.values[: rounds + 1]
    if found is None or found.curve is None:
        return np.concatenate([way.values, np.full(rounds - last, mse)])
    ahead = found.curve[last : rounds + 1] - found.mse
    left = np.clip(ahead / ahead[0] if ahead[0] else np.zeros_like(ahead), 0.0, 1.0)
    factor = mse / found.mse + left * (way.values[-1] / found.curve[last] - mse / found.mse)
    return np.concatenate([way.values, (factor * found.curve[last : rounds + 1])[1:]])


def told(plateau: SampledPlateau, what: str) -> str:
    """Why drawn rounds were needed, and what is left open."""
    drift = ", and by how much later rounds differ from earlier ones" if plateau.drift > 0.0 else ""
    return (
        f"local models spread widely, so that {what} was measured: by {plateau.replicas:,} drawn runs of "
        f"{plateau.rounds:,} rounds, of whose standard error this is twice{drift}"
    )
