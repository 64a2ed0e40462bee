"""Predictions for problems of few clients and features, by following means and covariances step by step."""

import numpy as np

from fedscaffold.core.capabilities import GeneralisedLinear
from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.types import Array
from fedscaffold.methods import FedAvg, Scaffold
from fedscaffold.theory.prediction.family.family_setting import family_setting
from fedscaffold.theory.prediction.family.predict_family import error_curve
from fedscaffold.theory.prediction.moments.curve import small_curve
from fedscaffold.theory.prediction.moments.local_round import STEP_BY_STEP, LocalRound, RoundMap
from fedscaffold.theory.prediction.moments.neglected import neglected
from fedscaffold.theory.prediction.moments.plateau import small_plateau
from fedscaffold.theory.prediction.moments.state import Moments, theta_covariance
from fedscaffold.theory.prediction.prediction import Prediction
from fedscaffold.theory.prediction.reliability import EXACT, GAUSSIAN, NO_NOISE, Reliability
from fedscaffold.theory.prediction.setting import Setting

LARGEST_STATE = 200  # numbers in the state x
LARGEST_TABLES = 4_000_000  # records × features²: what averages over all clients cost
MOST_STEPS, LARGEST_STEPS = 2000, 20_000_000  # of a round taken one by one, and steps × records × features²
MOST_STEPS_OF_CURVES = 256
LARGEST_CUBES, LARGEST_STEPS_OF_CUBES = 2_000_000, 200_000_000  # records × features³, and steps times these


def is_small(s: Setting) -> bool:
    """Whether means and covariances can be followed step by step in a few seconds; for clients with tables."""
    if not isinstance(s.problem, GeneralisedLinear):
        return False
    state = s.gradients.size if s.scaffold else s.problem.dim
    return state <= LARGEST_STATE and int(s.problem.sizes.sum()) * s.problem.dim**2 <= LARGEST_TABLES


def follows_skewness(s: Setting) -> bool:
    """Whether third cumulants are followed: where losses bend, there is noise, and it takes seconds."""
    cubes = int(s.problem.sizes.sum()) * s.problem.dim**3
    return not s.quadratic and s.noisy and cubes <= LARGEST_CUBES and s.H * cubes <= LARGEST_STEPS_OF_CUBES


def plateau_is_small(s: Setting) -> bool:
    """Whether the plateau is found step by step too; for ridge every step is taken, so that it is exact."""
    steps = s.H * int(s.problem.sizes.sum()) * s.problem.dim**2
    return is_small(s) and (not s.quadratic or (s.H <= MOST_STEPS and steps <= LARGEST_STEPS))


def small_round(s: Setting) -> LocalRound:
    """The local steps: every one for ridge, where that makes curves exact; else with third cumulants."""
    every = s.quadratic and s.H <= MOST_STEPS_OF_CURVES
    return LocalRound(s, skew=follows_skewness(s), step_by_step=s.H if every else STEP_BY_STEP)


def small_prediction(s: Setting, rounds: int | None) -> Prediction:
    """Plateau and curve; where third cumulants are followed, the plateau without them says if they matter."""
    local = small_round(s)
    noisy = bool(s.factors.any())
    plain = gaussian_plateau(s) if noisy and local.skewed is not None else None
    map: RoundMap | None
    if s.quadratic:
        found, map = small_plateau(s, LocalRound(s, skew=False, step_by_step=s.H))
    else:
        found, map = skewed_plateau(s, local, plain)
    if s.quadratic or not noisy:
        reliability = EXACT if s.quadratic else NO_NOISE
    elif local.skewed is None:
        reliability = GAUSSIAN
    elif map is None:
        reliability = Reliability(50.0, "third cumulants, which matter here, have no stationary value")
    else:
        before = None if plain is None else squared_error(s, plain)
        bias = float(found.theta @ found.theta)
        reliability = neglected(s, local, map, before, squared_error(s, found), bias)
    return Prediction(
        cov_theta=theta_covariance(s, found),
        bias=found.theta,
        bias_xi=found.ahead.copy(),
        curve=None if rounds is None else small_error_curve(s, local, rounds),
        reliability=reliability,
    )


def small_error_curve(s: Setting, local: LocalRound, rounds: int) -> Array:
    """E‖θ_t − θ*‖² for t = 0, ..., rounds; of ridge in long rounds by nodes among the steps, which are checked."""
    long_round = s.quadratic and s.H > MOST_STEPS_OF_CURVES and plateau_is_small(s)
    if long_round and not s.has_privacy_noise:
        method = (Scaffold if s.scaffold else FedAvg)(step_size=s.gamma, local_steps=s.H)
        return error_curve(family_setting(s.problem, method, s.batches), rounds)
    return np.add(*small_curve(s, local, rounds))


def skewed_plateau(s: Setting, local: LocalRound, plain: Moments | None) -> tuple[Moments, RoundMap | None]:
    """The plateau with third cumulants; without them, and no map, where only that exists."""
    try:
        return small_plateau(s, local, plain)
    except InvalidInput:
        if plain is None:
            raise
        return plain, None


def gaussian_plateau(s: Setting) -> Moments | None:
    """The plateau without third cumulants; None where there is none."""
    try:
        return small_plateau(s, LocalRound(s, skew=False))[0]
    except InvalidInput:
        return None


def squared_error(s: Setting, moments: Moments) -> float:
    """E‖θ − θ*‖², the expected squared distance of the server's model to the optimum."""
    return float(np.trace(theta_covariance(s, moments)) + moments.theta @ moments.theta)
