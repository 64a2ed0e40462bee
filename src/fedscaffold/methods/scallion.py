"""Scallion (Huang, Li & Li 2023): Scaffold whose one vector goes through a compressor."""

from dataclasses import dataclass
from typing import Any, ClassVar

from fedscaffold.core.checks import positive, set_fields
from fedscaffold.core.docs import shared_parameters
from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.types import Array, IntArray
from fedscaffold.methods.base import FixedStepsCohortMethod
from fedscaffold.methods.both_sides import ClientVariates, KeepsVariatesOnBothSides, VariateServerState
from fedscaffold.methods.compression import compressor_of, text_of


@shared_parameters(FixedStepsCohortMethod)
@dataclass(frozen=True, kw_only=True)
class Scallion(KeepsVariatesOnBothSides, FixedStepsCohortMethod):
    """θ_i ← θ_i − γ(g_i(θ_i) − c_i + c), H times; δ_i = C(α((θ − θ_i)/(γH) − c)); c_i ← c_i + δ_i.

    The server takes θ⁺ = θ − γH(c + mean δ_i) and c⁺ = c + s mean δ_i over the clients that took part, with s
    their share of the weight. So ξ_i = c − c_i has Σ w_i ξ_i = 0 whatever C does. A client sends δ_i alone.
    What C leaves out stays in the next round's difference, so that C may also be biased ("top_k").

    Parameters
    ----------
    {FixedStepsCohortMethod}
    compression
        C: "identity", "natural", "random_k:SHARE", "top_k:SHARE", "quantised:LEVELS", or a compressor of
        `fedscaffold.methods.compression`; kept as text.
    damping
        α in (0, 1]; None for 1/(1 + ω) with ω the compressor's variance.

    Examples
    --------
    >>> import fedscaffold as fs
    >>> method = fs.Scallion(step_size=0.05, local_steps=10, compression="natural")
    >>> problem = fs.problems.RidgeStream(n_clients=4, dim=2)
    >>> trace = fs.run(problem, method, rounds=50, batch_size=5, engine="reference")
    >>> bool(trace.mse[0, -1] < 0.1 * trace.mse[0, 0]), float(trace.bits_sent_per_client[-1])
    (True, 1200.0)
    """

    kind: ClassVar[str] = "scallion"
    vectors_per_round: ClassVar[int] = 3  # θ and c down, δ_i up

    compression: Any
    damping: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        set_fields(self, compression=text_of(self.compression))
        if self.damping is not None:
            set_fields(self, damping=positive("damping", self.damping))
            if self.damping > 1.0:
                raise InvalidInput(f"damping must be at most 1, got {self.damping!r}")

    @property
    def compressor(self) -> Any:  # type: ignore[override]
        """The compressor that `compression` names."""
        return compressor_of(self.compression)

    def message(
        self, client_state: ClientVariates, local: Array, server: VariateServerState, step_counts: IntArray
    ) -> Array:
        """α((θ − θ_i)/(γH) − c), which is α times the client's mean gradient minus c_i; before compression."""
        alpha = 1.0 / (1.0 + self.compressor.variance) if self.damping is None else self.damping
        change = server.theta[:, None, :] - local
        change /= self.step_size * self.local_steps
        change -= server.variate[:, None, :]
        change *= alpha
        return change

    def aggregate(self, server: VariateServerState, mean: Array, share: Array) -> VariateServerState:
        """θ⁺ = θ − γH(c + mean δ_i), c⁺ = c + s mean δ_i."""
        theta = server.theta - self.step_size * self.local_steps * (server.variate + mean)
        return VariateServerState(theta, server.variate + share[:, None] * mean)

    def update_clients(
        self, client_state: ClientVariates, sent: Array, before: VariateServerState, after: VariateServerState
    ) -> ClientVariates:
        """c_i ← c_i + δ_i."""
        return ClientVariates(own=client_state.own + sent)

    def safe_step_size(self, smoothness: float, strong_convexity: float) -> float:
        """Scaffold's min{1/(2L), 1/(H(L+μ))} over 1 + ω, or times the share of the coordinates that C keeps."""
        kept = getattr(self.compressor, "share", 1.0 / (1.0 + self.compressor.variance))
        return float(kept * min(0.5 / smoothness, 1.0 / (self.local_steps * (smoothness + strong_convexity))))
