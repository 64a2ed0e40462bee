"""Batch sizes for tables: the plan that is predicted to take the least time."""

from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedscaffold.core.errors import InvalidInput, OutOfReach
from fedscaffold.planning.planner import plan
from fedscaffold.planning.plans import Plan

BatchSize = int | None | Literal["auto"]
BATCH = 64  # rows, if nothing is planned and clients have many
MAX_ROUNDS = 20_000
MAX_LOCAL_STEPS = 8192
SMALL_CLIENT = 512  # rows on average: up to here a full gradient is cheap, and has no noise
CANDIDATES = (64, 512, 4096)
# Seconds on one core, as `python -m benchmarks.table_steps` measured them. Only their ratios matter.
DRAWN_ROW_SECONDS = 9.3e-9  # a row of a batch, which is drawn and read from anywhere
ROW_SECONDS = 1.7e-9  # a row if all are read in order
NUMBER_SECONDS = 0.52e-9  # each coordinate of a row
ROUND_SECONDS = 10 * 1.45e-4  # ten simulated rounds: a real federation pays for rounds, but plans of long ones err


class BatchPlan(NamedTuple):
    """A plan, and the batch size that it is for; None for all of a client's rows."""

    batch_size: int | None
    plan: Plan


def candidate_batches(sizes: NDArray[np.int64]) -> list[int | None]:
    """Return batch sizes to choose from: all rows, and batches of at most half of the mean number of rows.

    Only all rows if clients have at most 512 on average.
    """
    mean = float(sizes.mean())
    return [None] if mean <= SMALL_CLIENT else [None, *(size for size in CANDIDATES if 2 * size <= mean)]


def automatic_batch(sizes: NDArray[np.int64]) -> int | None:
    """Return the batch size if nothing is planned: None (all rows) if that is cheap, else 64."""
    return None if sizes.mean() <= SMALL_CLIENT else BATCH


def out_of_reach(error: InvalidInput, tolerance: float) -> InvalidInput:
    """Return a planner's error with advice for a caller who asked for a tolerance."""
    return InvalidInput(
        f"no plan reaches a tolerance of {tolerance:g} ({error}); pass a larger tolerance=..., "
        "larger batches with batch_size=..., or a larger penalty with l2=..."
    )


def costs_in_seconds(problem: Any, batch_size: int | None) -> dict[str, float]:
    """Return the predicted time of a round and of a local step of all clients, by the names of `theory.plan`."""
    rows = int(problem.sizes.sum()) if batch_size is None else batch_size * problem.n_clients
    each = ROW_SECONDS if batch_size is None else DRAWN_ROW_SECONDS
    return {"round_cost": ROUND_SECONDS, "gradient_cost": rows * (each + NUMBER_SECONDS * problem.dim)}


def fastest_plan(problem: Any, batch_sizes: list[int | None], **goal: Any) -> BatchPlan:
    """Return the first-order plan of the least predicted time, over local steps and some batch sizes.

    Parameters
    ----------
    problem
        The problem of a table.
    batch_sizes
        Batch sizes to choose from; None for all rows.
    goal
        target_mse and optimum, and perhaps max_local_steps and max_rounds.

    Returns
    -------
    BatchPlan
        The plan's cost is in seconds.

    Raises
    ------
    OutOfReach
        If no batch size reaches the target.
    """
    costs: list[tuple[int | None, Any]] = [(size, costs_in_seconds(problem, size)) for size in batch_sizes]
    most: Any = {"max_rounds": goal.pop("max_rounds", None) or MAX_ROUNDS}
    most["max_local_steps"] = goal.pop("max_local_steps", None) or MAX_LOCAL_STEPS
    best: BatchPlan | None = None
    refused: OutOfReach | None = None
    for size, cost in sorted(costs, key=lambda each: each[1]["gradient_cost"]):
        if best is not None:  # no plan of more rounds is faster, whatever its local steps
            most["max_rounds"] = min(most["max_rounds"], int(best.plan.cost / sum(cost.values())))
        if not most["max_rounds"]:
            break
        try:
            found = plan(problem, mode="first_order", batch_size=size, **cost, **most, **goal)
        except OutOfReach as error:
            refused = error
            continue
        if best is None or found.cost < best.plan.cost:
            best = BatchPlan(size, found)
    if best is None:
        assert refused is not None  # as there is at least one batch size
        raise refused
    return best
