"""The settings of a run, checked once and handed down as one object."""

import os
import time
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike

from fedscaffold.core.checks import check_problem_and_method, given, numbers, seed_number, whole_number
from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.machine import check_memory
from fedscaffold.core.privacy import Privacy
from fedscaffold.core.protocols import Availability, Engine, HasInitialModel, Method, Problem
from fedscaffold.core.random.stream import WORDS_PER_ROUND, Batches, Sampling
from fedscaffold.core.types import Array
from fedscaffold.engines import choose_engine
from fedscaffold.simulation.block import takes_anchor
from fedscaffold.simulation.protection import check_privacy


@dataclass(frozen=True, kw_only=True, eq=False)
class RunSetup:
    """Everything that the rounds of a run depend on; `dataclasses.replace` makes the setup of another chain."""

    problem: Problem
    method: Method
    engine: Engine
    theta: Array  # initial models, (repetitions, dim)
    batches: Batches = field(default_factory=Batches)
    seed: int = 0
    control_variates: ArrayLike | None = None  # initial ones, (n_clients, dim); None for the method's
    rounds: int = 0  # T; 0 if the caller counts rounds itself
    limit: float = np.inf  # absolute value of θ beyond which the run counts as diverged; NaN always does
    first_step: int = 0  # local steps draw as this step and the next ones, so that two chains may share draws
    folder: str | os.PathLike[str] | None = None  # of client state; None to keep it in memory or workers
    availability: Availability | None = None
    privacy: Privacy | None = None
    began: float = field(default_factory=time.perf_counter)  # by `time.perf_counter`


def validate_run(
    problem: Problem,
    method: Method,
    *,
    rounds: int,
    batch_size: int | None,
    seed: int,
    repetitions: int,
    engine: str | Engine,
    theta0: ArrayLike | None,
    sampling: Sampling,
    control_variates0: ArrayLike | None = None,
    client_state_dir: str | os.PathLike[str] | None = None,
    availability: Availability | None = None,
    privacy: Privacy | None = None,
) -> RunSetup:
    """Check the arguments of `fedscaffold.run` before any work, and return them as one object.

    Raises
    ------
    InvalidInput
        If an argument cannot be used, or if arguments do not fit each other.
    """
    check_problem_and_method(problem, method)
    rounds = whole_number("rounds", rounds, least=1)
    repetitions = whole_number("repetitions", repetitions, least=1)
    seed = seed_number("seed", seed)
    batches = Batches(batch_size, sampling)
    batches.check_fits(problem.sizes)
    method.participants(problem.n_clients)  # raises if the method does not fit the number of clients
    if availability is not None:
        _check_availability(availability, problem.n_clients, privacy)
    local_steps = int(method.local_step_counts(problem.n_clients, np.full(1, 0.5)).max())
    check_draws(batches, local_steps)
    if privacy is not None:
        check_privacy(privacy, problem, method, local_steps)
    models = (
        f"the models of {repetitions:,} repetitions and {problem.n_clients:,} clients with dim={problem.dim:,}"
    )
    check_memory(models, 8 * repetitions * problem.n_clients * problem.dim)
    check_memory(f"what {rounds:,} rounds of {repetitions:,} repetitions record", 16 * rounds * repetitions)
    theta = starting_point(problem, theta0, repetitions)
    if control_variates0 is not None:
        method.init_clients(
            repetitions, problem.weights, problem.dim, control_variates0
        )  # raises if they do not fit
    return RunSetup(
        problem=problem,
        method=method,
        engine=choose_engine(engine, problem, anchored=takes_anchor(method, problem.dim)),
        theta=theta,
        batches=batches,
        seed=seed,
        control_variates=control_variates0,
        rounds=rounds,
        limit=divergence_limit(theta),
        folder=client_state_dir,
        availability=availability,
        privacy=privacy,
    )


def _check_availability(availability: Availability, n_clients: int, privacy: Privacy | None) -> None:
    if isinstance(availability, type) or not isinstance(availability, Availability):
        raise InvalidInput(
            f"availability must be one such as fedscaffold.simulation.Periodic(4), got {given(availability)}"
        )
    availability.available(0, n_clients)  # raises if it does not fit the number of clients
    if privacy is not None:
        raise InvalidInput(
            "the cost of privacy is known for clients that are drawn at random from all; give privacy or "
            "availability, not both"
        )


def check_draws(batches: Batches, local_steps: int) -> None:
    """Raise if a round draws more words than a client's stream has, or a batch more records than memory holds."""
    if batches.size is None:
        return
    if batches.size * local_steps > WORDS_PER_ROUND:
        raise InvalidInput(
            f"batch_size={batches.size:,} and {local_steps:,} local steps draw {batches.size * local_steps:,} "
            f"records in a round, but the random stream has {WORDS_PER_ROUND:,} for it; take fewer"
        )
    check_memory(
        f"batches of {batches.size:,} records", 64 * batches.size
    )  # bytes of a record's words and margins


def divergence_limit(theta: Array) -> float:
    """Return the absolute value of θ's entries beyond which a run that started from this θ counts as diverged."""
    return 1e15 * (1.0 + float(np.abs(theta).max()))  # float64 has no digit left for differences of size 1 there


def starting_point(problem: Problem, theta0: ArrayLike | None, repetitions: int) -> Array:
    """Return the initial models, (repetitions, dim): `theta0`, else the problem's own, else zero.

    A problem with a tree of parameters, such as `Differentiable`, takes such a tree too.
    """
    dim, start = problem.dim, None
    if isinstance(problem, HasInitialModel):
        start = problem.initial if theta0 is None else problem.ravel(theta0)
    elif theta0 is None:
        start = np.zeros(dim)
    if start is None:
        try:
            start = numbers(theta0)
        except (TypeError, ValueError) as error:
            raise InvalidInput(f"theta0 must hold numbers: {error}") from None
    if start.shape not in ((dim,), (repetitions, dim)):
        raise InvalidInput(f"theta0 must have shape ({dim},) or ({repetitions}, {dim}), got {start.shape}")
    if not np.isfinite(start).all():
        raise InvalidInput("theta0 holds NaN or infinite values")
    return np.broadcast_to(start, (repetitions, dim)).copy()
