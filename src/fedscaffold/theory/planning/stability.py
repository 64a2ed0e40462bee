"""Up to which step size local steps on quadratic losses stay bounded in mean square.

The second moment M of a client's distance to θ* becomes ΓMΓ + γ²{C_c(M) − C_c(0)} in a step, where C_c(M) is the
mean noise over a cloud of covariance M. Where this map grows, noise feeds on itself, and a round of many steps
explodes though its mean converges.
"""

import math
from dataclasses import dataclass

import numpy as np

from fedscaffold.core.arrays import evenly_spaced_clients
from fedscaffold.core.types import Array
from fedscaffold.theory.client_blocks import list_blocks
from fedscaffold.theory.prediction.setting import Setting

GROWN = 4.0  # by which factor second moments may grow in a round
MARGIN = 1.5  # times a step size: so far moments must stay bounded, or means would be those of rare, large errors
STEP_SIZES = 2.0 ** -np.arange(0.0, 10.0, 0.5)  # times 4/L
AT_ONCE = 4  # step sizes that are looked at together
POWER_STEPS = 16
LOUDEST, EVENLY = 8, 8  # clients looked at


@dataclass(frozen=True, eq=False)
class Stability:
    """Growth of second moments in a local step, the largest of some clients, for decreasing step sizes."""

    gammas: Array  # (k,), decreasing
    growth: Array  # (k,)

    @classmethod
    def of(cls, base: Setting) -> "Stability | None":
        """The growth of the clients of the largest curvatures and of evenly spaced ones; None if not quadratic."""
        if not base.quadratic:
            return None
        lam, N = base.at_optimum.lam, base.problem.n_clients
        some = np.union1d(np.argsort(lam.sum(axis=1))[-LOUDEST:], evenly_spaced_clients(N, min(EVENLY, N)))
        lam, U = lam[some], base.at_optimum.U[some]
        factors, averages = base.factors[some], base.averages
        G, d = (U * lam[:, None]) @ np.swapaxes(U, 1, 2), base.problem.dim
        blocks = list_blocks(base.problem, copies=AT_ONCE, clients=some)

        def noise(cov: Array) -> Array:
            """C_c(M) for M (k, m, d, d)."""
            found = np.empty_like(cov)
            for block in blocks:
                at = np.searchsorted(some, block.clients)
                points = np.broadcast_to(base.optimum, (at.size, cov.shape[1], d))
                found[at] = averages.over_clouds(block, points, cov[at], factors[at]).noise
            return found

        resting = noise(np.zeros((some.size, 1, d, d)))
        gammas, growth = 4.0 / float(lam.max()) * STEP_SIZES, np.empty(0)
        for begin in range(0, gammas.size, AT_ONCE):
            gamma = gammas[begin : begin + AT_ONCE, None, None]
            step = np.eye(d) - gamma * G[:, None]
            M, ratio = np.broadcast_to(np.eye(d) / d, step.shape), np.zeros(step.shape[:2])
            for _ in range(POWER_STEPS):
                M = step @ M @ step + gamma**2 * (noise(M) - resting)
                ratio = np.trace(M, axis1=2, axis2=3)
                M = M / np.maximum(ratio, 1e-300)[..., None, None]
            growth = np.append(growth, ratio.max(axis=0))
            bounded = np.flatnonzero(growth < 1.0)
            if bounded.size:
                growth = growth[: bounded[0] + 1]
                break
        return cls(gammas[: growth.size], growth)

    def limit(self, H: int) -> float:
        """About the largest γ for H local steps: with MARGIN times it, second moments grow by at most GROWN."""
        excess = H * np.log(np.maximum(self.growth, 1e-300)) - math.log(GROWN)
        within = np.flatnonzero(excess <= 0.0)
        k = int(within[0]) if within.size else excess.size - 1
        gamma = float(self.gammas[k])
        if within.size and k > 0:
            share = excess[k - 1] / (excess[k - 1] - excess[k])
            gamma *= float(self.gammas[k - 1] / self.gammas[k]) ** float(1.0 - share)
        return gamma / MARGIN
