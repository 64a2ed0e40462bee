"""Settings of a fit under a privacy budget, chosen without a look at the table.

Numbers of rows, columns and their bounds are public. Clip, step size and number of steps are those of the least
error in noisy runs on simulated records of that size.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.privacy import RecordLevel
from fedscaffold.data.public import PublicTarget
from fedscaffold.methods import Scaffold
from fedscaffold.models.private.search import PublicSearch
from fedscaffold.models.private.simulated import n_coefficients
from fedscaffold.privacy.accounting import noise_for
from fedscaffold.privacy.settings import PrivacySettings

MOST_DIM = 500


@dataclass(frozen=True, kw_only=True)
class PublicPlan:
    """How a privacy budget is spent, decided from public facts alone.

    Attributes
    ----------
    epsilon, delta
        The budget of every row.
    method, rounds, privacy
        What is run: Scaffold on all rows, with clipping and noise in every local step.
    spare_rounds
        Rounds for which the noise suffices beyond these.
    predicted_error
        E‖θ − θ*‖² / ‖θ*‖² that is predicted for simulated records of this size; None where all settings were
        given.
    """

    protects: ClassVar[str] = "every row"

    epsilon: float
    delta: float
    method: Scaffold
    rounds: int
    privacy: RecordLevel
    spare_rounds: int = 0
    predicted_error: float | None = None

    @property
    def steps(self) -> int:
        """Noisy steps that each client takes."""
        return self.method.uniform_local_steps * self.rounds

    def to_json(self) -> dict[str, Any]:
        """The plan as values that JSON can hold."""
        return {
            "epsilon": self.epsilon,
            "delta": self.delta,
            "protects": self.protects,
            "clip": self.privacy.clip,
            "noise_multiplier": self.privacy.noise_multiplier,
            "step_size": self.method.step_size,
            "local_steps": self.method.local_steps,
            "rounds": self.rounds,
        }

    def explain(self) -> str:
        """The plan as a text of a few sentences."""
        text = (
            f"Scaffold with step size {self.method.step_size:.3g}, {self.method.uniform_local_steps} local steps "
            f"on all rows and {self.rounds} rounds; every row's gradient is clipped to norm "
            f"{self.privacy.clip:.3g}, and every step gets noise of {self.privacy.noise_multiplier:.3g} times "
            f"that. All steps together are ({self.epsilon:g}, {self.delta:.2g})-differentially private for every "
            "row."
        )
        if self.predicted_error is None:
            return f"{text} These settings were given."
        return (
            f"{text} Settings were chosen with simulated rows of the same number and columns, for which the "
            f"coefficients' error is predicted as {math.sqrt(self.predicted_error):.0%} of their length."
        )


def public_plan(
    target: PublicTarget,
    levels: Sequence[int],
    sizes: NDArray[np.int64] | list[int],
    settings: PrivacySettings,
    *,
    l2: float,
    intercept: bool = True,
    spare_rounds: int = 0,
) -> PublicPlan:
    """Settings for a budget; those that were given stay.

    Parameters
    ----------
    target
        What is known of the target.
    levels
        For each feature the number of its values; 0 for numbers.
    sizes
        Rows of each client.
    settings
        The budget, and what was decided already.
    l2
        Strength of the penalty.
    intercept
        Whether there is one.
    spare_rounds
        Rounds for which the noise shall suffice beyond the planned ones.
    """
    delta, rows = settings.delta_for(sizes), np.asarray(sizes, dtype=np.float64)
    clip, gamma = settings.clip, settings.step_size
    H, T = settings.local_steps, settings.rounds
    error: float | None = None
    if clip is None or gamma is None or H is None or T is None:
        dim = target.vectors * n_coefficients(levels, intercept=intercept)
        if dim > MOST_DIM:
            raise InvalidInput(
                f"settings for a budget are chosen for up to {MOST_DIM} coefficients, got {dim:,}; pass "
                "clip=..., step_size=..., local_steps=... and rounds=..."
            )
        search = PublicSearch(
            target, levels, rows, settings, delta=delta, l2=l2, intercept=intercept, spare_rounds=spare_rounds
        )
        chosen, error = search.best()
        if not math.isfinite(error):
            raise InvalidInput("no settings were found for this budget; pass a larger epsilon=...")
        clip, gamma, H, T = chosen.clip, chosen.step_size, chosen.local_steps, chosen.rounds
    noise = noise_for(epsilon=settings.epsilon, delta=delta, steps=H * (T + spare_rounds))
    return PublicPlan(
        epsilon=settings.epsilon,
        delta=delta,
        method=Scaffold(step_size=gamma, local_steps=H),
        rounds=T,
        privacy=RecordLevel(clip=clip, noise_multiplier=noise),
        spare_rounds=spare_rounds,
        predicted_error=error,
    )
