"""What a prediction says: the plateau, its parts, the curve that leads there, and how far to trust them."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from fedscaffold.core.display.figures import new_axes
from fedscaffold.core.display.summaries import Summarised
from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.types import Array
from fedscaffold.theory.error_curves import draw_error_curve
from fedscaffold.theory.prediction.reliability import EXACT, Reliability

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class _Prediction(Summarised):
    """E‖θ − θ*‖² = tr Cov θ + ‖E θ − θ*‖² on the plateau, and on the way to it: the result of `theory.predict`.

    Attributes
    ----------
    cov_theta
        Covariance of θ on the plateau, (d, d).
    bias
        E θ − θ* on the plateau, (d,).
    bias_xi
        E ξ_c − ξ*_c on the plateau, (n_clients, d), where ξ*_c = −∇f_c(θ*). FedAvg's ξ_c is 0, so ∇f_c(θ*).
    curve
        E‖θ_t − θ*‖² for t = 0, ..., rounds from θ_0 = 0 and ξ_c = 0; None unless rounds were asked for.
    reliability
        What the prediction leaves out, in percent of its error, and why.

    Examples
    --------
    >>> import fedscaffold as fs
    >>> problem = fs.problems.paper("regression", n_clients=4)
    >>> method = fs.Scaffold(step_size=0.05, local_steps=20)
    >>> found = fs.theory.predict(problem, method, batch_size=10, rounds=50)
    >>> found.cov_theta.shape, found.curve.shape
    ((20, 20), (51,))
    >>> found.mse == found.mse_variance_part + found.mse_bias_part
    True
    """

    cov_theta: Array
    bias: Array
    bias_xi: Array
    curve: Array | None = None
    reliability: Reliability = EXACT

    @property
    def mse_variance_part(self) -> float:
        """The trace of Cov θ; shrinks like 1/N."""
        return float(np.trace(self.cov_theta))

    @property
    def mse_bias_part(self) -> float:
        """‖E θ − θ*‖²; adding clients does not remove it."""
        return float(self.bias @ self.bias)

    @property
    def mse(self) -> float:
        """E‖θ − θ*‖² on the plateau."""
        return self.mse_variance_part + self.mse_bias_part

    def plot(self, ax: "Axes | None" = None) -> "Axes":
        """Draw the predicted squared error by round, and the plateau; needs matplotlib and a curve.

        Parameters
        ----------
        ax
            Axes to draw on; those of a new figure by default.
        """
        if self.curve is None:
            raise InvalidInput("there is no curve to draw; predict it with theory.predict(..., rounds=100)")
        axes = new_axes(ax)
        draw_error_curve(axes, self.curve, self.mse)
        axes.legend(frameon=False)
        return axes

    def _facts(self) -> dict[str, object]:
        facts: dict[str, object] = {
            "mse": f"{self.mse:.4g}",
            "variance part": f"{self.mse_variance_part:.4g}",
            "bias part": f"{self.mse_bias_part:.4g}",
            "reliability": str(self.reliability),
        }
        return facts if self.curve is None else {**facts, "rounds of the curve": self.curve.size - 1}

    def _title(self) -> str:
        return "Prediction of the plateau"


Prediction = _Prediction
