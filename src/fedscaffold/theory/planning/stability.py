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
from fedscaffold.theory.client_blocks import ClientBlock, for_blocks
from fedscaffold.theory.prediction.setting import Setting

GROWN = 4.0  # by which factor second moments may grow in a round
MARGIN = 1.5  # times a step size: so far moments must stay bounded, or means would be those of rare, large errors
STEP_SIZES = 2.0 ** -np.arange(0.0, 10.0, 0.5)  # times 4/L
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
        points = np.broadcast_to(base.optimum, (some.size, 1, d))

        def noise(cov: Array) -> Array:
            found = np.empty_like(cov)

            def work(block: ClientBlock) -> None:
                at = np.searchsorted(some, block.clients)
                found[at] = averages.over_clouds(block, points[at], cov[at][:, None], factors[at]).noise[:, 0]

            for_blocks(base.problem, work, clients=some)
            return found

        resting = noise(np.zeros_like(G))
        gammas, found = 4.0 / float(lam.max()) * STEP_SIZES, []
        for gamma in gammas:
            step = np.eye(d) - gamma * G
            M, ratio = np.broadcast_to(np.eye(d) / d, G.shape), np.zeros(some.size)
            for _ in range(POWER_STEPS):
                M = step @ M @ step + gamma**2 * (noise(M) - resting)
                ratio = np.trace(M, axis1=1, axis2=2)
                M = M / np.maximum(ratio, 1e-300)[:, None, None]
            found.append(float(ratio.max()))
            if found[-1] < 1.0:
                break
        return cls(gammas[: len(found)], np.array(found))

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
