"""Plans: a method with its settings, a number of rounds, and the error that they are predicted to reach."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Literal

from fedscaffold.core.display import Summarised, new_axes, plain_grid
from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.privacy import RecordLevel
from fedscaffold.core.protocols import Method
from fedscaffold.core.random.stream import Sampling
from fedscaffold.core.types import Array
from fedscaffold.planning.prediction import draw_error_curve

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Mode = Literal["sharp", "first_order", "certified", "private"]


@dataclass(frozen=True, kw_only=True, repr=False)
class Plan(Summarised):
    """How to reach a target, or to spend a privacy budget: the result of `fedscaffold.plan`.

    Attributes
    ----------
    mode
        "sharp" (checked by `theory.predict`), "first_order", "certified" (proved) or "private" (a privacy budget).
    name
        Name of the method among `theory.METHODS`.
    method, rounds, batch_size, sampling, privacy
        Arguments of `fedscaffold.run`.
    after
        If the average of the iterates reaches the target, the number of first rounds that it leaves out: record
        `TailAverage(after=after)`. None if the last iterate does.
    target_mse
        The squared error to reach; None under a privacy budget.
    predicted_mse, standard_error, how
        Expected squared error in the end, its standard error, and how it is known: "exact", "measured",
        "first order", or "proved", an upper bound.
    n_clients
        N, the number of clients of the problem.
    cost
        T (round_cost · vectors/2 + gradients · gradient_cost), with a client's vectors and gradients in a round.
    gradients_per_client
        Number of stochastic gradients that each client computes, on average.
    variance, squared_bias
        Parts of the error on the plateau of these settings, exact or to first order; None if unknown.
    max_useful_clients
        Number of clients at which the variance, which falls as 1/N, meets the bias that stays: more clients do not
        help. Infinite if no bias stays; None if the first-order expansion does not say.
    epsilon, delta
        The privacy budget of every client's records; None without one.
    curve
        Predicted squared error after rounds 0, ..., `rounds`; None for certified plans. Not part of ==.
    alternatives
        Plans of the other methods that were asked for, cheapest first.
    rejected
        Why each of the remaining methods has no plan, by name.

    Examples
    --------
    >>> import fedscaffold as fs
    >>> problem = fs.problems.RidgeStream(n_clients=6, dim=3)
    >>> plan = fs.plan(problem, target_mse=0.05, batch_size=10)
    >>> plan.name, plan.how, plan.predicted_mse <= 0.05
    ('scaffold', 'exact', True)
    >>> plan.curve.size == plan.rounds + 1
    True
    """

    mode: Mode
    name: str = "scaffold"
    method: Any
    rounds: int
    batch_size: int | None
    sampling: Sampling
    privacy: RecordLevel | None = None
    after: int | None = None
    target_mse: float | None
    predicted_mse: float
    standard_error: float = 0.0
    how: Literal["exact", "first order", "measured", "proved"]
    n_clients: int
    cost: float
    gradients_per_client: float
    variance: float | None = None
    squared_bias: float | None = None
    max_useful_clients: float | None = None
    epsilon: float | None = None
    delta: float | None = None
    curve: Array | None = field(default=None, compare=False)
    alternatives: tuple["Plan", ...] = ()
    rejected: Mapping[str, str] = field(default_factory=dict)

    @property
    def best(self) -> "Plan":
        """The plan itself, which is the cheapest of all methods that were asked for."""
        return self

    def __str__(self) -> str:
        tail = "" if self.after is None else f", averaging the models after round {self.after:,}"
        return f"{describe(self.method)}, for {self.rounds:,} rounds{tail}"

    def explain(self) -> str:
        """Describe the plan and the numbers behind it, a sentence or two per line.

        Returns
        -------
        str
            The lines.
        """
        everyone = self.method.participants(self.n_clients) == self.n_clients
        lines = [
            f"Run {self}.",
            f"Each client computes {self.gradients_per_client:,.0f} gradients and exchanges "
            f"{self.rounds * self.method.vectors_per_round:,} vectors"
            f"{'' if everyone else ' if it takes part in all'}.",
        ]
        if self.privacy is not None:
            lines.append(
                f"Take privacy=RecordLevel(clip={self.privacy.clip:.4g}, "
                f"noise_multiplier={self.privacy.noise_multiplier:.4g}): all steps together are "
                f"({self.epsilon:g}, {self.delta:g})-differentially private for every record."
            )
        lines += self._error()
        if self.privacy is not None:
            lines.append("The plan itself reads the records, and no budget covers that: plan with public records.")
        lines += [
            f"{each.name} costs {each.cost / self.cost:.3g} times as much: {each}." for each in self.alternatives
        ]
        return "\n".join(lines + [f"{name}: {why}." for name, why in self.rejected.items()])

    def _error(self) -> list[str]:
        """Return sentences about the error in the end, noise, bias and the number of clients."""
        if self.how == "proved":
            return [
                f"Theorem 4.9 proves a squared error of at most {self.predicted_mse:.4g} (target "
                f"{self.target_mse:g}). Proofs allow for the worst case: a sharp plan is far cheaper.",
                f"The linear speed-up is proved up to {self.max_useful_clients:,.0f} clients.",
            ]
        assert self.curve is not None
        goal = f"it begins at {self.curve[0]:.4g}" if self.target_mse is None else f"target {self.target_mse:g}"
        way = {"exact": "exact", "measured": "measured by simulated runs"}.get(self.how, "to first order")
        lines = [f"Predicted squared error in the end: {self._predicted} ({goal}; {way})."]
        if self.privacy is not None or self.after is not None:
            return lines
        if self.variance is not None and self.squared_bias is not None:
            about = "" if self.how == "exact" else " to first order"
            lines.append(
                f"After many more rounds the squared error would be{about} {self.variance:.3g} of noise and "
                f"{self.squared_bias:.3g} of bias."
            )
        if self.max_useful_clients is None:
            return [*lines, "How many more clients would help is not known for this method and loss."]
        if math.isinf(self.max_useful_clients):
            end = (
                "there is no noise either"
                if self.variance == 0.0
                else f"more than {self.n_clients:,} help without end"
            )
            return [*lines, f"No bias stays as clients are added: {end}."]
        already = "" if self.max_useful_clients > self.n_clients else "already "
        useful = f"{self.max_useful_clients:,.0f}; there are {already}{self.n_clients:,}"
        return [*lines, f"More clients help up to about {useful}."]

    @property
    def _predicted(self) -> str:
        return f"{self.predicted_mse:.4g}" + (f" ± {self.standard_error:.2g}" if self.standard_error else "")

    def plot(self, ax: "Axes | None" = None) -> "Axes":
        """Draw the predicted squared error by round, and the target.

        Parameters
        ----------
        ax
            matplotlib axes to draw on; by default the axes of a new figure.

        Returns
        -------
        Axes
            The axes.

        Raises
        ------
        InvalidInput
            If the plan is certified.
        """
        if self.curve is None:
            raise InvalidInput("certified plans have no curve to draw; plan with mode='sharp'")
        axes = new_axes(ax)
        draw_error_curve(axes, self.curve)
        if self.target_mse is not None:
            axes.axhline(self.target_mse, color="#009E73", lw=1.0, label="target")
        axes.legend(frameon=False)
        return axes

    def _facts(self) -> dict[str, object]:
        facts: dict[str, object] = {"method": describe(self.method), "rounds": self.rounds}
        if self.privacy is not None:
            facts |= {"epsilon": f"{self.epsilon:g}", "delta": f"{self.delta:g}", "privacy": repr(self.privacy)}
        facts |= {"predicted_mse": self._predicted}
        if self.target_mse is not None:
            facts |= {"target_mse": f"{self.target_mse:g}", "cost": f"{self.cost:.4g}"}
        return facts | {each.name: f"cost {each.cost:.4g}" for each in self.alternatives}

    def _title(self) -> str:
        return f"Plan, {self.mode}"


@dataclass(frozen=True, repr=False)
class Plans(Summarised):
    """Plans for several privacy budgets: the result of `fedscaffold.plan(problem, epsilon=[...], delta=...)`.

    Attributes
    ----------
    plans
        A plan for each ε, in the order of the request.

    Examples
    --------
    >>> import numpy as np
    >>> import fedscaffold as fs
    >>> X = np.random.default_rng(0).normal(size=(2, 100, 2))
    >>> problem = fs.problems.Ridge(X, X.sum(axis=2), l2=0.1)
    >>> found = fs.plan(problem, epsilon=[1.0, 8.0], delta=1e-3, max_rounds=3)
    >>> found.plans[0].predicted_mse > found.plans[1].predicted_mse
    True
    """

    plans: tuple[Plan, ...]

    def explain(self) -> str:
        """Describe the plans one after another.

        Returns
        -------
        str
            A paragraph per plan.
        """
        return "\n\n".join(f"ε = {one.epsilon:g}\n{one.explain()}" for one in self.plans)

    def plot(self, ax: "Axes | None" = None) -> "Axes":
        """Draw the predicted squared error against ε.

        Parameters
        ----------
        ax
            matplotlib axes to draw on; by default the axes of a new figure.

        Returns
        -------
        Axes
            The axes.
        """
        axes = new_axes(ax)
        errors = {one.epsilon: one.predicted_mse for one in self.plans if one.epsilon is not None}
        budgets = sorted(errors)
        label = "Scaffold, planned for each budget"
        axes.loglog(budgets, [errors[one] for one in budgets], "o-", color="#0072B2", label=label)
        axes.set_xticks(budgets, [f"{budget:g}" for budget in budgets])
        axes.set_xticks([], minor=True)
        plain_grid(axes)
        start = self.plans[0].curve
        if start is not None:
            axes.axhline(float(start[0]), color="#999999", lw=1.0, label="no step at all")
        axes.set_xlabel("privacy budget ε")
        axes.set_ylabel("predicted squared error")
        axes.legend(frameon=False)
        return axes

    def _facts(self) -> dict[str, object]:
        return {f"mse at ε = {one.epsilon:g}": f"{one.predicted_mse:.4g}" for one in self.plans}

    def _title(self) -> str:
        return "Plans under privacy budgets"


def describe(method: Method) -> str:
    """Return a method's name and the settings that differ from their defaults."""
    given = []
    for one in fields(method):  # type: ignore[arg-type]
        value = getattr(method, one.name)
        if value != one.default:
            shown = describe(value) if hasattr(value, "aggregate") else value
            given.append(f"{one.name}={shown:.4g}" if isinstance(value, float) else f"{one.name}={shown}")
    return f"{type(method).__name__} with {', '.join(given)}"
