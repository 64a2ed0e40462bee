"""A plan: Scaffold with its settings, the number of rounds, and what they are predicted to reach."""

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from fedscaffold.core.display.figures import new_axes
from fedscaffold.core.display.summaries import Summarised
from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.types import Array
from fedscaffold.methods import Scaffold
from fedscaffold.theory.error_curves import draw_error_curve

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Mode = Literal["sharp", "first_order", "certified"]


@dataclass(frozen=True, kw_only=True, repr=False)
class Plan(Summarised):
    """How to reach a target: the result of `fedscaffold.plan`.

    Attributes
    ----------
    mode
        The model behind the plan: "sharp", "first_order" or "certified".
    target_mse
        The squared error to reach.
    method
        Scaffold with its step size and local steps.
    rounds
        T, the number of rounds.
    predicted_mse
        Expected squared error after the last round: predicted, or a proved upper bound (certified).
    n_clients
        N, the number of clients of the problem.
    max_useful_clients
        Beyond about this number more clients with the same step size and local steps do not help: there the part
        of the error that falls as 1/N meets the part that does not. Infinite where there is no such part, as for
        ridge and for rounds of one local step; None for first-order plans, which do not say. Local models are
        taken to be Gaussian here, which in short rounds of single records can change it by a fifth.
    cost
        T (round_cost + H gradient_cost).
    variance_part, bias_part
        The parts of the error on the plateau: noise, which falls as 1/N, and bias, which does not. None where the
        model does not know them.
    curve
        Predicted E‖θ_t − θ*‖² for t = 0, ..., rounds; None for certified plans. Not part of ==.

    Examples
    --------
    >>> import fedscaffold as fs
    >>> problem = fs.problems.RidgeStream(n_clients=6, dim=3)
    >>> plan = fs.plan(problem, target_mse=0.05, batch_size=10, mode="first_order")
    >>> plan.method.kind, plan.gradients_per_client == plan.rounds * plan.method.local_steps
    ('scaffold', True)
    >>> plan.curve.size == plan.rounds + 1
    True
    """

    mode: Mode
    target_mse: float
    method: Scaffold
    rounds: int
    predicted_mse: float
    n_clients: int
    max_useful_clients: float | None
    cost: float
    variance_part: float | None = None
    bias_part: float | None = None
    curve: Array | None = field(default=None, compare=False)

    @property
    def gradients_per_client(self) -> int:
        """Number of stochastic gradients that each client computes: H·T."""
        return self.method.uniform_local_steps * self.rounds

    def explain(self) -> str:
        """The plan and its reasons as a text of a few sentences."""
        gamma, H = self.method.step_size, self.method.uniform_local_steps
        lines = [
            f"Run Scaffold with step_size={gamma:.4g}, local_steps={H}, for {self.rounds:,} rounds.",
            f"Each client computes {self.gradients_per_client:,} gradients and exchanges "
            f"{self.rounds * self.method.vectors_per_round:,} vectors.",
        ]
        if self.mode == "certified":
            lines += [
                f"Theorem 4.9 proves a squared error of at most {self.predicted_mse:.4g} "
                f"(target {self.target_mse:g}). Proofs allow for the worst: the sharp plan is far cheaper.",
                f"The linear speed-up is proved up to {self.max_useful_clients:,.0f} clients.",
            ]
            return "\n".join(lines)
        lines.append(
            f"Predicted squared error after the last round: {self.predicted_mse:.4g} (target {self.target_mse:g})."
        )
        if self.max_useful_clients is None:
            lines.append("This is a first-order model: it does not say how many clients help.")
            return "\n".join(lines)
        if self.variance_part is not None and self.bias_part is not None:
            lines.append(
                f"Staying there, {self.variance_part:.3g} of it would be noise, which falls as 1/N, and "
                f"{self.bias_part:.3g} bias, which does not."
            )
        if math.isinf(self.max_useful_clients):
            lines.append("There is no bias: more clients help without end.")
        else:
            lines.append(
                f"More clients help up to about {self.max_useful_clients:,.0f}; there are {self.n_clients:,}."
            )
        lines.append(
            "A larger step size would leave too much noise, a smaller one would need more rounds; fewer local "
            "steps would need more rounds, more of them cost more gradients than they save rounds."
        )
        return "\n".join(lines)

    def plot(self, ax: "Axes | None" = None) -> "Axes":
        """Draw the predicted squared error by round, and the target; needs matplotlib.

        Parameters
        ----------
        ax
            Axes to draw on; those of a new figure by default.
        """
        if self.curve is None:
            raise InvalidInput(
                "certified plans have a proved last error and no curve to draw; plan with mode='sharp'"
            )
        axes = new_axes(ax)
        draw_error_curve(axes, self.curve)
        axes.axhline(self.target_mse, color="#009E73", lw=1.0, label="target")
        axes.legend(frameon=False)
        return axes

    def _facts(self) -> dict[str, object]:
        return {
            "step_size": f"{self.method.step_size:.4g}",
            "local_steps": self.method.local_steps,
            "rounds": self.rounds,
            "predicted_mse": f"{self.predicted_mse:.4g}",
            "target_mse": f"{self.target_mse:g}",
        }

    def _title(self) -> str:
        return f"Plan, {self.mode}"
