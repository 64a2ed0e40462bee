"""How many rounds it takes until the beginning of a run is forgotten."""

import numpy as np

from fedscaffold.core.types import Array
from fedscaffold.theory.prediction.local_steps import divided
from fedscaffold.theory.prediction.setting import Setting

LARGEST_DENSE = 300  # numbers in the state whose eigenvalues are all found
ITERATIONS, LAST = 300, 100  # of the power method for larger ones, and those whose growth is looked at


def rounds_to_forget(s: Setting) -> float:
    """1/(1 − ρ) with ρ the spectral radius of a round without noise near θ*; inf where it does not contract.

    The model may forget at once while the control variates of long rounds keep what they were for γHλ rounds. For
    large states the power method says it roughly, and a little too low.
    """
    g = 1.0 - s.gamma * s.at_optimum.lam
    with np.errstate(over="ignore"):
        power = g**s.H
    if not np.isfinite(power).all():
        return np.inf
    kept = 1.0 - divided(g, power, 1.0, s.H) / s.H
    radius = largest_eigenvalue(s, power, kept) if g.size <= LARGEST_DENSE else growth(s, power, kept)
    return 1.0 / (1.0 - radius) if radius < 1.0 else np.inf


def after_a_round(s: Setting, power: Array, kept: Array, states: Array) -> Array:
    """What a round makes of states (N, d, m): η_c = θ + γHξ_c as in `moments.state`; of FedAvg θ for all c."""
    U = s.at_optimum.U

    def times(factors: Array, vectors: Array) -> Array:
        return np.asarray(U @ (factors[..., None] * (np.swapaxes(U, 1, 2) @ vectors)))

    mean = np.broadcast_to(np.tensordot(s.problem.weights, states, axes=1), states.shape)
    if s.scaffold:
        return times(kept, states - mean) + times(power, mean)
    return np.broadcast_to(np.tensordot(s.problem.weights, times(power, mean), axes=1), states.shape)


def largest_eigenvalue(s: Setting, power: Array, kept: Array) -> float:
    """The spectral radius of a round."""
    N, d = power.shape
    matrix = after_a_round(s, power, kept, np.eye(N * d).reshape(N, d, N * d)).reshape(N * d, N * d)
    return float(np.abs(np.linalg.eigvals(matrix)).max())


def growth(s: Setting, power: Array, kept: Array) -> float:
    """By what factor some state grows in a round after many rounds."""
    now, lengths = np.random.Generator(np.random.SFC64(0)).normal(size=(*power.shape, 1)), []
    for _ in range(ITERATIONS):
        now = after_a_round(s, power, kept, now / (np.linalg.norm(now) + np.finfo(float).tiny))
        lengths.append(float(np.linalg.norm(now)))
    return float(np.exp(np.mean(np.log(np.array(lengths[-LAST:]) + np.finfo(float).tiny))))
