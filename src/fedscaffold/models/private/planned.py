"""Settings of a fit under a privacy budget, chosen without a look at the table.

Numbers of rows, columns and their bounds are public. Clip, step size and number of steps are those of the least
error that a quadratic model predicts for simulated records of that size. The step size is at most 1/L for columns
of mean square 1 that are perfectly correlated, whatever the simulated ones are.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedscaffold.core.errors import InvalidInput, Option
from fedscaffold.core.privacy import RecordLevel
from fedscaffold.core.random.batches import Batches
from fedscaffold.methods import Scaffold
from fedscaffold.models.private.simulated import simulated_problem
from fedscaffold.privacy.accounting import noise_for
from fedscaffold.privacy.settings import PrivacySettings
from fedscaffold.theory.planning.private.clipped_quadratic import ClippedQuadratic

MOST_CLIENTS, MOST_ROWS = 3, 400  # of simulated records; noise is scaled to the table's own numbers
MOST_DIM = 500
MOST_ROUNDS, MOST_LOCAL_STEPS = 20, 64
CLIPS = (0.2, 0.35, 0.5, 0.7, 0.85, 1.0)  # quantiles of the gradients' norms
STEP_SIZES = np.geomspace(0.02, 1.0, 12)  # of the largest
CURVATURE = {"ridge": 1.0, "logistic": 0.25}  # the largest second derivative of the loss


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
    kind: str,
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
    kind
        "ridge" or "logistic".
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

    def noise(H: int, T: int) -> float:
        return noise_for(epsilon=settings.epsilon, delta=delta, steps=H * (T + spare_rounds))

    clip, gamma = settings.clip, settings.step_size
    H, T = settings.local_steps, settings.rounds
    error: float | None = None
    if clip is None or gamma is None or H is None or T is None:
        dim = n_coefficients(levels, intercept=intercept)
        if dim > MOST_DIM:
            raise InvalidInput(
                f"settings for a budget are chosen for up to {MOST_DIM} coefficients, and here are {dim:,}; give ",
                *(
                    Option("clip"),
                    ", ",
                    Option("step_size"),
                    ", ",
                    Option("local_steps"),
                    " and ",
                    Option("rounds"),
                ),
            )
        clients = min(len(rows), MOST_CLIENTS)
        each = max(2, min(MOST_ROWS, round(rows.sum() / clients)))
        problem = simulated_problem(kind, levels, clients=clients, rows=each, l2=l2, intercept=intercept)
        # noise of the mean of all rows' gradients: σ √N / n, here with other N and n
        factor = math.sqrt(len(rows)) / rows.sum() * each * math.sqrt(clients)
        largest = 1.0 / (CURVATURE[kind] * (len(levels) + int(intercept)) + l2)
        clips = _gradient_norms(problem) if clip is None else [clip]
        models = [ClippedQuadratic.of(problem, Batches(), own) for own in clips]
        size = float(np.sum(np.square(problem.optimum())))
        best = math.inf
        for local, rounds in _numbers_of_steps(H, T):
            blurred = factor * noise(local, rounds)
            for model in models:
                for step in largest * STEP_SIZES if gamma is None else [gamma]:
                    found = model.error(float(step), local * rounds, blurred)
                    if found < best:
                        best, chosen = found, (model.clip, float(step), local, rounds)
        if not math.isfinite(best):
            raise InvalidInput("no settings were found for this budget; give a larger ", Option("epsilon"))
        (clip, gamma, H, T), error = chosen, best / size
    return PublicPlan(
        epsilon=settings.epsilon,
        delta=delta,
        method=Scaffold(step_size=gamma, local_steps=H),
        rounds=T,
        privacy=RecordLevel(clip=clip, noise_multiplier=noise(H, T)),
        spare_rounds=spare_rounds,
        predicted_error=error,
    )


def n_coefficients(levels: Sequence[int], *, intercept: bool = True) -> int:
    """Number of coefficients, where features have so many values each; 0 for numbers."""
    return sum(count - 1 if count else 1 for count in levels) + int(intercept)


def _numbers_of_steps(H: int | None, T: int | None) -> Iterator[tuple[int, int]]:
    """Local steps and rounds to choose from: as few local steps as the number of rounds allows."""
    if H is not None:
        yield from ((H, t) for t in ([T] if T is not None else range(1, MOST_ROUNDS + 1)))
        return
    most = MOST_ROUNDS if T is None else T
    for total in np.unique(np.geomspace(1, MOST_LOCAL_STEPS * most, 24).astype(int)).tolist():
        local = -(-total // most)
        yield local, T or max(1, total // local)


def _gradient_norms(problem: Any) -> list[float]:
    """Quantiles of the norms of records' gradients at θ* and at 0, between which runs move."""
    norms, points = np.linalg.norm(problem.x, axis=1), (problem.optimum(), np.zeros(problem.dim))
    at = [np.abs(problem.d1(problem.x @ theta, problem.y)) * norms for theta in points]
    return sorted({float(q) for each in at for q in np.quantile(each, CLIPS) if q > 0.0})
