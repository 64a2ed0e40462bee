"""Fit a model under a privacy budget: all that is given away is covered by the budget, or was public before."""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from fedscaffold.core import provenance
from fedscaffold.core.display import Progress, Summarised, progress_bar
from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.files import folder_at, write_text
from fedscaffold.core.types import Array
from fedscaffold.data.encoding import Encoding
from fedscaffold.data.public import Bounds
from fedscaffold.data.settings import Penalty
from fedscaffold.models.model import Model, in_own_units
from fedscaffold.privacy.grid import clipped_sum, discrete_gaussian
from fedscaffold.privacy.plan import PrivatePlan, public_plan
from fedscaffold.privacy.settings import PrivacySettings

PUBLIC = (
    "Taken as public: the names and kinds of columns, their ranges and values, and the number of rows. Rows were "
    "used in the noisy sums alone; each site's noise is from its own operating system."
)
PUBLIC_SITES = (
    "Taken as public: the names of the sites, and the names, kinds, ranges and values of columns. Nothing of a "
    "site's table left it but its clipped and noisy gradients, not even the number of rows. All sites count alike."
)
IN_PARTS = (
    "Each site added a part of the noise, and only the sum over all sites became known. The budget relies on "
    "that: it holds as long as fewer than a third of the sites work together with the coordinator."
)
NOT_MADE = (
    "Not made, since the budget does not cover it: standard errors, the distance to the pooled model, scores on "
    "these rows."
)
ADDS_UP = "Whatever else is computed from the same rows and given away adds to what is spent."


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class PrivateFit(Summarised):
    """The result of a fit or a study under a privacy budget: a model, and what it protects.

    Parameters
    ----------
    model
        The model in the table's own units.
    theta
        θ for encoded rows, (dim,).
    plan
        How the budget was spent, with (ε, δ) in it.
    sites
        Names of the clients.
    name
        Name of the fit or study.
    in_parts
        Whether sites added parts of the noise to a secure sum.
    log, received
        For each site all messages that left it, and all messages that arrived; empty for a fit.

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
    plan: PrivatePlan
    sites: tuple[str, ...]
    name: str = "fit"
    in_parts: bool = False
    log: Mapping[str, Any] = field(default_factory=dict)
    received: Sequence[Any] = ()

    reached = False  # a distance to the pooled model would need sums without noise

    @property
    def epsilon(self) -> float:
        """ε that was spent, of every row or site."""
        return self.plan.epsilon

    @property
    def delta(self) -> float:
        """δ that was spent, of every row or site."""
        return self.plan.delta

    @property
    def rounds(self) -> int:
        """Number of exchanges with all clients."""
        return self.plan.rounds

    @property
    def certified_error(self) -> dict[str, float | None]:
        """The distance to the pooled model, which is not known: None for both bounds."""
        return {"standard_errors": None, "relative": None}

    def summary(self, *args: Any, **options: Any) -> NoReturn:
        """Raise: standard errors would need sums that the budget does not cover."""
        raise InvalidInput("standard errors need sums over the rows, which the privacy budget does not cover")

    def explain(self) -> str:
        """Return what the fit protects, what it took as public, and what it left out, in sentences."""
        public = PUBLIC if self.plan.protect == "rows" else PUBLIC_SITES
        parts = (IN_PARTS,) if self.in_parts else ()
        return "\n".join((self.plan.explain(), public, *parts, NOT_MADE, ADDS_UP))

    def for_sites(self) -> dict[str, Any]:
        """Return what all sites may have at the end, as JSON values: the model and how the budget was spent."""
        return {
            "study": self.name,
            "sites": len(self.sites),
            "privacy": self.plan.to_json(),
            "model": json.loads(self.model.to_json()),
        }

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write model.json, results.json and summary.txt to a folder."""
        out = folder_at(Path(folder))
        self.model.save(out / "model.json")
        write_text(out / "results.json", json.dumps(self.for_sites(), indent=1, allow_nan=False))
        values = "\n".join(f"{name}  {value:.4g}" for name, value in self.model.named_coefficients)
        write_text(out / "summary.txt", f"{values}\n\n{self.explain()}\n")

    def _facts(self) -> dict[str, object]:
        return {
            "model": self.model.kind,
            "clients": f"{len(self.sites):,}",
            "rounds": self.rounds,
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
    """Fit a model by gradient descent on clipped gradients with noise from the operating system's generator.

    Parameters
    ----------
    table
        A frame of any library that `data.from_frame` takes.
    bounds
        Public ranges and values of the target and every feature.
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
    plan = public_plan(target, bounds.levels, problem.sizes.tolist(), settings, l2=problem.l2)
    theta = run_privately(problem, plan, progress)
    model = private_model(problem.encoding, theta, plan, target_shift=target.shift, target_scale=target.scale)
    return PrivateFit(model=model, theta=theta, plan=plan, sites=tuple(map(str, problem.client_names)))


def run_privately(problem: Any, plan: PrivatePlan, progress: Progress = None) -> Array:
    """Return θ after the plan's rounds, (dim,); every client adds its noise to the sum over its rows."""
    theta = velocity = np.zeros(problem.dim)
    rows = np.arange(int(problem.sizes.sum()))
    with progress_bar("Private fit", progress) as advance:
        for done in range(plan.rounds):
            noise = discrete_gaussian(plan.noise, problem.n_clients * theta.size).reshape(-1, theta.size)
            total = clipped_sum(problem, theta, rows, plan.clip) + noise.sum(axis=0)
            theta, velocity = plan.step(theta, velocity, total, problem.penalty)
            advance(done + 1, plan.rounds)
    return centred(theta, problem.vectors)


def private_model(
    encoding: Encoding, theta: Array, plan: PrivatePlan, *, target_shift: float, target_scale: float
) -> Model:
    """Return the model in the table's own units, with the budget in its provenance."""
    vectors = theta.reshape(encoding.n_vectors, encoding.dim)
    encoding, equations = in_own_units(encoding, vectors, target_shift=target_shift, target_scale=target_scale)
    return Model(
        encoding=encoding, equations=equations, provenance={**provenance.origin(), "privacy": plan.to_json()}
    )


def centred(theta: Array, vectors: int) -> Array:
    """Return θ of several classes minus its mean over the classes, which no prediction depends on.

    The minimiser has mean 0; noise moves it, since no gradient pulls it back.
    """
    parts = theta.reshape(vectors, -1)
    return theta if vectors == 1 else np.asarray((parts - parts.mean(axis=0)).ravel())
