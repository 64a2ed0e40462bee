"""Estimators under a privacy budget: columns scaled by public bounds, and noisy steps alone read the rows."""

from typing import Any

import numpy as np

from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.types import Array
from fedscaffold.data.public import LIMIT, PublicTarget
from fedscaffold.models.private import run_privately
from fedscaffold.privacy.plan import PrivatePlan, public_plan
from fedscaffold.privacy.settings import PrivacySettings, refuse_beside_epsilon
from fedscaffold.problems.families import Kind
from fedscaffold.sklearn.tables import Scale

WITHOUT = ("standardize", "trainer", "tolerance", "dispersion", "warm_start")  # stay at their defaults


def check_budget(model: Any, beside: dict[str, Any]) -> None:
    """Raise if an estimator's budget is wrong, incomplete, or `beside` it is an option that is not None."""
    if model.epsilon is None:
        for name in ("delta", "clip", "bounds", "target_bounds"):
            if getattr(model, name) is not None:
                raise InvalidInput(f"{name} requires epsilon=...")
        return
    usual = {name: type(model).__dataclass_fields__[name].default for name in WITHOUT}
    given = {name: getattr(model, name) for name in WITHOUT}
    refuse_beside_epsilon({**given, **beside}, {**usual, **dict.fromkeys(beside)})
    for name, what in (("bounds", "ranges of the features"), ("target_bounds", "range or classes of y")):
        if getattr(model, name) is None:
            raise InvalidInput(f"epsilon requires {name}=..., the public {what}")
    PrivacySettings(epsilon=model.epsilon, delta=model.delta, clip=model.clip)


def train_privately(model: Any, problem: Any, target: PublicTarget) -> tuple[PrivatePlan, Array]:
    """Return how an estimator spends its budget on a problem, and the coefficients."""
    intercept = bool(model.fit_intercept)
    levels = [0] * (problem.n_features - intercept)
    settings = PrivacySettings(epsilon=model.epsilon, delta=model.delta, clip=model.clip)
    plan = public_plan(target, levels, problem.sizes.tolist(), settings, l2=problem.l2, intercept=intercept)
    return plan, run_privately(problem, plan, model.verbose or False)


def public_target(kind: Kind, bounds: Any) -> PublicTarget:
    """Return a numeric target by its public range; raise if that does not fit the kind."""
    low, high = _ends("target_bounds", bounds, 1)
    try:
        return PublicTarget(kind=kind, ends=(float(low[0]), float(high[0])))
    except InvalidInput as error:
        raise InvalidInput(f"target_bounds: {error}") from None


def public_scale(name: str, bounds: Any, length: int, *, centred: bool) -> Scale:
    """Return middle and sixth of ranges; if nothing may be shifted, 0 and a third of the further end."""
    low, high = _ends(name, bounds, length)
    if centred:
        return Scale(low + 0.5 * (high - low), (high - low) / (2.0 * LIMIT))
    return Scale(np.zeros_like(low), np.maximum(np.abs(low), np.abs(high)) / LIMIT)


def _ends(name: str, bounds: Any, length: int) -> tuple[Array, Array]:
    """Return the lower and upper ends of ranges, (length,) each."""
    try:
        low, high = (np.broadcast_to(np.asarray(end, dtype=np.float64), length) for end in bounds)
    except (TypeError, ValueError):
        raise InvalidInput(f"{name} must be (low, high): two numbers, or two arrays of {length} numbers") from None
    if not (np.isfinite(low) & np.isfinite(high) & (low < high)).all():
        raise InvalidInput(f"{name} must be finite, with low < high")
    return low, high
