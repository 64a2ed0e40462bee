"""The interfaces between rooms: problems, methods, engines, clients, observers."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Literal, Protocol, runtime_checkable

from numpy.typing import ArrayLike

from fedscaffold.core.privacy import RecordLevel
from fedscaffold.core.random.draws import Draws, MessageDraws
from fedscaffold.core.random.stream import Batches, Stream
from fedscaffold.core.types import Array, Exchange, ExchangedGradients, IntArray


@runtime_checkable
class Problem(Protocol):
    """f = Σ_c w_c f_c, one f_c per client: what every run needs of a problem."""

    n_clients: int
    dim: int
    weights: Array
    sizes: IntArray

    @property
    def kind(self) -> str:
        """Name of the loss, as provenance and the compiled kernels know it, for example "ridge"."""

    def optimum(self) -> Array:
        """θ*, where the gradient of f vanishes, shape (dim,)."""

    def loss(self, theta: Array) -> float:
        """f(θ) for one θ of shape (dim,)."""

    def smoothness(self, batches: Batches) -> float:
        """L with E‖g_c(θ) − g_c(θ')‖² ≤ L⟨∇f_c(θ) − ∇f_c(θ'), θ − θ'⟩ for every client c."""

    def strong_convexity(self) -> float:
        """μ with ∇²f_c ≥ μI everywhere, for every client."""

    def describe(self) -> dict[str, Any]:
        """Return the problem's kind, sizes and settings as plain values, for provenance."""

    def fingerprint(self) -> str:
        """SHA-256 digest of everything the problem is made of."""


@runtime_checkable
class HasClippedGradient(Protocol):
    """A problem whose records' gradients can be clipped one by one, for privacy at the level of records."""

    def clipped_gradient(
        self, client: int, theta: Array, rows: IntArray, clip: float, noise: Array | float = 0.0
    ) -> Array:
        """Mean over some of a client's records of gradients shortened to norm `clip`, noise and the penalty's.

        The noise is added before anything else: a server could choose θ to make the penalty's gradient so large
        that beside it the records' is rounded, and the noise too, but not both together.
        """


@runtime_checkable
class HasBatchLoss(Protocol):
    """A problem whose loss JAX or PyTorch can differentiate; what their engines ask of it."""

    engine: str  # "jax" or "torch"
    batch_loss: Any  # the loss of a batch as a function of θ, without data
    records: Any  # all clients' records one after another, a tree of arrays


@runtime_checkable
class HasDropout(Protocol):
    """A problem whose local steps draw more than records: gradients take `dropout`'s numbers as `uniform`."""

    drops: int  # numbers per record; 0 for none

    def dropout(self, stream: Stream, step: int, records: int) -> Array:
        """Return the numbers of a local step, (records, drops)."""


@runtime_checkable
class HasInitialModel(Protocol):
    """A problem with an initial model, from which runs start instead of zero."""

    initial: Array  # (dim,)

    def ravel(self, params: Any) -> Array | None:
        """Return a tree of parameters as a vector, (dim,); None if it is not such a tree."""


@runtime_checkable
class HasAccuracy(Protocol):
    """A problem whose records have classes."""

    def accuracy(self, theta: Array) -> float:
        """Return the share of all records whose class θ predicts."""


class TabularRecords(Problem, Protocol):
    """A problem whose clients hold tables of features and targets; what compiled engines read."""

    x: Array  # (records, dim), client after client
    y: Array  # (records,)
    offsets: IntArray  # client c's records are rows offsets[c] to offsets[c + 1] - 1
    l2: float
    n_unpenalised: int  # how many of the last features the l2 penalty leaves out


@runtime_checkable
class HasMeanField(Protocol):
    """A problem with the full gradients of another problem, which has one record per client."""

    def mean_field(self) -> Problem:
        """Return the problem that engines open instead when a step takes the full gradient."""


@runtime_checkable
class NonUniformSampling(HasMeanField, Protocol):
    """A problem that does not draw its records uniformly."""

    draws: Draws
    offsets: IntArray


@runtime_checkable
class Streamed(Protocol):
    """A problem whose clients are distributions: records are drawn when they are used.

    Client c draws x ~ N(0, s_c diag(spectrum)), with s_c = 1 + scale_spread τ_c, and a target that depends on
    xᵀw_c, w_c = centre + heterogeneity (n_c/√d + τ_c tilt), where n_c is normal and τ_c uniform in (−1, 1).
    See `core.random.normals`.
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

    def drawn_gradient(self, client: int, theta: Array, stream: Stream, first: int, count: int) -> Array:
        """Mean gradient at θ over the records first, ..., first + count − 1 of a client's round."""


@runtime_checkable
class Divisible(Protocol):
    """A problem whose clients can be divided among workers."""

    def subset(self, clients: ArrayLike) -> Problem:
        """Return the problem of some of the clients, in the given order."""


@runtime_checkable
class Availability(Protocol):
    """Which clients can take part in a round, the same in all repetitions."""

    def available(self, round: int, n_clients: int) -> IntArray:
        """Return indices of the clients that are available in a round, ascending; at least one."""


class Compressor(Protocol):
    """A compressor: replaces a vector by a message of fewer bits."""

    def bits(self, dim: int, participants: int) -> float:
        """Bits of the message of one of a round's participants, for vectors of length dim."""

    def message_length(self, dim: int) -> int:
        """How many numbers the server receives for a vector of length dim: dim, or more for masks."""

    def compress(self, values: Array, draws: MessageDraws) -> Array:
        """Return the messages of some clients, (repetitions, clients, dim), as the server receives them."""


class Method(Protocol):
    """Where the correction ξ_c comes from, and what the server does with the local models.

    Arrays have axes (repetition, client, coordinate); the clients are a block: all of them, a shard, or
    one. A client state is a named tuple of such arrays, a server state a named tuple of arrays (repetition,
    coordinate) whose first field is θ. A method sees neither data nor loops. `fedscaffold.methods.base` implements
    what most methods have in common.
    """

    @property
    def kind(self) -> str:
        """Short name of the method, for example "scaffold"."""

    @property
    def step_size(self) -> float:
        """γ, the step size of the local steps."""

    @property
    def vectors_per_round(self) -> int:
        """Number of vectors of θ's length that a participating client receives and sends in a round."""

    @property
    def exchange(self) -> Exchange | None:
        """Which gradients at θ clients exchange before their local steps; None if they exchange none.

        "minibatch" or "full" are sent, and their mean comes back; "own" are full ones that are not sent.
        """

    @property
    def compressor(self) -> Compressor | None:
        """Through what messages go before they are sent; None for most methods."""

    @property
    def download(self) -> Compressor | None:
        """Compressor of the server's message, whose bits are counted; None for most methods."""

    def participants(self, n_clients: int) -> int:
        """Return number of clients that take part in a round."""

    def local_step_counts(self, n_clients: int, round_uniform: Array) -> IntArray:
        """Local steps of a round, shape (repetitions or 1, n_clients or 1).

        `round_uniform` has one uniform number per repetition, for methods whose number of steps is random.
        """

    def init_clients(self, repetitions: int, weights: Array, dim: int, control_variates: ArrayLike | None) -> Any:
        """Client state before the first round."""

    def init_server(self, theta: Array) -> Any:
        """Server state before the first round, from θ of shape (repetitions, dim)."""

    @property
    def pull(self) -> float:
        """λ ≥ 0: local steps also add λ(θ_c − θ) to their gradients, θ being their start; 0 for most methods."""

    def start(self, client_state: Any, server: Any) -> Array:
        """Where local steps begin: θ (repetitions, dim), or the clients' own (repetitions, clients, dim)."""

    def anchor(self, client_state: Any, server: Any) -> Array | None:
        """Return the anchor, at which gradients are subtracted, (repetitions, dim); None for most methods."""

    def correction(self, client_state: Any, server: Any, exchanged: ExchangedGradients | None) -> Array:
        """ξ_c, what each client adds to its gradients in this round."""

    def message(self, client_state: Any, local: Array, server: Any, step_counts: IntArray) -> Array:
        """Return the vector that each client sends, computed from its local model and its state."""

    def aggregate(self, server: Any, mean: Array, share: Array) -> Any:
        """Next server state, from the weighted mean of the messages and the senders' share of the weight."""

    def update_clients(self, client_state: Any, sent: Array, before: Any, after: Any) -> Any:
        """Next client state, from what was sent and the server states before and after the round."""

    def safe_step_size(self, smoothness: float, strong_convexity: float) -> float:
        """Return a step size with which the method does not diverge; 0 if none is known."""


class LocalSgd(Protocol):
    """The hot loop: H local steps θ_c ← θ_c − γ(g_c(θ_c) + ξ_c) on every client, or on those given.

    With a pull λ and an anchor a they are θ_c ← θ_c − γ(g_c(θ_c) − g_c(a) + ξ_c + λ(θ_c − θ)), where θ is the
    client's start, and both gradients are on the same records.
    """

    def __call__(
        self, theta: Array, correction: Array, *, step_size: float, local_steps: int | IntArray, round: int,
        clients: IntArray | None = None, first_step: int = 0, pull: float = 0.0, anchor: Array | None = None,
    ) -> Array:  # fmt: skip
        """Local models (repetitions, clients, dim) from θ (repetitions, dim), or (repetitions, clients, dim).

        `clients` has shape (repetitions or 1, clients), or is None for all. Records are drawn as in steps
        first_step, first_step + 1, ... of the round. `pull` is λ, and `anchor` is a, (repetitions, dim).
        """


@runtime_checkable
class Engine(Protocol):
    """How the clients' local steps are computed."""

    @property
    def name(self) -> str:
        """Name in provenance and checkpoints, with every setting that changes the numbers."""

    def open(
        self,
        problem: Any,
        batches: Batches,
        *,
        seed: int,
        first_client: int = 0,
        privacy: RecordLevel | None = None,
    ) -> AbstractContextManager[LocalSgd]:
        """Prepare a run; what was opened is closed when the context is left.

        The problem may be a block of a larger problem's clients: then client c draws as client first_client + c.
        With `privacy`, local steps clip every record's gradient and add noise.
        """


class Store(Protocol):
    """A stateful object that a worker holds; see `WorkerPool`."""

    def place(self, state: Any) -> None:
        """Hold this state from now on, in place of the one before."""

    def snapshot(self) -> Any:
        """Return the state as it is now."""


StoreFactory = Callable[[], AbstractContextManager[Store]]


class WorkerPool(Protocol):
    """Workers with one `Store` each, for consecutive blocks of clients."""

    blocks: Sequence[tuple[int, int]]  # worker k has clients blocks[k][0] to blocks[k][1] - 1

    def call(self, name: str, *arguments: Any, changes: bool = True) -> list[Any]:
        """Call a method of every store; the results in the order of the blocks.

        `changes` says whether the call changes the stores, so that it must be repeated when a worker is rebuilt.
        """

    def place(self, states: Sequence[Any]) -> None:
        """Replace the state of every store, one state for each."""

    def end_round(self) -> None:
        """Tell the pool that a round is complete, a good moment for a snapshot."""


@runtime_checkable
class DistributedEngine(Protocol):
    """An engine whose clients live in workers, together with their state."""

    @property
    def shard_engine(self) -> Engine:
        """The engine that each worker runs."""

    def open_workers(
        self, n_clients: int, factory: Callable[[int, int], StoreFactory]
    ) -> AbstractContextManager[WorkerPool]:
        """Start the workers; factory(begin, end) makes the store of clients begin, ..., end − 1."""


Watch = Callable[[int, Array, Array | None], Array]


@runtime_checkable
class Observer(Protocol):
    """A quantity that a run records."""

    @property
    def name(self) -> str:
        """Name under which the trace keeps it."""

    @property
    def keep(self) -> Literal["every", "last"]:
        """Whether the trace keeps the value of every round, or only the last one."""

    def watch(self, problem: Any) -> Watch:
        """Return a function (round, θ, previous value) → value, with one row per repetition."""


@runtime_checkable
class Tracker(Protocol):
    """A destination of the values that a run records, such as `fedscaffold.trackers.TensorBoard`."""

    def open(
        self, settings: Mapping[str, Any]
    ) -> AbstractContextManager[Callable[[int, Mapping[str, Array]], object]]:
        """Start with the run's settings, plain values by name; yield a function of (round, recorded values)."""
