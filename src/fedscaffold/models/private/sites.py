"""Settings of a study whose budget protects whole sites, chosen without a word from them.

What a site sends is clipped, and how much that matters depends on how different sites are, which nobody may ask.
So clip, step size and numbers of steps are those of the least error in runs of the method itself on simulated
sites that differ from each other.
"""

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.privacy import ClientLevel, clipped_rows
from fedscaffold.core.types import Array
from fedscaffold.data.public import Bounds
from fedscaffold.methods import GradientScaffold
from fedscaffold.models.private.curvature import bounded_curvature, mean_squares
from fedscaffold.models.private.planned import MOST_DIM, PublicPlan
from fedscaffold.models.private.simulated import n_coefficients, simulated_sites
from fedscaffold.privacy.accounting import noise_for
from fedscaffold.privacy.settings import PrivacySettings

SITES, ROWS, RUNS = 24, 60, 12  # simulated
DIFFERENCE = 0.3  # of simulated sites
ROUNDS = (1, 2, 3, 4, 6, 8, 12, 16)
LOCAL_STEPS = (1, 4, 16)
STEP_SIZES = (0.25, 1.0)  # of the largest
CLIPS = (0.25, 0.5, 1.0)  # of the median norm of what simulated sites send first


@dataclass(frozen=True, kw_only=True)
class SitePlan(PublicPlan):
    """How a privacy budget of whole sites is spent, decided from public facts alone.

    Attributes
    ----------
    epsilon, delta
        The budget of every site.
    method, rounds, privacy
        What is run: Scaffold by sums of gradients on all rows, with clipping and noise in what sites send.
    spare_rounds, predicted_error
        As in `PublicPlan`.
    noise_in_mean
        Standard deviation of the noise in every coordinate of the mean over sites, in every round.
    """

    method: GradientScaffold  # type: ignore[assignment]
    privacy: ClientLevel  # type: ignore[assignment]
    noise_in_mean: float

    protects: ClassVar[str] = "every site"

    @property
    def steps(self) -> int:
        """Noisy messages that each site sends."""
        return self.rounds

    def explain(self) -> str:
        """The plan as a text of a few sentences."""
        text = (
            f"Scaffold by sums of gradients with step size {self.method.step_size:.3g}, {self.method.local_steps} "
            f"local steps on all rows and {self.rounds} rounds; what a site sends is clipped to norm "
            f"{self.privacy.clip:.3g}, and the mean over sites has noise of {self.noise_in_mean:.3g} in every "
            f"coordinate. All rounds together are ({self.epsilon:g}, {self.delta:.2g})-differentially private for "
            "every site's table as a whole."
        )
        if self.predicted_error is None:
            return f"{text} These settings were given."
        found = (
            f"{text} Settings were chosen with simulated sites that differ from each other, for which the "
            f"coefficients' error is {math.sqrt(self.predicted_error):.0%} of their length."
        )
        if self.predicted_error < 1.0:
            return found
        return f"{found} That is no better than a model of zeros: such a budget takes more sites."


def site_plan(
    bounds: Bounds,
    n_sites: int,
    settings: PrivacySettings,
    *,
    l2: float,
    threshold: int | None,
    spare_rounds: int = 0,
) -> SitePlan:
    """Settings for a budget of whole sites; a clip that was given stays.

    Parameters
    ----------
    bounds
        What is publicly known of the columns.
    n_sites
        Number of sites.
    settings
        The budget, and what was decided already.
    l2
        Strength of the penalty.
    threshold
        Of secure sums, in which sites add noise in parts; None where the coordinator sees every message.
    spare_rounds
        Rounds for which the noise shall suffice beyond the planned ones.
    """
    delta = settings.delta_for([n_sites], "sites")
    dim = n_coefficients(bounds.levels)
    if dim > MOST_DIM:
        raise InvalidInput(f"studies that protect sites have up to {MOST_DIM} coefficients, and here are {dim:,}")
    honest = None if threshold is None else n_sites - threshold + 1
    # of the mean over sites, for a clip of 1 and a noise multiplier of 1
    unit = 1.0 / math.sqrt(n_sites) if honest is None else 1.0 / math.sqrt(n_sites * honest)

    def noise(T: int) -> float:
        return noise_for(epsilon=settings.epsilon, delta=delta, steps=T + spare_rounds)

    runs = SimulatedRuns.of(bounds, l2)
    square, _ = mean_squares(bounds.levels, intercept=True)
    largest = 1.0 / (bounded_curvature(bounds.public_target, 0.0, square) + l2)
    best: tuple[float, float, float, int, int] = (math.inf, 0.0, 0.0, 0, 0)
    for H, share in itertools.product(LOCAL_STEPS, STEP_SIZES):
        gamma = share * largest
        norm = runs.first_norm(gamma, H)
        for clip in [settings.clip] if settings.clip is not None else [norm * factor for factor in CLIPS]:
            for T in ROUNDS:
                error = runs.error(gamma, H, T, clip, unit * clip * noise(T))
                best = min(best, (error, clip, gamma, H, T))
    error, clip, gamma, H, T = best
    if not math.isfinite(error):
        raise InvalidInput("no settings were found for this budget; pass a larger epsilon=...")
    privacy = ClientLevel(
        clip=clip, noise_multiplier=noise(T), summed=honest is not None, honest_clients=honest
    )  # fmt: skip
    return SitePlan(
        epsilon=settings.epsilon, delta=delta, method=GradientScaffold(step_size=gamma, local_steps=H), rounds=T,
        privacy=privacy, spare_rounds=spare_rounds, predicted_error=error, noise_in_mean=unit * clip * noise(T),
    )  # fmt: skip


@dataclass(frozen=True, eq=False)
class SimulatedRuns:
    """Runs of `GradientScaffold` on simulated sites, several at once, with noise in the mean over sites."""

    x: Array  # (sites, rows, dim)
    y: Array  # (sites, rows)
    slope: Callable[[Array, Array], Array]  # ℓ'(margin, target)
    penalty: Array  # (dim,)
    optimum: Array  # of all sites alike, (dim,)
    noise: Array  # standard normal numbers, (rounds, runs, dim)

    @classmethod
    def of(cls, bounds: Bounds, l2: float) -> "SimulatedRuns":
        """Sites with the columns that the bounds describe."""
        problem = simulated_sites(
            bounds.public_target, bounds.levels, sites=SITES, rows=ROWS, l2=l2, difference=DIFFERENCE
        )
        noise = np.random.default_rng(1).normal(size=(max(ROUNDS), RUNS, problem.dim))
        noise -= noise.mean(axis=1, keepdims=True)  # the choice among settings must not follow lucky draws
        noise /= noise.std(axis=1, keepdims=True)
        return cls(
            problem.x.reshape(SITES, ROWS, -1), problem.y.reshape(SITES, ROWS), problem.d1, problem.penalty,
            problem.optimum(), noise,
        )  # fmt: skip

    def sums(self, theta: Array, xi: Array, gamma: float, H: int) -> Array:
        """−γ times the sum of each site's gradients in H local steps from θ, (runs, sites, dim)."""
        start = np.broadcast_to(theta[:, None], (len(theta), SITES, theta.shape[1]))
        local = start
        for _ in range(H):
            margin = np.einsum("snd,rsd->rsn", self.x, local, optimize=True)
            slopes = self.slope(margin, self.y)
            gradient = np.einsum("snd,rsn->rsd", self.x, slopes, optimize=True) / ROWS + self.penalty * local
            local = local - gamma * (gradient + xi)
        return np.asarray(local + gamma * H * xi - start)

    def first_norm(self, gamma: float, H: int) -> float:
        """Median norm of what sites send first."""
        zeros = np.zeros((1, self.optimum.size))
        return float(np.median(np.linalg.norm(self.sums(zeros, np.zeros((1, 1, 1)), gamma, H), axis=2)))

    def error(self, gamma: float, H: int, T: int, clip: float, noise: float) -> float:
        """Mean of ‖θ_T − θ*‖² / ‖θ*‖² over the runs."""
        theta, xi = np.zeros((RUNS, self.optimum.size)), np.zeros((RUNS, SITES, self.optimum.size))
        with np.errstate(over="ignore", invalid="ignore"):
            for t in range(T):
                sent = clipped_rows(self.sums(theta, xi, gamma, H), clip)
                step = sent.mean(axis=1) + noise * self.noise[t]
                theta, xi = theta + step, (sent - step[:, None]) / (gamma * H)
        found = float(np.square(theta - self.optimum).sum(axis=1).mean() / np.square(self.optimum).sum())
        return found if math.isfinite(found) else math.inf
