"""FedAvg (McMahan et al. 2017): local SGD without correction."""

from dataclasses import dataclass
from typing import ClassVar

from fedscaffold.methods.base import FixedStepsCohortMethod


@dataclass(frozen=True, kw_only=True)
class FedAvg(FixedStepsCohortMethod):
    """θ_c ← θ_c − γ g_c(θ_c), H times on each client; θ⁺ = Σ w_c θ_c.

    Parameters
    ----------
    step_size
        γ > 0, the step size of the local steps.
    local_steps
        H ≥ 1, the number of local steps in a round.
    participation
        Share of the clients that takes part in a round, in (0, 1].
    cohort
        Number of clients that take part in a round, instead of a share.

    Examples
    --------
    >>> import fedscaffold as fs
    >>> method = fs.FedAvg(step_size=0.05, local_steps=10)
    >>> problem = fs.problems.RidgeStream(n_clients=4, dim=2)
    >>> trace = fs.run(problem, method, rounds=50, batch_size=5, engine="reference")
    >>> bool(trace.mse[0, -1] < 0.1 * trace.mse[0, 0])
    True
    """

    kind: ClassVar[str] = "fedavg"

    def safe_step_size(self, smoothness: float, strong_convexity: float) -> float:
        """1/L: with at most this step size each local step contracts in mean square."""
        return 1.0 / smoothness
