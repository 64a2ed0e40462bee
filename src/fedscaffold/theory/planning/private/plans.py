"""What a plan under a privacy budget says, and several of them."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from fedscaffold.core.display.figures import new_axes, plain_grid
from fedscaffold.core.display.summaries import Summarised
from fedscaffold.core.privacy import RecordLevel
from fedscaffold.core.random.batches import Sampling
from fedscaffold.core.types import Array
from fedscaffold.methods import Scaffold

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True, kw_only=True, repr=False)
class PrivatePlan(Summarised):
    """How to spend a privacy budget: the result of `fedscaffold.plan(problem, epsilon=..., delta=...)`.

    Attributes
    ----------
    epsilon, delta
        The budget of every client's records.
    method, rounds, batch_size, sampling, privacy
        What `fedscaffold.run` takes.
    predicted_mse
        E‖θ_T − θ*‖² that is predicted from θ_0 = 0.
    curve
        The same after each round, (rounds + 1,). Not part of ==.

    Examples
    --------
    >>> import numpy as np
    >>> import fedscaffold as fs
    >>> X = np.random.default_rng(0).normal(size=(2, 100, 2))
    >>> problem = fs.problems.Ridge(X, X.sum(axis=2), l2=0.1)
    >>> plan = fs.plan(problem, epsilon=4.0, delta=1e-3, max_rounds=5)
    >>> plan.rounds <= 5, plan.curve.size == plan.rounds + 1
    (True, True)
    """

    epsilon: float
    delta: float
    method: Scaffold
    rounds: int
    batch_size: int | None
    sampling: Sampling
    privacy: RecordLevel
    predicted_mse: float
    curve: Array = field(compare=False)

    def explain(self) -> str:
        """The plan as a text of a few sentences."""
        H = self.method.uniform_local_steps
        return (
            f"Run Scaffold with step_size={self.method.step_size:.4g}, local_steps={H}, for {self.rounds:,} "
            f"rounds, clip={self.privacy.clip:.4g} and noise_multiplier={self.privacy.noise_multiplier:.4g}.\n"
            f"All {H * self.rounds:,} steps together are ({self.epsilon:g}, {self.delta:g})-differentially "
            f"private for every record.\nPredicted squared error after the last round: "
            f"{self.predicted_mse:.4g}; without any step it is {self.curve[0]:.4g}.\n"
            "The plan itself has read the records, which no budget covers: make it with records that may be known."
        )

    def _facts(self) -> dict[str, object]:
        return {
            "epsilon": f"{self.epsilon:g}",
            "delta": f"{self.delta:g}",
            "clip": f"{self.privacy.clip:.4g}",
            "noise_multiplier": f"{self.privacy.noise_multiplier:.4g}",
            "step_size": f"{self.method.step_size:.4g}",
            "local_steps": self.method.local_steps,
            "rounds": self.rounds,
            "predicted_mse": f"{self.predicted_mse:.4g}",
        }

    def _title(self) -> str:
        return "Plan under a privacy budget"


@dataclass(frozen=True, repr=False)
class PrivatePlans(Summarised):
    """Plans for several budgets: what ε would buy.

    Attributes
    ----------
    plans
        One for each ε, in the order that was asked for.

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

    plans: tuple[PrivatePlan, ...]

    def explain(self) -> str:
        """The plans one after another."""
        return "\n\n".join(f"ε = {one.epsilon:g}\n{one.explain()}" for one in self.plans)

    def plot(self, ax: "Axes | None" = None) -> "Axes":
        """Draw the predicted squared error against ε; needs matplotlib.

        Parameters
        ----------
        ax
            Axes to draw on; those of a new figure by default.
        """
        axes = new_axes(ax)
        ordered = sorted(self.plans, key=lambda one: one.epsilon)
        budgets, errors = [one.epsilon for one in ordered], [one.predicted_mse for one in ordered]
        axes.loglog(budgets, errors, "o-", color="#0072B2", label="Scaffold, planned for each budget")
        axes.set_xticks(budgets, [f"{budget:g}" for budget in budgets])
        axes.set_xticks([], minor=True)
        plain_grid(axes)
        axes.axhline(float(ordered[0].curve[0]), color="#999999", lw=1.0, label="no step at all")
        axes.set_xlabel("privacy budget ε")
        axes.set_ylabel("predicted squared error")
        axes.legend(frameon=False)
        return axes

    def _facts(self) -> dict[str, object]:
        return {f"mse at ε = {one.epsilon:g}": f"{one.predicted_mse:.4g}" for one in self.plans}

    def _title(self) -> str:
        return "Plans under privacy budgets"
