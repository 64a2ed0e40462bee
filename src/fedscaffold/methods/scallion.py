"""Scallion (Huang, Li & Li 2023): Scaffold whose one vector goes through a compressor."""

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from fedscaffold.core.checks import positive, set_fields, whole_number
from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.types import Array, IntArray
from fedscaffold.methods.base import FixedStepsCohortMethod
from fedscaffold.methods.both_sides import ClientVariates, KeepsVariatesOnBothSides, VariateServerState
from fedscaffold.methods.compression import Quantised, compressor_of, text_of


class LaggingServerState(NamedTuple):
    """Server state when what it sends is rounded: θ and c as clients know them, and what c lacks."""

    theta: Array  # (repetitions, dim)
    variate: Array  # (repetitions, dim)
    lag: Array  # Σ w_i c_i − c, (repetitions, dim)


@dataclass(frozen=True, kw_only=True)
class Scallion(KeepsVariatesOnBothSides, FixedStepsCohortMethod):
    """θ_i ← θ_i − γ(g_i(θ_i) − c_i + c), H times; δ_i = C(α((θ − θ_i)/(γH) − c)); c_i ← c_i + δ_i.

    The server takes θ⁺ = θ − γH(c + mean δ_i) and c⁺ = c + s mean δ_i over the clients that took part, with s
    their share of the weight. So ξ_i = c − c_i has Σ w_i ξ_i = 0 whatever C does. A client sends δ_i alone.
    The part that C leaves out stays in the next round's difference, so that C may also be biased ("top_k").

    With `server_levels` the server sends one rounded vector, q = R(e + s mean δ_i), in place of θ and c, and then
    c⁺ = c + q, θ⁺ = θ − γHc⁺. The rest that R leaves out, e = Σ w_i c_i − c, is sent in later rounds: it
    goes to 0 with the steps, and Σ w_i ξ_i = −e. All clients take part in every round, so that they know θ and c.

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
    compression
        C: "identity", "natural", "random_k:SHARE", "top_k:SHARE", "quantised:LEVELS", or a compressor of
        `fedscaffold.methods.compression`; kept as text.
    damping
        α in (0, 1]; None for 1/(1 + ω) with ω the compressor's variance.
    server_levels
        R rounds to the nearest multiple of ‖v‖ over this number, at least 8, in buckets of 64 numbers; None where
        the server sends θ and c as they are.

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
    server_levels: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        set_fields(self, compression=text_of(self.compression))
        if self.damping is not None:
            set_fields(self, damping=positive("damping", self.damping))
            if self.damping > 1.0:
                raise InvalidInput(f"damping must be at most 1, got {self.damping!r}")
        if self.server_levels is not None:
            set_fields(self, server_levels=whole_number("server_levels", self.server_levels, least=8, most=2**31))
            if self.cohort is not None or self.participation != 1.0:
                raise InvalidInput("server_levels is for rounds with all clients; leave out participation, cohort")

    @property
    def compressor(self) -> Any:  # type: ignore[override]
        """The compressor that `compression` names."""
        return compressor_of(self.compression)

    @property
    def download(self) -> Quantised | None:  # type: ignore[override]
        """R, which rounds what the server sends; None where it sends θ and c."""
        return None if self.server_levels is None else Quantised(self.server_levels)

    def init_server(self, theta: Array) -> Any:
        """θ and c = 0; with a rounding server also e = 0."""
        zero = theta * 0.0
        return VariateServerState(theta, zero) if self.download is None else LaggingServerState(theta, zero, zero)

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

    def aggregate(self, server: Any, mean: Array, share: Array) -> Any:
        """θ⁺ = θ − γH(c + mean δ_i), c⁺ = c + s mean δ_i; or c⁺ = c + R(e + s mean δ_i), θ⁺ = θ − γHc⁺."""
        if self.download is not None:
            wanted = server.lag + share[:, None] * mean
            sent = self.download.nearest(wanted)
            variate = server.variate + sent
            theta = server.theta - self.step_size * self.local_steps * variate
            return LaggingServerState(theta, variate, wanted - sent)
        theta = server.theta - self.step_size * self.local_steps * (server.variate + mean)
        return VariateServerState(theta, server.variate + share[:, None] * mean)

    def update_clients(
        self, client_state: ClientVariates, sent: Array, before: VariateServerState, after: VariateServerState
    ) -> ClientVariates:
        """c_i ← c_i + δ_i."""
        return ClientVariates(own=client_state.own + sent)

    def safe_step_size(self, smoothness: float, strong_convexity: float) -> float:
        """Scaffold's min{1/(2L), 1/(H(L+μ))} over 1 + ω, or times the share of the coordinates that C keeps.

        Where the server rounds to one of s levels it is 1 − 4/s times that: R leaves out 4‖v‖/s at most.
        """
        kept = getattr(self.compressor, "share", 1.0 / (1.0 + self.compressor.variance))
        if self.server_levels is not None:
            kept *= 1.0 - 4.0 / self.server_levels
        return float(kept * min(0.5 / smoothness, 1.0 / (self.local_steps * (smoothness + strong_convexity))))
