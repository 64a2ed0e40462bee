"""The shapes that the rooms agree on: problems, methods, engines, observers."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedscaffold.core.batches import Batches

Array = NDArray[np.float64]


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

    def batch_gradient(self, client: int, theta: Array, rows: NDArray[np.int64]) -> Array:
        """Mean gradient at θ over some of a client's records."""

    def smoothness(self, batches: Batches) -> float:
        """L with E‖g_c(θ) − g_c(θ')‖² ≤ L⟨∇f_c(θ) − ∇f_c(θ'), θ − θ'⟩ for every client."""

    def strong_convexity(self) -> float:
        """μ with ∇²f_c ≥ μI everywhere, for every client."""

    def describe(self) -> dict[str, Any]:
        """What it is, in words and numbers, for provenance."""

    def fingerprint(self) -> str:
        """A digest of everything that it is made of."""


class Records(Problem, Protocol):
    """A problem whose clients hold tables; what compiled engines read."""

    x: Array  # (records, dim), client after client
    y: Array  # (records,)
    offsets: NDArray[np.int64]  # client c's records are rows offsets[c] to offsets[c + 1] - 1
    l2: float


class Method(Protocol):
    """Where the correction ξ_c comes from, and what the server does with the local models.

    Arrays have axes (repetition, client, coordinate). `memory` is a named tuple of arrays.
    """

    @property
    def step_size(self) -> float:
        """γ."""

    @property
    def local_steps(self) -> int:
        """H."""

    @property
    def vectors_per_round(self) -> int:
        """How many vectors of θ's length a client receives and sends in a round."""

    def start(self, repetitions: int, weights: Array, dim: int, control_variates: ArrayLike | None) -> Any:
        """The clients' memory before the first round."""

    def correction(self, memory: Any, theta: Array) -> Array:
        """ξ_c, what each client adds to its gradients in this round."""

    def aggregate(self, theta: Array, mean_local: Array) -> Array:
        """θ⁺ from θ and the weighted mean of the local models."""

    def remember(self, memory: Any, local: Array, theta_new: Array) -> Any:
        """The clients' memory once they hear θ⁺."""

    def safe_step_size(self, smoothness: float, strong_convexity: float) -> float:
        """A step size with which the method provably does not diverge."""


class LocalSgd(Protocol):
    """The hot loop: every client's H local steps of one round."""

    def __call__(
        self, theta: Array, correction: Array, *, step_size: float, local_steps: int, round: int
    ) -> Array:
        """Local models (repetitions, clients, dim) from θ (repetitions, dim)."""


class Engine(Protocol):
    """How clients' local steps run."""

    @property
    def name(self) -> str:
        """What provenance and checkpoints call it, with anything that changes its numbers."""

    def open(self, problem: Any, batches: Batches, *, seed: int) -> AbstractContextManager[LocalSgd]:
        """Make ready for a run; what was opened is closed on leaving the context."""


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
