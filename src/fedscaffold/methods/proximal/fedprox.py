"""FedProx (Li et al. 2020, "Federated Optimization in Heterogeneous Networks"): local models are pulled to θ."""

from dataclasses import dataclass
from typing import ClassVar

from fedscaffold.core.checks import not_negative, set_fields
from fedscaffold.methods.base import FixedStepsCohortMethod


@dataclass(frozen=True, kw_only=True)
class FedProx(FixedStepsCohortMethod):
    """θ_c ← θ_c − γ(g_c(θ_c) + λ(θ_c − θ)), H times on each client; θ⁺ = Σ w_c θ_c.

    So local steps minimise f_c(θ_c) + λ/2 ‖θ_c − θ‖². A larger λ keeps clients closer together and θ⁺ closer to θ:
    the bias of FedAvg becomes smaller, progress slower. With λ = 0 it is FedAvg.

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
    proximal_weight
        λ ≥ 0, the weight of the term that pulls to θ (μ in the paper).

    Examples
    --------
    >>> import fedscaffold as fs
    >>> method = fs.FedProx(step_size=0.05, local_steps=10, proximal_weight=0.5)
    >>> problem = fs.problems.RidgeStream(n_clients=4, dim=2)
    >>> trace = fs.run(problem, method, rounds=50, batch_size=5, engine="reference")
    >>> bool(trace.mse[0, -1] < 0.1 * trace.mse[0, 0])
    True
    """

    kind: ClassVar[str] = "fedprox"

    proximal_weight: float

    def __post_init__(self) -> None:
        super().__post_init__()
        set_fields(self, proximal_weight=not_negative("proximal_weight", self.proximal_weight))

    @property
    def pull(self) -> float:  # type: ignore[override]
        """λ, the weight of the pull to where local steps began."""
        return self.proximal_weight

    def safe_step_size(self, smoothness: float, strong_convexity: float) -> float:
        """1/(L + λ): with at most this step size each local step contracts in mean square."""
        return 1.0 / (smoothness + self.proximal_weight)
