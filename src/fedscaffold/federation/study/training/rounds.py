"""Rounds of Scaffold in a study, with step size and local steps that may change from one to the next."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from fedscaffold.core.random.batches import Batches
from fedscaffold.core.types import Array
from fedscaffold.federation.run_config import RunConfig
from fedscaffold.federation.server.backup import StateBackup
from fedscaffold.federation.server.ledger import Ledger, initial_ledger
from fedscaffold.federation.server.round import SendRequests, run_round
from fedscaffold.federation.server.rules import RoundRules
from fedscaffold.federation.study.coordinator import Coordinator
from fedscaffold.federation.study.measure import SiteMeasurement
from fedscaffold.methods import Scaffold
from fedscaffold.simulation.divergence import divergence_limit


@dataclass(kw_only=True)
class StudyRounds:
    """A run of Scaffold over all sites of a study.

    Parameters
    ----------
    config
        What the sites are told about the run; its schedule grows.
    ledger
        The server's state.
    weights
        Share of each site's rows in all rows.
    send
        Carries requests to the sites.
    limit
        Distance from the initial model at which the run counts as diverged.
    """

    config: RunConfig
    ledger: Ledger
    weights: Array
    send: SendRequests
    limit: float

    @classmethod
    def start(
        cls,
        coordinator: Coordinator,
        measured: Mapping[str, SiteMeasurement],
        theta: Array,
        *,
        part: bool,
        batch_size: int | None = None,
    ) -> "StudyRounds":
        """The run before its first round, from θ; local steps use batches of this size, or all rows."""
        sites = coordinator.transport.sites
        n_rows = np.array([measured[site].n_rows for site in sites], dtype=np.float64)
        config = RunConfig(
            name=coordinator.name, seed=coordinator.settings.seed, dim=theta.size, n_clients=n_rows.size,
            method=Scaffold(step_size=1.0, local_steps=1), batches=Batches(batch_size),
        )  # fmt: skip
        return cls(
            config=config,
            ledger=initial_ledger(config, theta, run=coordinator.run_id(part=part)),
            weights=n_rows / n_rows.sum(),
            send=partial(coordinator.send, part=part),
            limit=divergence_limit(theta),
        )

    @property
    def theta(self) -> Array:
        """The newest model, shape (dim,)."""
        return self.ledger.server.theta[0]

    def change(self, step_size: float, local_steps: int) -> None:
        """Use another step size and number of local steps from the next round on."""
        step = (self.ledger.round, step_size, local_steps)
        self.config = replace(self.config, schedule=(*self.config.schedule, step))

    def run(self) -> Array:
        """One round with all sites; the model after it."""
        self.ledger = run_round(
            self.config, self.ledger, self.weights, self.send, backup=StateBackup(None), limit=self.limit,
            rules=RoundRules(min_clients=self.weights.size, outlier_factor=None),
        ).ledger  # fmt: skip
        return self.theta

    @property
    def local_steps(self) -> list[int]:
        """All numbers of local steps so far, in order."""
        return [steps for _, _, steps in self.config.schedule]
