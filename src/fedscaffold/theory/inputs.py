"""What theory reads of a problem, a block of clients at a time."""

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from numbers import Integral
from typing import Any, NamedTuple, Protocol, TypeGuard

import numpy as np
from numpy.typing import NDArray

from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.random.batches import Batches, Sampling
from fedscaffold.core.types import Array
from fedscaffold.theory.prediction.cubature import ByRecord
from fedscaffold.theory.prediction.streams import Streamed

GLMS = ("ridge", "logistic")
STREAMS = ("ridge_stream", "logistic_stream")
QUADRATIC = ("ridge", "ridge_stream")
LARGEST_STREAM = 20_000_000  # numbers in the Hessians of streamed clients, of which theory holds a dozen copies
NUMBERS_AT_ONCE = 1 << 19  # in a block: 4 megabytes; fewer would cost more in calls than they gain in cache


class Glm(Protocol):
    """f_c(θ) = mean of ℓ(xᵀθ, y) over client c's records, plus l2/2 ‖θ‖²; what theory needs of it."""

    n_clients: int
    dim: int
    weights: Array
    sizes: NDArray[np.int64]
    x: Array
    y: Array
    offsets: NDArray[np.int64]
    l2: float
    penalty: Array

    @property
    def kind(self) -> str: ...  # noqa: D102
    @property
    def curvature(self) -> float: ...  # noqa: D102
    def optimum(self) -> Array: ...  # noqa: D102
    def d1(self, z: Array, y: Array) -> Array: ...  # noqa: D102
    def d2(self, z: Array, y: Array) -> Array: ...  # noqa: D102
    def client_gradients(self, theta: Array) -> Array: ...  # noqa: D102
    def client_hessians(self, theta: Array) -> Array: ...  # noqa: D102
    def client_third_derivatives(self, theta: Array, matrix: Array) -> Array: ...  # noqa: D102
    def client_noise_covariances(  # noqa: D102
        self, theta: Array, *, batch_size: int | None, sampling: Sampling = "with_replacement"
    ) -> Array: ...
    def smoothness(self, batches: Batches) -> float: ...  # noqa: D102
    def strong_convexity(self) -> float: ...  # noqa: D102
    def subset(self, clients: NDArray[np.int64]) -> "Glm": ...  # noqa: D102


class Method(Protocol):
    """What theory needs of a method: which it is, γ and H.

    A method that lets clients sit out also has `participation` (a share) or `cohort` (a number of clients).
    """

    @property
    def kind(self) -> str:
        """Which method it is: theory knows "scaffold" and "fedavg"."""

    @property
    def step_size(self) -> float:
        """γ."""

    @property
    def local_steps(self) -> int | Sequence[int]:
        """H, the same on every client."""


class ParsedMethod(NamedTuple):
    """A method that theory knows."""

    scaffold: bool  # FedAvg is the other one
    gamma: float
    H: int


@dataclass(frozen=True)
class Block:
    """Some clients' records side by side; a client with fewer than the others is filled up with zeros."""

    clients: NDArray[np.int64]  # (k,)
    x: Array  # (k, n, d)
    y: Array  # (k, n)
    share: Array  # (k, n): 1/n_c for a record, 0 for filling


def has_record_gradients(problem: Any) -> TypeGuard[ByRecord]:
    """Whether a problem is known by the gradients of its records rather than by margins."""
    return problem.kind not in GLMS + STREAMS and hasattr(problem, "record_gradients")


def is_streamed(problem: Any) -> TypeGuard[Streamed]:
    """Whether a problem's clients are distributions."""
    return problem.kind in STREAMS


def for_blocks(problem: Glm, work: Callable[[Block], None], *, copies: int = 1) -> None:
    """Call work on all clients, those of like size together, a block at a time on each processor.

    `copies` says how many times work copies x. Blocks do not depend on how many processors there are.
    """
    if has_record_gradients(problem):
        for client in range(problem.n_clients):
            work(_nothing_of(np.array([client])))
        return
    if is_streamed(problem):
        size = max(1, NUMBERS_AT_ONCE // (2 * problem.dim**2 * copies))
        whole = np.arange(problem.n_clients)
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            blocks = [_nothing_of(whole[k : k + size]) for k in range(0, whole.size, size)]
            for _ in pool.map(work, blocks):
                pass
        return
    order = np.argsort(problem.sizes, kind="stable").astype(np.int64)
    rows = problem.sizes[order] * problem.dim * copies
    groups, begin = [], 0
    for end in range(1, order.size + 1):
        if end == order.size or (end + 1 - begin) * int(rows[end]) > NUMBERS_AT_ONCE:
            groups.append(order[begin:end])
            begin = end
    if len(groups) == 1:
        work(_block(problem, groups[0]))
        return
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for _ in pool.map(lambda group: work(_block(problem, group)), groups):
            pass


def _nothing_of(clients: NDArray[np.int64]) -> Block:
    """Clients without a table."""
    nothing = np.empty((clients.size, 0))
    return Block(clients, nothing[..., None], nothing, nothing)


def _block(problem: Glm, clients: NDArray[np.int64]) -> Block:
    sizes = problem.sizes[clients]
    n, d = int(sizes.max()), problem.dim
    first, last = int(clients[0]), int(clients[-1])
    if (sizes == n).all() and last - first + 1 == clients.size and (np.diff(clients) == 1).all():
        rows = slice(int(problem.offsets[first]), int(problem.offsets[last + 1]))
        shape = (clients.size, n)
        return Block(clients, problem.x[rows].reshape(*shape, d), problem.y[rows].reshape(shape), _ones(shape) / n)
    x, y, share = np.zeros((clients.size, n, d)), np.ones((clients.size, n)), np.zeros((clients.size, n))
    for k, client in enumerate(clients):
        rows, size = slice(int(problem.offsets[client]), int(problem.offsets[client + 1])), int(sizes[k])
        x[k, :size], y[k, :size], share[k, :size] = problem.x[rows], problem.y[rows], 1.0 / size
    return Block(clients, x, y, share)


def _ones(shape: tuple[int, int]) -> Array:
    return np.broadcast_to(np.float64(1.0), shape)


def noise_factors(problem: Glm, batches: Batches) -> Array:
    """Variance of each client's batch mean over that of one record, shape (N,)."""
    batches.check_fits(problem.sizes)
    factors = {int(n): batches.noise_factor(int(n)) for n in np.unique(problem.sizes)}
    return np.array([factors[int(n)] for n in problem.sizes])


def known(problem: Glm, method: Method) -> ParsedMethod:
    """Which method it is, γ and H; refuses problems and methods that theory does not know."""
    if problem.kind not in GLMS and not is_streamed(problem) and not has_record_gradients(problem):
        raise InvalidInput(
            f"theory knows {' and '.join(GLMS)} regression, on tables or streams, and problems with "
            f"record_gradients, not {problem.kind}"
        )
    if is_streamed(problem) and problem.n_clients * problem.dim**2 > LARGEST_STREAM:
        raise InvalidInput(
            f"theory would hold {problem.n_clients:,} matrices of {problem.dim}², one for each client; use "
            "theory.predict_at_scale, which does not, or a subset of the clients"
        )
    kind = getattr(method, "kind", type(method).__name__)
    if kind not in ("scaffold", "fedavg"):
        raise InvalidInput(f"theory knows Scaffold and FedAvg, not {kind}; simulate it with fedscaffold.run")
    all_alike = "theory knows full participation with the same number of local steps on every client"
    if getattr(method, "participation", 1.0) != 1.0 or getattr(method, "cohort", None) is not None:
        raise InvalidInput(f"{all_alike}, but here only some clients take part in a round")
    if not isinstance(method.local_steps, Integral):
        raise InvalidInput(f"{all_alike}, but local_steps is {method.local_steps!r}; give one whole number")
    return ParsedMethod(kind == "scaffold", method.step_size, int(method.local_steps))
