"""Rounds of Scaffold in a study, with step size and local steps that may change from one to the next."""

from dataclasses import dataclass, replace

from fedscaffold.core.privacy import Privacy
from fedscaffold.core.random.stream import Batches
from fedscaffold.core.types import Array
from fedscaffold.federation.run_config import RunConfig
from fedscaffold.federation.server.ledger import Ledger, initial_ledger
from fedscaffold.federation.study.coordinator import Coordinator
from fedscaffold.federation.study.measure import Measurements
from fedscaffold.methods import GradientScaffold, Scaffold
from fedscaffold.simulation.setup import divergence_limit


@dataclass(kw_only=True)
class StudyRounds:
    """A run of Scaffold over all sites of a study.

    Parameters
    ----------
    coordinator
        Asks the sites.
    measured
        What they told about themselves.
    config
        What the sites are told about the run; its schedule grows.
    ledger
        The server's state.
    part
        Whether the rows that the evaluation will use are left out.
    limit
        Distance from the initial model at which the run counts as diverged.
    """

    coordinator: Coordinator
    measured: Measurements
    config: RunConfig
    ledger: Ledger
    part: bool
    limit: float

    @classmethod
    def start(
        cls,
        coordinator: Coordinator,
        measured: Measurements,
        theta: Array,
        *,
        part: bool,
        batch_size: int | None = None,
        method: Scaffold | GradientScaffold | None = None,
        privacy: Privacy | None = None,
    ) -> "StudyRounds":
        """The run before its first round, from θ; local steps use batches of this size, or all rows.

        Without a method, step size and local steps are set by `change`; `privacy` says how sites clip and blur.
        """
        config = RunConfig(
            name=coordinator.name, seed=coordinator.settings.seed, dim=theta.size, n_clients=len(measured.sites),
            method=method or Scaffold(step_size=1.0, local_steps=1), batches=Batches(batch_size), privacy=privacy,
        )  # fmt: skip
        return cls(
            coordinator=coordinator,
            measured=measured,
            config=config,
            ledger=initial_ledger(config, theta, run=coordinator.run_id(part=part)),
            part=part,
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
        self.ledger = self.coordinator.train(
            self.config, self.ledger, self.measured, limit=self.limit, part=self.part
        )
        return self.theta

    @property
    def local_steps(self) -> list[int]:
        """All numbers of local steps so far, in order."""
        return [steps for _, _, steps in self.config.schedule]
