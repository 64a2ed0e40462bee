"""When a run counts as diverged, and what the error says about it: round, client and a safe step size."""

from dataclasses import fields, is_dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np

from fedscaffold.core.errors import Diverged
from fedscaffold.core.protocols import Divisible, Method, Problem
from fedscaffold.core.random.batches import Batches
from fedscaffold.core.types import Array, WorstClient

EXPLODED = 1e15  # times 1 + the largest entry of the initial θ


@runtime_checkable
class LocalSmoothness(Protocol):
    """A problem whose smoothness is known only near the start, and is slow to measure for all clients."""

    smoothness_is_local: bool


def divergence_limit(theta: Array) -> float:
    """The absolute value of θ's entries beyond which a run that started from this θ counts as diverged."""
    return EXPLODED * (1.0 + float(np.abs(theta).max()))


def has_diverged(server: Any, limit: float) -> bool:
    """Whether an entry of θ is beyond the limit or not a number."""
    return not np.abs(server.theta).max() < limit


def diverged(
    method: Method,
    round: int,
    worst: WorstClient,
    *,
    problem: Problem | None = None,
    batches: Batches | None = None,
) -> Diverged:
    """The error that names the round, the client that went furthest and, given the problem, a safe step size."""
    safe, advice = 0.0, "No step size can be vouched for here; try a tenth of this one."
    if problem is not None and batches is not None:
        safe, advice = _safe_step_size(method, problem, batches, worst.client, advice)
    return Diverged(
        f"{type(method).__name__} diverged in round {round}: client {worst.client}'s model reached "
        f"{worst.size:.3g} with {_settings_of(method)}. {advice}",
        round=round,
        client=worst.client,
        safe_step_size=safe,
    )


def _safe_step_size(
    method: Method, problem: Problem, batches: Batches, client: int, otherwise: str
) -> tuple[float, str]:
    measured, estimated = problem, isinstance(problem, LocalSmoothness) and problem.smoothness_is_local
    if estimated and isinstance(problem, Divisible):
        measured = problem.subset([client])
    safe = method.safe_step_size(measured.smoothness(batches), problem.strong_convexity())
    if safe == 0.0:
        return safe, otherwise
    if method.step_size <= safe and not estimated:
        return safe, (
            f"The step size is not to blame, as {safe:.3g} is safe here: the problem's own numbers are so large "
            "that its solution lies beyond what a run takes for sound. Divide targets and features by their size."
        )
    if estimated:
        return safe, (
            f"Going by its curvature where it started, step_size={safe:.3g} should do; this is an estimate."
        )
    return safe, f"step_size={safe:.3g} is safe for this problem and batch size."


def _settings_of(method: Method) -> str:
    """step_size=0.05, local_steps=100 and every other setting that is not the default."""
    if not is_dataclass(method):
        return f"step_size={method.step_size:g}"
    chosen = ((field.name, getattr(method, field.name), field.default) for field in fields(method))
    return ", ".join(
        f"{name}={value:g}" if isinstance(value, float) else f"{name}={value}"
        for name, value, default in chosen
        if value != default
    )
