"""Compare Scaffold's model with FedAvg's and with the pooled one."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedscaffold.core.display import Progress, Summarised, text_summary
from fedscaffold.core.types import Array
from fedscaffold.methods import FedAvg
from fedscaffold.models.fit import Fit, run_method
from fedscaffold.models.planning.planned import FitSettings, PlannedFit, PreparedProblem
from fedscaffold.simulation import Trace

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class ModelScore:
    """How well one θ does on a table; losses are in the target's own units.

    Attributes
    ----------
    name
        Where θ comes from: "Scaffold", "Scaffold, closed", "FedAvg" or "Pooled".
    theta
        θ for encoded rows, (dim,).
    loss
        f(θ) over all clients.
    relative_distance
        ‖β − β*‖ / ‖β*‖ of the coefficients, the intercept left out.
    client_losses
        f_c(θ) of each client, (clients,).

    Examples
    --------
    >>> import numpy as np
    >>> import pandas as pd
    >>> import fedscaffold as fs
    >>> table = pd.DataFrame({"x": np.arange(40.0), "y": np.arange(40.0) ** 2, "site": ["a"] * 20 + ["b"] * 20})
    >>> problem = fs.data.from_frame(table, target="y", client="site", standardize=True, intercept=True)
    >>> fs.models.fit(problem).compare().pooled.relative_distance
    0.0
    """

    name: str
    theta: Array
    loss: float
    relative_distance: float
    client_losses: Array

    @property
    def distance_text(self) -> str:
        """The distance with two digits; the rounding errors that Newton steps leave are only called small."""
        return "< 1e-9" if 0.0 < self.relative_distance < 1e-9 else f"{self.relative_distance:.2g}"

    def above(self, other: "ModelScore") -> float:
        """Return how much larger the loss is than another's; 0 if they differ by rounding alone."""
        return 0.0 if math.isclose(self.loss, other.loss, rel_tol=1e-12) else self.loss - other.loss

    def __repr__(self) -> str:
        facts = {"loss": f"{self.loss:.5g}", "distance to the pooled model": f"{self.relative_distance:.2%}"}
        return text_summary(f"ModelScore of {self.name}", facts)


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class ModelComparison(Summarised):
    """Scaffold's model against FedAvg's with the same settings, and against the pooled one.

    Attributes
    ----------
    scaffold, fedavg, pooled
        The score of each model; Scaffold's is the one that the fit delivers, after Newton steps if there were any.
    before_closing
        The score of Scaffold's model before these; None where there were none.
    distances
        ‖β_t − β*‖ / ‖β*‖ after each round, (rounds + 1,), for "Scaffold" and "FedAvg".
    tolerance
        Distance that the fit aimed for.

    Examples
    --------
    >>> import numpy as np
    >>> import pandas as pd
    >>> import fedscaffold as fs
    >>> table = pd.DataFrame({"x": np.arange(40.0), "y": np.arange(40.0) ** 2, "site": ["a"] * 20 + ["b"] * 20})
    >>> problem = fs.data.from_frame(table, target="y", client="site", standardize=True, intercept=True)
    >>> comparison = fs.models.fit(problem).compare()
    >>> comparison.scaffold.relative_distance < comparison.fedavg.relative_distance
    True
    """

    scaffold: ModelScore
    fedavg: ModelScore
    pooled: ModelScore
    distances: Mapping[str, Array]
    tolerance: float
    before_closing: ModelScore | None = None

    @property
    def scores(self) -> tuple[ModelScore, ...]:
        """Scores of Scaffold's model, before closing and after it, of FedAvg's and of the pooled one."""
        first = () if self.before_closing is None else (self.before_closing,)
        return *first, self.scaffold, self.fedavg, self.pooled

    def plot(self, ax: "Axes | None" = None) -> "Axes":
        """Draw the relative distances by round and the tolerance; return the axes.

        Parameters
        ----------
        ax
            matplotlib axes to draw on; by default those of a new figure.
        """
        from fedscaffold.reports.figures import draw_distances

        return draw_distances(self.distances, tolerance=self.tolerance, ax=ax)

    def _facts(self) -> dict[str, str]:
        return {
            each.name: f"loss {each.loss:.5g}, {each.relative_distance:.2%} from the pooled model"
            for each in self.scores
        }


def score_model(name: str, prepared: PreparedProblem, theta: Array) -> ModelScore:
    """Losses of θ on the problem, in the target's own units, and its distance to the optimum."""
    losses = prepared.problem.client_losses(theta) * prepared.loss_scale
    return ModelScore(
        name=name,
        theta=theta,
        loss=float(prepared.problem.weights @ losses),
        relative_distance=prepared.relative_distance(theta),
        client_losses=losses,
    )


def run_fedavg(planned: PlannedFit, settings: FitSettings, *, rounds: int, progress: Progress = None) -> Trace:
    """Run FedAvg with the planned step size, local steps and batch size, and the settings' seed."""
    averaging = FedAvg(step_size=planned.method.step_size, local_steps=planned.method.uniform_local_steps)
    return run_method(planned, averaging, rounds=rounds, seed=settings.seed, progress=progress)


def compare_models(fit: Fit, *, progress: Progress = None) -> ModelComparison:
    """Run FedAvg with a fit's settings, and score Scaffold's, FedAvg's and the pooled model."""
    planned = fit.planned
    averaged = run_fedavg(planned, fit.settings, rounds=fit.trace.rounds, progress=progress)
    closed = fit.closed is not None and fit.closed.steps > 0
    return ModelComparison(
        scaffold=score_model("Scaffold, closed" if closed else "Scaffold", planned, fit.theta),
        before_closing=score_model("Scaffold", planned, fit.trace.theta[0]) if closed else None,
        fedavg=score_model("FedAvg", planned, averaged.theta[0]),
        pooled=score_model("Pooled", planned, planned.optimum),
        distances={
            "Scaffold": fit.relative_distances,
            "FedAvg": averaged.metrics["relative_distance"][0],
        },
        tolerance=fit.planned.aim,
    )
