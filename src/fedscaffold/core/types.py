"""The shapes that the rooms agree on: problems, methods, engines, observers."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedscaffold.core.random.batches import Batches
from fedscaffold.core.random.draws import Draws
from fedscaffold.core.random.stream import Stream
from fedscaffold.core.sums import PartialSum

Array = NDArray[np.float64]
IntArray = NDArray[np.int64]

GradientKind = Literal["minibatch", "full"]


class Problem(Protocol):
    """f = Σ_c w_c f_c, one f_c per client; what a run and an observer need of it."""

    n_clients: int
    dim: int
    weights: Array
    sizes: NDArray[np.int64]

    @property
    def kind(self) -> str:
        """What engines know it by."""

    def optimum(self) -> Array:
        """θ*, where the gradient of f vanishes."""

    def loss(self, theta: Array) -> float:
        """f(θ)."""

    def smoothness(self, batches: Batches) -> float:
        """L with E‖g_c(θ) − g_c(θ')‖² ≤ L⟨∇f_c(θ) − ∇f_c(θ'), θ − θ'⟩ for every client."""

    def strong_convexity(self) -> float:
        """μ with ∇²f_c ≥ μI everywhere, for every client."""

    def describe(self) -> dict[str, Any]:
        """What it is, in words and numbers, for provenance."""

    def fingerprint(self) -> str:
        """A digest of everything that it is made of."""


class HasBatchGradient(Problem, Protocol):
    """A problem whose clients hold records; what the reference engine asks of it."""

    def batch_gradient(self, client: int, theta: Array, rows: NDArray[np.int64]) -> Array:
        """Mean gradient at θ over some of a client's records."""


class Records(Problem, Protocol):
    """A problem whose clients hold tables; what compiled engines read."""

    x: Array  # (records, dim), client after client
    y: Array  # (records,)
    offsets: NDArray[np.int64]  # client c's records are rows offsets[c] to offsets[c + 1] - 1
    l2: float
    n_unpenalised: int  # of the last features, how many l2 leaves out


class Systems(Problem, Protocol):
    """A problem whose records are linear systems, with gradients A_i θ − b_i; what compiled engines read."""

    A: Array  # (records, dim, dim), client after client
    b: Array  # (records, dim)
    offsets: NDArray[np.int64]


class Transitions(Records, Protocol):
    """A problem with gradients (m_iᵀθ − y_i) x_i, its records drawn by their probabilities."""

    margins: Array  # m_i, (records, dim)
    draws: Draws


@runtime_checkable
class HasMeanField(Protocol):
    """A problem whose full gradients are those of another, with one record per client."""

    def mean_field(self) -> Problem:
        """That other problem; engines open it instead when a step takes the full gradient."""


@runtime_checkable
class NonUniformSampling(HasMeanField, Protocol):
    """A problem that does not draw its records uniformly."""

    draws: Draws
    offsets: NDArray[np.int64]


@runtime_checkable
class Streamed(Protocol):
    """A problem whose clients are distributions: records are drawn when they are used, see `core.normals`.

    Client c draws x ~ N(0, s_c diag(spectrum)), with s_c = 1 + scale_spread τ_c, and a target that depends on
    xᵀw_c, w_c = centre + heterogeneity (n_c/√d + τ_c tilt), where n_c is normal and τ_c uniform in (−1, 1).
    """

    n_clients: int
    dim: int
    client_ids: IntArray  # whose n_c and τ_c client c has, so that blocks keep their clients
    seed: int  # of n_c and τ_c
    scale_spread: float
    heterogeneity: float
    spectrum: Array
    centre: Array
    tilt: Array
    l2: float
    given: tuple[Array, Array] | None  # n_c/√d and τ_c where they are not drawn; engines refuse these

    def drawn_gradient(self, client: int, theta: Array, stream: Stream, first: int, count: int) -> Array:
        """Mean gradient at θ over the records first, ..., first + count − 1 of a client's round."""


class Server(NamedTuple):
    """What the server keeps and tells the clients: θ. A method may have one with more fields."""

    theta: Array  # (repetitions, dim)


class ExchangedGradients(NamedTuple):
    """Gradients at θ that clients exchanged before their local steps."""

    own: Array  # (repetitions, clients, dim)
    mean: Array  # (repetitions, dim), weighted


class RoundInfo(NamedTuple):
    """What clients hear of a round, besides the server's state."""

    round: int
    round_uniform: Array  # (repetitions,), uniform numbers
    cohort: IntArray | None  # (repetitions, how many) who takes part, ascending; None for everyone
    share: Array  # (repetitions,) or (1,), their share of all weight


class Method(Protocol):
    """Where the correction ξ_c comes from, and what the server does with the local models.

    Arrays have axes (repetition, client, coordinate); clients are those of a block: all, a shard, or one.
    `memory` is a named tuple of such arrays, `server` a named tuple of arrays (repetition, coordinate) whose
    first is θ. A method sees neither data nor loops. `fedscaffold.methods.base` has the usual answers.
    """

    @property
    def kind(self) -> str:
        """What theory knows it by."""

    @property
    def step_size(self) -> float:
        """γ."""

    @property
    def vectors_per_round(self) -> int:
        """How many vectors of θ's length a client that takes part receives and sends in a round."""

    @property
    def exchange(self) -> GradientKind | None:
        """Which gradients at θ clients exchange before their local steps, if any."""

    def participants(self, n_clients: int) -> int:
        """How many of the clients take part in a round."""

    def local_step_counts(self, n_clients: int, round_uniform: Array) -> IntArray:
        """Local steps of a round, (repetitions or 1, n_clients or 1), given a uniform number per repetition."""

    def init_clients(self, repetitions: int, weights: Array, dim: int, control_variates: ArrayLike | None) -> Any:
        """The clients' memory before the first round."""

    def init_server(self, theta: Array) -> Any:
        """The server before the first round."""

    def correction(self, memory: Any, server: Any, exchanged: ExchangedGradients | None) -> Array:
        """ξ_c, what each client adds to its gradients in this round."""

    def message(self, local: Array, server: Any, step_counts: IntArray) -> Array:
        """The vector that each client sends, from its local model."""

    def aggregate(self, server: Any, mean: Array, share: Array) -> Any:
        """The server's next state, from the weighted mean of what was sent and the share of those who sent."""

    def update_clients(self, memory: Any, sent: Array, before: Any, after: Any) -> Any:
        """The clients' memory once they hear the server's next state."""

    def safe_step_size(self, smoothness: float, strong_convexity: float) -> float:
        """A step size with which the method does not diverge."""


class LocalSgd(Protocol):
    """The hot loop: H local steps of every client, or of those given."""

    def __call__(
        self, theta: Array, correction: Array, *, step_size: float, local_steps: int | IntArray, round: int,
        clients: IntArray | None = None, first_step: int = 0,
    ) -> Array:  # fmt: skip
        """Local models (repetitions, clients, dim) from θ (repetitions, dim).

        clients are (repetitions or 1, clients), or None for all. Draws are those of steps first_step, ... of the
        round.
        """


class Engine(Protocol):
    """How clients' local steps run."""

    @property
    def name(self) -> str:
        """What provenance and checkpoints call it, with anything that changes its numbers."""

    def open(
        self, problem: Any, batches: Batches, *, seed: int, first_client: int = 0
    ) -> AbstractContextManager[LocalSgd]:
        """Make ready for a run; what was opened is closed on leaving the context.

        The problem may be a block of a larger one's clients: then client c draws as client first_client + c does.
        """


class WorstClient(NamedTuple):
    """The local model with the largest number in it."""

    size: float
    client: int


class Clients(Protocol):
    """A run's clients, wherever they are. `memory` is what a run's state holds of theirs: arrays, or a token."""

    def start(self, repetitions: int, dim: int, control_variates: ArrayLike | None) -> Any:
        """Their memory before the first round."""

    def placed(self, memory: Any, round: int) -> Any:
        """Their memory before some round, from named arrays (repetition, client, coordinate)."""

    def collected(self, memory: Any) -> Any:
        """As named arrays again."""

    def holds(self, memory: Any) -> bool:
        """Whether this is still their memory, not one that has been overwritten since."""

    def exchange(self, server: Any, told: RoundInfo) -> tuple[list[PartialSum], Any]:
        """Gradients at θ: parts of their mean, and what to hand to `work` as one's own."""

    def work(self, memory: Any, server: Any, told: RoundInfo, exchanged: ExchangedGradients | None) -> tuple[list[PartialSum], Any]:
        """Local steps: parts of the mean of what is sent, and what to hand to `remember`."""

    def largest(self, worked: Any) -> WorstClient:
        """Who went furthest in these local steps."""

    def remember(self, memory: Any, worked: Any, before: Any, after: Any) -> Any:
        """Their memory once they hear the server's next state."""


@runtime_checkable
class DistributedEngine(Protocol):
    """An engine that has the clients elsewhere, with their memory."""

    def host(
        self, problem: Any, method: Method, batches: Batches, *, seed: int, first_step: int
    ) -> AbstractContextManager[Clients]:
        """Make ready for a run."""


Watch = Callable[[int, Array, Array | None], Array]


class Observer(Protocol):
    """Chooses what a run records."""

    @property
    def name(self) -> str:
        """Under what name the trace keeps it."""

    @property
    def keep(self) -> Literal["every", "last"]:
        """The value of every round, or only the last one."""

    def watch(self, problem: Any) -> Watch:
        """A function (round, θ, previous value) → value, with one row per repetition."""
