"""From a table's problem to a planned run: standardise the target, find the optimum, plan γ, H and T."""

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedscaffold.core.checks import choice, positive, seed_number, set_fields, whole_number
from fedscaffold.core.errors import InvalidInput, OutOfReach
from fedscaffold.core.protocols import Problem
from fedscaffold.core.types import Array
from fedscaffold.data.encoded import EncodedProblem
from fedscaffold.inference.closing import Dispersion, check_dispersion
from fedscaffold.inference.tolerance import parse_tolerance
from fedscaffold.methods import Scaffold
from fedscaffold.models.model import Model, in_own_units
from fedscaffold.models.planning.aim import determined_optimum, squared_aim
from fedscaffold.models.planning.batches import SMALL_CLIENT, candidate_batches, fastest_plan
from fedscaffold.models.planning.distance import relative_distance, slope_length
from fedscaffold.models.planning.own_intercepts import with_own_intercepts
from fedscaffold.models.planning.target import standardize_target
from fedscaffold.planning import Plan

TOLERANCE = "se:0.05"
BATCH = 64
BatchSize = int | None | Literal["auto"]


def automatic_batch(sizes: NDArray[np.int64]) -> int | None:
    """Batch size where nothing is planned: None (all rows) where that is cheap, else 64."""
    return None if sizes.mean() <= SMALL_CLIENT else BATCH


@dataclass(frozen=True, kw_only=True)
class FitSettings:
    """Settings of `fedscaffold.models.fit`; step size, local steps and rounds that are None are planned.

    Parameters
    ----------
    tolerance
        How far the coefficients may be from those of the pooled model. "se:0.05": none by more than 5 % of its
        standard error. A number between 0 and 1: ‖β − β*‖ ≤ tolerance · ‖β*‖ before closing, with β the
        coefficients of standardised columns, the intercept left out.
    close
        Whether at most two Newton steps, from sums of gradients and Hessians, take the run's last θ to the
        optimum. With "se:..." the run then aims for 0.5 % of ‖β*‖ and leaves the rest to these steps.
    batch_size
        Rows in each stochastic gradient, None for all of a client's, or "auto": all where clients have at most
        512 rows on average, else what is predicted to take the least time, of all rows and batches of 64, 512 and
        4,096.
    step_size, local_steps, rounds
        γ, H and T.
    seed
        Seed of the rows that are drawn.
    client_intercepts
        Whether each client has an intercept of its own, as if there were one indicator column per client. It is
        fitted with the common slopes and never leaves the client.
    dispersion
        The factor of the variance in standard errors: None for that of the family (1 for classes, counts);
        "pearson" to estimate it, which makes that of counts a quasi-Poisson regression; or a number.

    Examples
    --------
    >>> import fedscaffold as fs
    >>> fs.models.FitSettings(tolerance=0.01, rounds=20).rounds
    20
    """

    tolerance: float | str = TOLERANCE
    close: bool = True
    batch_size: BatchSize = "auto"
    step_size: float | None = None
    local_steps: int | None = None
    rounds: int | None = None
    seed: int = 0
    client_intercepts: bool = False
    dispersion: Dispersion = None

    def __post_init__(self) -> None:
        set_fields(self, seed=seed_number("seed", self.seed), dispersion=check_dispersion(self.dispersion))
        _, number = parse_tolerance(self.tolerance)
        if not isinstance(self.tolerance, str):
            set_fields(self, tolerance=number)
        for name in ("close", "client_intercepts"):
            choice(name, getattr(self, name), (True, False))
        if self.step_size is not None:
            set_fields(self, step_size=positive("step_size", self.step_size))
        for name, value in (("local_steps", self.local_steps), ("rounds", self.rounds)):
            if value is not None:
                set_fields(self, **{name: whole_number(name, value, least=1)})
        if self.batch_size is not None and not (isinstance(self.batch_size, str) and self.batch_size == "auto"):
            set_fields(self, batch_size=whole_number("batch_size", self.batch_size, least=1))

    @property
    def standard_errors(self) -> float | None:
        """Largest optimisation error in standard errors; None where the tolerance is relative to ‖θ*‖."""
        unit, value = parse_tolerance(self.tolerance)
        return value if unit == "se" else None

    def batches_for(self, problem: Problem) -> list[int | None]:
        """Batch sizes to choose from for this problem."""
        return candidate_batches(problem.sizes) if self.batch_size == "auto" else [self.batch_size]

    def batch_for(self, problem: Problem) -> int | None:
        """Batch size for this problem where nothing is planned; None for all of a client's rows."""
        return automatic_batch(problem.sizes) if self.batch_size == "auto" else self.batch_size


@dataclass(frozen=True, kw_only=True, eq=False)
class PreparedProblem:
    """A table's problem, its optimum, and the squared distance to the optimum that a fit should reach.

    Attributes
    ----------
    problem
        With margins standardised: z = target_shift + target_scale · (what is fitted).
    optimum
        θ* of that problem, (dim,).
    batch_size
        Rows in each stochastic gradient; None for all of a client's.
    target_mse
        Squared distance to the optimum that the run aims for.
    target_shift, target_scale
        Mean and standard deviation of numbers, the logarithm of the mean rate and 1 for counts and amounts, 0 and
        1 for classes.
    client_intercepts
        Whether each client has an intercept of its own, which is a part of its rows' offsets.
    left_out
        Number of clients that were left out, since their target never varies beside an intercept of their own.
    pooled_seconds
        Time that finding the optimum took: Newton's method on all rows, as one would fit them in one place.
    """

    problem: EncodedProblem
    optimum: Array
    batch_size: int | None
    target_mse: float
    target_shift: float = 0.0
    target_scale: float = 1.0
    client_intercepts: bool = False
    left_out: int = 0
    pooled_seconds: float = 0.0

    def model(self, theta: Array, provenance: Mapping[str, Any] | None = None) -> Model:
        """The model of a θ of this problem, in the table's own units."""
        vectors = np.reshape(theta, (self.problem.vectors, self.problem.n_features))
        encoding, equations = in_own_units(
            self.problem.encoding, vectors, target_shift=self.target_shift, target_scale=self.target_scale
        )
        return Model(
            encoding=encoding,
            equations=equations,
            provenance=provenance or {},
            client_intercepts=self.client_intercepts,
        )

    def relative_distance(self, theta: Array) -> float:
        """‖β − β*‖ / ‖β*‖ of one θ of shape (dim,), with β its coefficients without the intercept."""
        return float(relative_distance(self.problem, theta, self.optimum))

    @property
    def aim(self) -> float:
        """The distance that the run aims for, ‖β − β*‖ / ‖β*‖."""
        return float(np.sqrt(self.target_mse)) / slope_length(self.problem, self.optimum)

    @property
    def loss_scale(self) -> float:
        """Factor that turns a loss of this problem into one in the target's own units."""
        return self.target_scale**2


@dataclass(frozen=True, kw_only=True, eq=False)
class PlannedFit(PreparedProblem):
    """A prepared problem with the method and number of rounds to run on it.

    Attributes
    ----------
    plan
        The plan that method and rounds were taken from; None where all of γ, H and T were given.
    method, rounds
        What will be run: the plan's, except where settings were given.
    planning_seconds
        Time that planning took, without that of finding the optimum.
    """

    plan: Plan | None
    method: Scaffold
    rounds: int
    planning_seconds: float = 0.0


def prepare_problem(problem: EncodedProblem, settings: FitSettings) -> PreparedProblem:
    """Standardise a numeric target, find θ*, and say how close to it the run should come."""
    problem, shift, scale = standardize_target(problem)
    left_out, began = 0, time.perf_counter()
    if settings.client_intercepts:
        problem, left_out = with_own_intercepts(problem)
    optimum = determined_optimum(problem)
    pooled_seconds = time.perf_counter() - began
    target_mse = squared_aim(problem, optimum, settings.tolerance, close=settings.close)
    if target_mse == 0.0:
        raise InvalidInput(
            "the features say nothing about the target: the best coefficients are all 0; choose other features"
        )
    return PreparedProblem(
        problem=problem,
        optimum=optimum,
        batch_size=settings.batch_for(problem),
        target_mse=target_mse,
        target_shift=shift,
        target_scale=scale,
        client_intercepts=settings.client_intercepts,
        left_out=left_out,
        pooled_seconds=pooled_seconds,
    )


def plan_fit(problem: EncodedProblem, settings: FitSettings) -> PlannedFit:
    """Prepare a problem, and plan what the settings leave open.

    Settings that are given replace the plan's; a smaller step size takes more rounds in proportion.
    """
    began = time.perf_counter()
    prepared = prepare_problem(problem, settings)
    gamma, H, T = settings.step_size, settings.local_steps, settings.rounds
    if gamma is not None and H is not None and T is not None:
        return PlannedFit(**vars(prepared), plan=None, method=Scaffold(step_size=gamma, local_steps=H), rounds=T)
    try:
        batch_size, planned = fastest_plan(
            prepared.problem,
            settings.batches_for(prepared.problem),
            optimum=prepared.optimum,
            target_mse=prepared.target_mse,
            max_local_steps=H,
        )
    except OutOfReach as error:
        raise out_of_reach(error, prepared.aim) from None
    given: dict[str, Any] = {"step_size": gamma, "local_steps": H}
    method = replace(planned.method, **{name: value for name, value in given.items() if value is not None})
    slower = max(1.0, planned.method.step_size / method.step_size)
    rounds = math.ceil(planned.rounds * slower) if T is None else T
    return PlannedFit(
        **{**vars(prepared), "batch_size": batch_size}, plan=planned, method=method, rounds=rounds,
        planning_seconds=time.perf_counter() - began - prepared.pooled_seconds,
    )  # fmt: skip


def out_of_reach(error: InvalidInput, tolerance: float) -> InvalidInput:
    """Return a planner's error with advice for a caller who asked for a tolerance."""
    return InvalidInput(
        f"no plan reaches a tolerance of {tolerance:g} ({error}); pass a larger tolerance=..., "
        "larger batches with batch_size=..., or a larger penalty with l2=..."
    )
