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
from fedscaffold.models.private.fit import run_privately
from fedscaffold.models.private.planned import public_plan
from fedscaffold.privacy.settings import PrivacySettings, refuse_beside_epsilon
from fedscaffold.problems.families import Kind
from fedscaffold.sklearn.base import Federated
from fedscaffold.sklearn.tables import Scale, dense

WITHOUT = ("standardize", "trainer", "tolerance", "dispersion", "warm_start")


@dataclass(kw_only=True, eq=False, repr=False)
class PrivateFederated(Federated):
    """Base of the estimators that can be fitted under a privacy budget of every row.

    Parameters
    ----------
    epsilon
        ε of a privacy budget of every row; None for none. Under a budget Scaffold clips gradients of rows and adds
        noise from the operating system's generator to every step. There are no Newton steps and no standard errors,
        and `trained_` is None.
    delta
        δ of the budget, below one over the rows of every client; by default a tenth of that for the largest.
    clip
        Largest norm of a row's gradient under a budget; chosen by default.
    bounds
        Under a budget, the public ranges of the features, (low, high): two numbers, or two arrays with one number
        per column. They take the place of means and variances; values outside count as the range's end.
    target_bounds
        Under a budget, the public range (low, high) of y, or its classes.

    Attributes
    ----------
    privacy_
        After a fit under a budget, how it was spent: noise, clip and steps; `privacy_.explain()` says it in words.
    """

    epsilon: Any = None
    delta: Any = None
    clip: Any = None
    bounds: Any = None
    target_bounds: Any = None

    def _check_budget(self, **beside: Any) -> PrivacySettings | None:
        """Return the budget, checked before the rows are looked at; None without one."""
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
        whole_number("min_rows", self.min_rows, least=1)
        return PrivacySettings(epsilon=self.epsilon, delta=self.delta, clip=self.clip)

    def _solve_privately(
        self, kind: Any, target: PublicTarget, X: Any, y: Array, clients: Any, budget: PrivacySettings, *,
        l2: float, base: float | None = None, **more: Any,
    ) -> tuple[Array, Array]:  # fmt: skip
        """Return slopes (vectors, features) and intercepts (vectors,) for rows as they are; set attributes.

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
        self._fitted, self.trained_ = (), None
        self.privacy_, self.n_iter_ = plan, np.array([plan.rounds])
        return scale.to_rows(theta.reshape(target.vectors, -1))

    def summary(self, *args: Any, **options: Any) -> Summary:
        """Return coefficients with standard errors; see `fedscaffold.inference.summarise`."""
        check_is_fitted(self, "n_iter_")
        if not self._fitted:
            raise InvalidInput("standard errors need sums over the rows, which the privacy budget does not cover")
        return super().summary(*args, **options)


def public_target(kind: Kind, bounds: Any) -> PublicTarget:
    """Return a numeric target by its public range; raise if that does not fit the kind."""
    low, high = _ends("target_bounds", bounds, 1)
    try:
        return PublicTarget(kind=kind, ends=(float(low[0]), float(high[0])))
    except InvalidInput as error:
        raise InvalidInput(f"target_bounds: {error}") from None


def middle_and_sixth(low: Array, high: Array, *, centred: bool) -> tuple[Array, Array]:
    """Return middle and sixth of ranges; if nothing may be shifted, 0 and a third of the further end."""
    if centred:
        return low + 0.5 * (high - low), (high - low) / (2.0 * LIMIT)
    return np.zeros_like(low), np.maximum(np.abs(low), np.abs(high)) / LIMIT


def _ends(name: str, bounds: Any, length: int) -> tuple[Array, Array]:
    """Return the lower and upper ends of ranges, (length,) each."""
    try:
        low, high = (np.broadcast_to(np.asarray(end, dtype=np.float64), length) for end in bounds)
    except (TypeError, ValueError):
        raise InvalidInput(f"{name} must be (low, high): two numbers, or two arrays of {length} numbers") from None
    if not (np.isfinite(low) & np.isfinite(high) & (low < high)).all():
        raise InvalidInput(f"{name} must be finite, with low < high")
    return low, high
