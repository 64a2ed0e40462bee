"""Sums over the clients of one problem in this process, as a study asks its sites for them."""

from functools import cached_property
from typing import Any

from fedscaffold.core.protocols import Engine
from fedscaffold.core.random.stream import Batches
from fedscaffold.core.types import Array
from fedscaffold.inference.sums import MOST_COEFFICIENTS, ProblemSums
from fedscaffold.methods import Scaffold
from fedscaffold.simulation.run_method import run

NUMBERS_PER_SECOND = 2e8  # of a table that a local step reads, on one core; decides between Newton and Scaffold


class LocalSums(ProblemSums):
    """The sums of all clients of a problem; see `inference.training.Sums`.

    Parameters
    ----------
    problem
        A regression on tables with any number of clients.
    names
        Names of the features, for messages.
    n_intercepts
        How many of the last features are intercepts.
    client_intercepts
        Whether each client has an intercept that no sum reveals; training is by Newton's method then.
    engine
        Computes local steps; see `fedscaffold.run`.
    """

    def __init__(
        self,
        problem: Any,
        *,
        names: tuple[str, ...],
        n_intercepts: int,
        client_intercepts: bool = False,
        engine: str | Engine = "auto",
    ) -> None:
        super().__init__(problem, names=names, n_intercepts=n_intercepts, client_intercepts=client_intercepts)
        self.engine = engine
        self._control_variates: Array | None = None

    @property
    def hessians(self) -> bool:
        """Whether there are few enough coefficients for a Hessian."""
        return self.dim <= MOST_COEFFICIENTS

    @cached_property
    def smoothness(self) -> float:
        """The largest curvature L_c of any client's loss."""
        return float(self.problem.smoothness(Batches()))

    @property
    def step_seconds(self) -> float:
        """Expected duration of a local step on all rows of all clients."""
        return float(self.problem.x.size) / NUMBERS_PER_SECOND

    def gradient(self, theta: Array) -> tuple[Array, float]:
        """Return ∇f(θ) and f(θ)."""
        return self.problem.gradient(theta), float(self.problem.loss(theta))

    def scaffold_round(self, theta: Array, step_size: float, local_steps: int) -> Array:
        """Return the model after one round of Scaffold on all rows of each client."""
        trace = run(
            self.problem, Scaffold(step_size=step_size, local_steps=local_steps), rounds=1, theta0=theta,
            control_variates0=self._control_variates, engine=self.engine, record=(),
        )  # fmt: skip
        self._control_variates = trace.control_variates[0]
        return trace.theta[0]
