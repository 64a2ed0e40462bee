"""FedAvg (McMahan et al. 2017): local SGD without correction."""

from dataclasses import dataclass
from typing import ClassVar

from fedscaffold.core.checks import whole_number
from fedscaffold.core.types import Array, IntArray
from fedscaffold.methods.base import CohortMethod, same_for_all


@dataclass(frozen=True, kw_only=True)
class FedAvg(CohortMethod):
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

    local_steps: int

    def __post_init__(self) -> None:
        super().__post_init__()
        whole_number("local_steps", self.local_steps, least=1)

    def local_step_counts(self, n_clients: int, round_uniform: Array) -> IntArray:
        """H, the same for all clients, shape (1, 1)."""
        return same_for_all(self.local_steps)

    def safe_step_size(self, smoothness: float, strong_convexity: float) -> float:
        """1/L: with at most this step size each local step contracts in mean square."""
        return 1.0 / smoothness
