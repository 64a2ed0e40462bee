"""Predictions with privacy: where clipped and noisy runs settle, and the curve that leads there.

Clipping records moves the optimum: runs settle around the zero of the mean clipped gradient, and the error is the
distance to θ* of the problem itself. Noise in the steps adds to that of the batches. Noise in the messages adds to
what a client's local steps end with, and so reaches its control variate too; that messages are clipped is left
out, and `reliability` says how often they would be.
"""

from dataclasses import replace

import numpy as np
from scipy.stats import gamma as gamma_law

from fedscaffold.core.capabilities import GeneralisedLinear, SmoothProblem
from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.privacy import ClientLevel, Privacy, RecordLevel
from fedscaffold.core.protocols import Method
from fedscaffold.core.random.batches import Batches
from fedscaffold.core.types import Array
from fedscaffold.theory.client_blocks import list_blocks, noise_factors
from fedscaffold.theory.prediction.clouds.clipped import ClippedAverages
from fedscaffold.theory.prediction.moments.curve import small_curve
from fedscaffold.theory.prediction.moments.local_round import LocalRound, RoundMap, Start
from fedscaffold.theory.prediction.moments.plateau import small_plateau
from fedscaffold.theory.prediction.moments.state import Moments, start_of, theta_covariance
from fedscaffold.theory.prediction.prediction import Prediction
from fedscaffold.theory.prediction.reliability import GAUSSIAN, Reliability
from fedscaffold.theory.prediction.setting import Setting, at_point, setting
from fedscaffold.theory.supported import parse_method

LARGEST_STATE = 600  # numbers in the models of all clients together; for FedAvg in θ
NEWTON_STEPS, PRECISE = 200, 1e-11
MOSTLY = 0.9  # share of a client's records: with more of them clipped, hardly any curvature is left


def predict_private(
    problem: SmoothProblem, method: Method, batches: Batches, rounds: int | None, privacy: Privacy
) -> Prediction:
    """Plateau and curve of a run with privacy, for generalised linear problems of moderate size."""
    s, local = private_setting(problem, method, batches, privacy)
    shift = s.optimum - problem.optimum()
    found, map = small_plateau(s, local)
    return Prediction(
        cov_theta=theta_covariance(s, found),
        bias=found.theta + shift,
        bias_xi=found.ahead.copy(),
        curve=None if rounds is None else np.add(*small_curve(s, local, rounds, shift)),
        reliability=_reliability(s, found, map, privacy, local),
    )


def private_setting(
    problem: SmoothProblem, method: Method, batches: Batches, privacy: Privacy
) -> tuple[Setting, LocalRound]:
    """The setting of a prediction around where clipping moves the optimum, and its rounds."""
    if not isinstance(problem, GeneralisedLinear):
        raise InvalidInput(
            "predictions with privacy are for ridge and logistic regression on tables; use fedscaffold.run"
        )
    state = problem.n_clients * problem.dim if parse_method(problem, method).scaffold else problem.dim
    if state > LARGEST_STATE:
        raise InvalidInput(
            f"predictions with privacy are for up to {LARGEST_STATE} numbers in all clients' models together, "
            f"here {state:,}; use fedscaffold.run"
        )
    if isinstance(privacy, ClientLevel):
        check_summed(privacy, method)
        s = replace(setting(problem, method, batches), has_privacy_noise=True)
        w = problem.weights
        variances = np.square(privacy.noise_scales(w, float(w.max()), problem.n_clients))
        if s.scaffold and privacy.summed:
            s, variances = replace(s, theta_noise=float(np.square(w) @ variances)), np.zeros_like(w)
        local: LocalRound = NoisyMessages(s, variances)
    else:
        counts = problem.sizes if batches.size is None else np.full(problem.n_clients, batches.size)
        averages = ClippedAverages(problem, False, privacy.clip, np.square(privacy.noise / counts))
        optimum = clipped_optimum(problem, averages)
        s = setting(problem, method, batches, optimum, averages)
        local = LocalRound(s, skew=False)
    return local.s, local


def check_summed(privacy: ClientLevel, method: Method) -> None:
    """Refuse Scaffold where clients would remember parts of a sum's noise, as `fedscaffold.run` does."""
    if privacy.summed and method.kind == "scaffold":
        raise InvalidInput(
            "with privacy=ClientLevel(summed=True) the method must be GradientScaffold, which is Scaffold "
            "without noise, or FedAvg"
        )


class NoisyMessages(LocalRound):
    """Local steps after which every client's model gets noise of a given variance."""

    def __init__(self, s: Setting, variances: Array) -> None:
        super().__init__(s, skew=False, step_by_step=s.H if s.quadratic else 12)
        self.variances = variances

    def __call__(self, start: Start) -> RoundMap:
        """The map of a round, noise of the messages included."""
        found = super().__call__(start)
        added = self.variances[:, None, None] * np.eye(found.end.mean.shape[1])
        return replace(found, end=replace(found.end, noise=found.end.noise + added))


def clipped_optimum(problem: GeneralisedLinear, averages: ClippedAverages, near: Array | None = None) -> Array:
    """Where the weighted mean of the clients' clipped gradients vanishes; damped Newton from `near` or θ* on."""
    everyone, factors = np.arange(problem.n_clients), noise_factors(problem, Batches())
    theta, damping = problem.optimum() if near is None else near, 0.0
    here = at_point(problem, averages, everyone, theta, factors)
    gradient = problem.weights @ here.gradient
    for _ in range(NEWTON_STEPS):
        size = float(np.linalg.norm(gradient))
        if size <= PRECISE * averages.clip:
            return theta
        hessian = np.tensordot(problem.weights, here.hessian, axes=1)
        top = float(np.abs(hessian).max()) + 1e-12
        tried = theta - np.linalg.solve(hessian + (damping + 1e-12) * top * np.eye(theta.size), gradient)
        there = at_point(problem, averages, everyone, tried, factors)
        new = problem.weights @ there.gradient
        if float(np.linalg.norm(new)) < size:
            theta, here, gradient, damping = tried, there, new, 0.1 * damping if damping > 1e-8 else 0.0
        else:
            damping = max(10.0 * damping, 1e-6)
    raise InvalidInput(
        "with records clipped so short no model was found at which the mean clipped gradient vanishes; take a "
        "larger clip or some l2"
    )


def _reliability(s: Setting, found: Moments, map: RoundMap, privacy: Privacy, local: LocalRound) -> Reliability:
    """What is left out: clipped messages, or that of mostly clipped records hardly any curvature is left."""
    if isinstance(privacy, ClientLevel):
        assert isinstance(local, NoisyMessages)
        share = _clipped_messages(s, found, map, privacy, local.variances)
        if share > 0.01:
            return Reliability(100.0 * share, f"up to {share:.0%} of a client's messages are clipped")
        return GAUSSIAN
    assert isinstance(s.averages, ClippedAverages)
    assert isinstance(privacy, RecordLevel)
    shares = [s.averages.clipped_share(block, s.optimum + found.theta) for block in list_blocks(s.problem)]
    most = float(np.concatenate(shares).max())
    if most > MOSTLY:
        return Reliability(100.0 * (most - MOSTLY) + 5.0, f"{most:.0%} of a client's records are clipped")
    return GAUSSIAN


def _clipped_messages(s: Setting, found: Moments, map: RoundMap, privacy: ClientLevel, variances: Array) -> float:
    """About how often the message of the client with the largest changes is clipped on the plateau.

    The squared length of a Gaussian change is taken as a gamma variable with its mean and variance.
    """
    start = start_of(s, found)
    d, length = s.problem.dim, s.gamma * s.H
    turn = map.end.B.copy()
    turn[:, :, :d] -= np.eye(d)
    own = map.end.noise - variances[:, None, None] * np.eye(d)
    mean = map.mean_from(found.theta, found.ahead) - found.theta
    if s.scaffold and privacy.summed:  # what is clipped is θ_c − θ + γHξ_c
        turn[:, :, d:] += length * np.eye(d)
        mean = mean + length * (found.ahead - s.gradients)
    cov = turn @ start.cov @ np.swapaxes(turn, 1, 2) + own
    first = np.trace(cov, axis1=1, axis2=2) + np.square(mean).sum(axis=1)
    second = 2.0 * np.square(cov).sum(axis=(1, 2)) + 4.0 * np.einsum("ki,kij,kj->k", mean, cov, mean)
    second = np.maximum(second, 1e-300)
    return float(gamma_law.sf(privacy.clip**2, first**2 / second, scale=second / np.maximum(first, 1e-300)).max())
