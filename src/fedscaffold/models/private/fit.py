"""Fit a model to a table under a privacy budget, and give away nothing that the budget does not cover."""

from dataclasses import dataclass
from typing import Any

from fedscaffold.core import provenance
from fedscaffold.core.display import Progress, Summarised
from fedscaffold.core.types import Array
from fedscaffold.data.encoded import EncodedProblem
from fedscaffold.data.public import Bounds
from fedscaffold.data.settings import Penalty
from fedscaffold.engines import Reference
from fedscaffold.models.model import Model, in_own_units
from fedscaffold.models.private.planned import PublicPlan, public_plan
from fedscaffold.models.private.trials import centred
from fedscaffold.privacy.settings import PrivacySettings
from fedscaffold.simulation.run_method import run

PUBLIC = (
    "Taken as public: the names and kinds of columns, their ranges and values (bounds), and the number of rows of "
    "each client. The table's rows were used in the noisy steps alone."
)
NOT_MADE = (
    "Not made, since the budget does not cover it: standard errors, Newton steps to the optimum, the distance to "
    "the pooled model, scores on these rows."
)
ADDS_UP = "Whatever else is computed from the same rows and given away adds to what is spent."


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class PrivateFit(Summarised):
    """The result of `fedscaffold.fit` with a privacy budget: a model, and what it protects.

    Attributes
    ----------
    model
        The fitted model, in the table's own units.
    theta
        θ for encoded rows, (dim,).
    plan
        How the budget was spent, with (ε, δ) in it.
    n_clients
        Number of clients.

    Examples
    --------
    >>> import numpy as np
    >>> import pandas as pd
    >>> import fedscaffold as fs
    >>> rng = np.random.default_rng(0)
    >>> table = pd.DataFrame({"x": rng.normal(size=4000), "site": ["a", "b"] * 2000})
    >>> table["y"] = 2.0 * table["x"] + rng.normal(size=4000)
    >>> bounds = {"x": (-4, 4), "y": (-12, 12)}
    >>> fitted = fs.fit(table, target="y", client="site", epsilon=2.0, bounds=bounds)
    >>> bool(abs(fitted.model.equations[0].coefficients[0] - 2.0) < 0.5)
    True
    """

    model: Model
    theta: Array
    plan: PublicPlan
    n_clients: int

    @property
    def epsilon(self) -> float:
        """ε that was spent, of every row."""
        return self.plan.epsilon

    @property
    def delta(self) -> float:
        """δ that was spent, of every row."""
        return self.plan.delta

    def explain(self) -> str:
        """What the fit protects, what it took as public, and what it left out, in sentences."""
        return "\n".join((self.plan.explain(), PUBLIC, NOT_MADE, ADDS_UP))

    def _facts(self) -> dict[str, object]:
        return {
            "model": self.model.kind,
            "clients": f"{self.n_clients:,}",
            "rounds": self.plan.rounds,
            "epsilon": f"{self.epsilon:g}",
            "delta": f"{self.delta:.2g}",
        }

    def _title(self) -> str:
        return f"Private fit of {self.model.encoding.target!r}"


def private_fit(
    table: Any,
    *,
    bounds: Bounds,
    client: str,
    settings: PrivacySettings,
    l2: Penalty = "auto",
    progress: Progress = None,
) -> PrivateFit:
    """Fit a model with Scaffold on clipped gradients with noise from the operating system's generator.

    Parameters
    ----------
    table
        A frame of any library that `data.from_frame` takes.
    bounds
        What is publicly known of the target and every feature.
    client
        Name of the column that says to which client a row belongs.
    settings
        The budget, and settings of the training that should not be chosen for it.
    l2
        As for `fedscaffold.fit`.
    progress
        As in `fedscaffold.run`.
    """
    problem = bounds.problem(table, client, l2)
    target = bounds.public_target
    plan = public_plan(target, bounds.levels, problem.sizes, settings, l2=problem.l2)
    theta = run_privately(problem, plan, progress)
    encoding, equations = in_own_units(
        problem.encoding, theta.reshape(target.vectors, -1), target_shift=target.shift, target_scale=target.scale
    )
    origin = {**provenance.origin(), "privacy": plan.to_json()}
    model = Model(encoding=encoding, equations=equations, provenance=origin)
    return PrivateFit(model=model, theta=theta, plan=plan, n_clients=problem.n_clients)


def run_privately(problem: EncodedProblem | Any, plan: PublicPlan, progress: Progress = None) -> Array:
    """θ after the plan's rounds, (dim,), of several classes with mean 0; nothing is recorded on the way."""
    theta = run(
        problem, plan.method, rounds=plan.rounds, privacy=plan.privacy, engine=Reference(secret_noise=True),
        record=(), progress=progress,
    ).theta[0]  # fmt: skip
    return centred(theta, problem.vectors)
