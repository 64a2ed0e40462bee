"""Third cumulants of θ and of ξ_c from round to round.

θ gathers the curvature and the noise of all clients; ξ_c − ξ*_c those of its own client, less that client's
share in the mean. Mixed third cumulants of θ and ξ_c are left out: they vanish for one client and as 1/N for
many.
"""

import numpy as np

from fedscaffold.core.types import Array
from fedscaffold.theory.prediction.moments.local_round import RoundMap
from fedscaffold.theory.prediction.moments.state import beside_clients, theta_rows
from fedscaffold.theory.prediction.moments.third_order import symmetric, turned
from fedscaffold.theory.prediction.setting import Setting

DOUBLINGS = 60
SMALL = 1e-6


def skewness_sources(s: Setting, map: RoundMap, A: Array, cov: Array) -> tuple[Array, Array]:
    """What a round adds to κ₃(θ), (d, d, d), and to κ₃(ξ_c), (N, d, d, d); A and cov are those of the state x."""
    N, d = s.gradients.shape
    w, third = s.problem.weights, map.end.third
    assert third is not None
    after = beside_clients(s, theta_rows(s, A @ cov))  # Cov(θ⁺, y_c)
    own = w * s.own
    total = np.tensordot(w, turned(third.F, None, after, after), axes=1)
    total = total + np.tensordot(own, turned(third.X, after, None, None), axes=1)
    theta = symmetric(total) + np.tensordot(own * s.own, third.K, axes=1)
    if not s.scaffold:
        return theta, np.zeros((N, d, d, d))
    length, part = s.gamma * s.H, (1.0 - w)[:, None, None, None] / (s.gamma * s.H)
    B = map.end.B.copy()
    B[:, :, d:] += length * np.eye(d)
    reach = (B @ map.start.cov - after) / length  # Cov(ξ_c⁺, y_c)
    more = part * turned(third.F, None, reach, reach) + part**2 * turned(third.X, reach, None, None)
    return theta, symmetric(more) + part**3 * third.K


def skewness_steps(s: Setting, map: RoundMap) -> tuple[Array, Array]:
    """The linear maps of θ, (d, d), and of each ξ_c − ξ*_c, (N, d, d), in a round."""
    d = s.problem.dim
    theta = np.tensordot(s.problem.weights, map.end.B[:, :, :d], axes=1)
    return theta, np.eye(d) + map.end.B[:, :, d:] / (s.gamma * s.H)


def cubic_fixed_point(step: Array, source: Array) -> Array:
    """κ with κ = step step step κ + source, for steps (k, d, d) and sources (k, d, d, d), by doubling."""
    total = source
    for _ in range(DOUBLINGS):
        more = turned(total, step, step, step)
        total = total + more
        if np.abs(more).max() <= SMALL * np.abs(total).max():
            break
        step = step @ step
    return total
