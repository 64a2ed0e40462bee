"""Estimators under a privacy budget: columns scaled by public bounds, and noisy steps alone read the rows."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.utils.validation import check_is_fitted

from fedscaffold.core.checks import whole_number
from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.types import Array
from fedscaffold.data.public import LIMIT, PublicTarget
from fedscaffold.inference import Summary
from fedscaffold.models.private import run_privately
from fedscaffold.privacy.plan import public_plan
from fedscaffold.privacy.settings import PrivacySettings, refuse_beside_epsilon
from fedscaffold.problems.families import Kind
from fedscaffold.sklearn.base import Federated, dense
from fedscaffold.sklearn.scale import Scale

WITHOUT = (
    "standardize", "batch_size", "tolerance", "close", "dispersion", "warm_start", "random_state", "local_steps",
)  # fmt: skip


@dataclass(kw_only=True, eq=False, repr=False)
class PrivateFederated(Federated):
    """Base of the estimators that can be fitted under a privacy budget of every row.

    Parameters
    ----------
    epsilon
        ε of a privacy budget of every row; None for none. Under a budget gradients of rows are clipped and every
        step gets noise from the operating system's generator. There are no Newton steps and no standard errors,
        `plan_` says how the budget was spent, and `trace_` is None.
    delta
        δ of the budget, below one over the rows of every client; a tenth of that for the largest unless given.
    clip
        The largest norm of a row's gradient under a budget; chosen unless given.
    bounds
        Under a budget, the public ranges of the features, (low, high): two numbers, or two arrays with one number
        per column. They take the place of means and variances; what is outside counts as the range's end.
    target_bounds
        Under a budget, the public range (low, high) of y, or its classes.
    """

    epsilon: Any = None
    delta: Any = None
    clip: Any = None
    bounds: Any = None
    target_bounds: Any = None

    def _check_budget(self, **beside: Any) -> PrivacySettings | None:
        """The budget, refused before the rows are looked at; None without one."""
        if self.epsilon is None:
            for name in ("delta", "clip", "bounds", "target_bounds"):
                if getattr(self, name) is not None:
                    raise InvalidInput(f"{name} requires epsilon=...")
            return None
        usual = {name: type(self).__dataclass_fields__[name].default for name in WITHOUT}
        given = {name: getattr(self, name) for name in WITHOUT}
        refuse_beside_epsilon({**given, **beside}, {**usual, **dict.fromkeys(beside)})
        for name, what in (("bounds", "ranges of the features"), ("target_bounds", "range or classes of y")):
            if getattr(self, name) is None:
                raise InvalidInput(f"epsilon requires {name}=..., the public {what}")
        fixed = {name: getattr(self, name) for name in ("step_size", "rounds") if getattr(self, name) != "auto"}
        whole_number("min_rows", self.min_rows, least=1)
        return PrivacySettings(epsilon=self.epsilon, delta=self.delta, clip=self.clip, **fixed)

    def _solve_privately(
        self, kind: Any, target: PublicTarget, X: Any, y: Array, clients: Any, budget: PrivacySettings, *,
        l2: float, base: float | None = None, **more: Any,
    ) -> tuple[Array, Array]:  # fmt: skip
        """Slopes (vectors, features) and intercepts (vectors,) for rows as they are; sets what a fit leaves.

        Targets y are as they are fitted; `base` is added to all margins, and `more` goes to the kind of problem.
        """
        low, high = _ends("bounds", self.bounds, X.shape[1])
        scale = Scale(*middle_and_sixth(low, high, centred=self.fit_intercept))
        rows = self._clients(clients, X.shape[0])
        features = [np.clip(scale.apply(dense(X[own])), -LIMIT, LIMIT) for own in rows]
        if self.fit_intercept:
            features = [np.column_stack([table, np.ones(len(table))]) for table in features]
        sizes = [len(own) for own in rows]
        if base is not None:
            more["offset"] = [np.full(n, base) for n in sizes]
        with self._own_words():
            problem = kind(
                features, [y[own] for own in rows], l2=l2, weights=sizes, n_unpenalised=int(self.fit_intercept),
                **more,
            )  # fmt: skip
            plan = public_plan(target, [0] * X.shape[1], sizes, budget, l2=l2, intercept=bool(self.fit_intercept))
            theta = run_privately(problem, plan, self.verbose or False)
        self._solutions, self._coordinates = (), ()
        self.plan_, self.trace_, self.n_iter_ = plan, None, np.array([plan.rounds])
        return scale.to_rows(theta.reshape(target.vectors, -1))

    def summary(self, *args: Any, **options: Any) -> Summary:
        """Coefficients with standard errors; see `fedscaffold.inference.summarise`. None under a budget."""
        check_is_fitted(self, "n_iter_")
        if not self._solutions:
            raise InvalidInput("standard errors need sums over the rows, which the privacy budget does not cover")
        return super().summary(*args, **options)


def public_target(kind: Kind, bounds: Any) -> PublicTarget:
    """What is known of a numeric target, from its public range; refused where that does not fit the kind."""
    low, high = _ends("target_bounds", bounds, 1)
    try:
        return PublicTarget(kind=kind, ends=(float(low[0]), float(high[0])))
    except InvalidInput as error:
        raise InvalidInput(f"target_bounds: {error}") from None


def middle_and_sixth(low: Array, high: Array, *, centred: bool) -> tuple[Array, Array]:
    """Middle and sixth of ranges; where nothing may be shifted, 0 and a third of the end that is further away."""
    if centred:
        return low + 0.5 * (high - low), (high - low) / (2.0 * LIMIT)
    return np.zeros_like(low), np.maximum(np.abs(low), np.abs(high)) / LIMIT


def _ends(name: str, bounds: Any, length: int) -> tuple[Array, Array]:
    """The lower and upper ends of ranges, (length,) each."""
    try:
        low, high = (np.broadcast_to(np.asarray(end, dtype=np.float64), length) for end in bounds)
    except (TypeError, ValueError):
        raise InvalidInput(f"{name} must be (low, high): two numbers, or two arrays of {length} numbers") from None
    if not (np.isfinite(low) & np.isfinite(high) & (low < high)).all():
        raise InvalidInput(f"{name} must be finite, with low < high")
    return low, high
