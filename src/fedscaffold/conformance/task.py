"""Tasks for an implementation under test: quadratic losses as plain data, and their exact solutions."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedscaffold.core.errors import FedScaffoldError

Array = NDArray[np.float64]


class NotSupported(FedScaffoldError):
    """Error of an adapter whose implementation cannot do what a check needs; reported, never counted as passed.

    Examples
    --------
    >>> from fedscaffold.conformance import NotSupported
    >>> def start(task):
    ...     if not task.has_equal_weights:
    ...         raise NotSupported("this implementation takes clients of equal weight only")
    """


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Task:
    """f_c(θ) = ½ (θ − m_c)ᵀ A_c (θ − m_c), to be minimised in the mean Σ w_c f_c with full gradients.

    Attributes
    ----------
    hessians
        A_c, one symmetric positive definite matrix per client: (n_clients, dim, dim).
    minimisers
        m_c, the minimiser of each client's own loss: (n_clients, dim).
    weights
        w_c, positive, summing to one, whole multiples of 0.01: ``round(100 * w)`` serves as a number of records.
    local_steps
        H_c, for each client.
    step_size
        γ, of the local steps. The server's step size is one.
    theta0
        The model before the first round, (dim,). It is not zero.

    Examples
    --------
    >>> import numpy as np
    >>> from fedscaffold.conformance import Task
    >>> task = Task(hessians=np.array([np.eye(2), 2 * np.eye(2)]), minimisers=np.array([[1.0, 0.0], [0.0, 1.0]]),
    ...             weights=np.array([0.5, 0.5]), local_steps=(3, 3), step_size=0.1, theta0=np.ones(2))
    >>> task
    Task(n_clients=2, dim=2, step_size=0.1, local_steps=(3, 3))
    >>> task.gradient(1, [1.0, 1.0])
    array([2., 0.])
    """

    hessians: Array
    minimisers: Array
    weights: Array
    local_steps: tuple[int, ...]
    step_size: float
    theta0: Array

    def __repr__(self) -> str:
        sizes = f"n_clients={self.n_clients}, dim={self.dim}"
        return f"Task({sizes}, step_size={self.step_size:.3g}, local_steps={self.local_steps})"

    @property
    def n_clients(self) -> int:
        """Number of clients N."""
        return len(self.minimisers)

    @property
    def dim(self) -> int:
        """Number of coordinates of θ."""
        return len(self.theta0)

    @property
    def has_equal_weights(self) -> bool:
        """Whether all w_c = 1/N."""
        return bool(np.ptp(self.weights) == 0.0)

    @property
    def has_equal_local_steps(self) -> bool:
        """Whether all H_c are the same."""
        return len(set(self.local_steps)) == 1

    def gradient(self, client: int, theta: ArrayLike) -> Array:
        """Return ∇f_c(θ) = A_c (θ − m_c)."""
        return self.hessians[client] @ (np.asarray(theta, dtype=np.float64) - self.minimisers[client])


class Federation(Protocol):
    """A Scaffold under test.

    It may also have, each for further checks:

    - `reconfigure(task)`: from the next round on, use this task's step size and local steps;
    - `round_with_lost_replies(cohort, lost)`: a round in which the replies of some clients do not arrive;
    - `save(client)` and `restart(client, saved)`: return the state of a client, and start a new client from it;
    - `save_server()` and `restart_server(saved)`: the same for the server.

    Examples
    --------
    >>> import numpy as np
    >>> class WithoutCorrections:
    ...     # FedAvg, which the checks must not accept
    ...     def __init__(self, task):
    ...         self.task, self.theta = task, task.theta0
    ...     def round(self, cohort):
    ...         local = []
    ...         for c in cohort:
    ...             theta = self.theta
    ...             for _ in range(self.task.local_steps[c]):
    ...                 theta = theta - self.task.step_size * self.task.gradient(c, theta)
    ...             local.append(theta)
    ...         self.theta = np.mean(local, axis=0)
    ...     def model(self):
    ...         return self.theta
    ...     def correction(self, client):
    ...         return np.zeros(self.task.dim)
    """

    def round(self, cohort: tuple[int, ...]) -> None:
        """Run one communication round with these clients and no others."""

    def model(self) -> ArrayLike:
        """Return θ, the server's model after the last round."""

    def correction(self, client: int) -> ArrayLike:
        """Return ξ_c, which this client adds to its gradients in the next round: θ_c ← θ_c − γ(g_c + ξ_c)."""


Start = Callable[[Task], Federation]


def make_task(
    rng: np.random.Generator,
    *,
    n_clients: int,
    dim: int,
    smoothness: float,
    reach: float,
    local_steps: Sequence[int],
    spread: float = 1.0,
    equal_weights: bool = True,
) -> Task:
    """Draw A_c with eigenvalues in [L/4, L] and m_c of size `spread`; γ = reach / (L · mean H_c)."""
    values = smoothness * rng.uniform(0.25, 1.0, size=(n_clients, dim))
    bases = np.linalg.qr(rng.normal(size=(n_clients, dim, dim)))[0]
    weights = np.full(n_clients, 1.0 / n_clients)
    if not equal_weights:
        weights = 0.01 * (2 + rng.multinomial(100 - 2 * n_clients, rng.dirichlet(np.full(n_clients, 0.7))))
    return Task(
        hessians=np.einsum("cij,cj,ckj->cik", bases, values, bases),
        minimisers=spread * rng.normal(size=(n_clients, dim)),
        weights=weights,
        local_steps=tuple(local_steps),
        step_size=reach / (smoothness * float(np.mean(local_steps))),
        theta0=2.0 * spread * rng.normal(size=dim),
    )


def optimum(task: Task, weights: Array | None = None) -> Array:
    """Return θ* = (Σ w_c A_c)⁻¹ Σ w_c A_c m_c."""
    w = task.weights if weights is None else weights
    return np.linalg.solve(
        np.einsum("c,cij->ij", w, task.hessians), np.einsum("c,cij,cj->i", w, task.hessians, task.minimisers)
    )


def fedavg_map(task: Task) -> tuple[Array, Array]:
    """Return M and b of a round of FedAvg, θ ← M θ + b: M = Σ w_c (I − γA_c)^{H_c}, b = Σ w_c (I − that) m_c."""
    eye = np.eye(task.dim)
    steps = zip(eye - task.step_size * task.hessians, task.local_steps, strict=True)
    powers = np.stack([np.linalg.matrix_power(step, h) for step, h in steps])
    m = np.einsum("c,cij->ij", task.weights, powers)
    return m, np.einsum("c,cij,cj->i", task.weights, eye - powers, task.minimisers)


def fedavg_fixed_point(task: Task) -> Array:
    """Return the fixed point of FedAvg, (I − M)⁻¹ b."""
    m, b = fedavg_map(task)
    return np.asarray(np.linalg.solve(np.eye(task.dim) - m, b), dtype=np.float64)


def mean_gradients(task: Task, clients: Iterable[int], theta: Array, corrections: Array) -> Array:
    """Return (1/H) Σ_h ∇f_c(θ_c^h) along each client's corrected path from θ: its correct control variate."""
    means = []
    for c in clients:
        local, total = theta.copy(), np.zeros(task.dim)
        for _ in range(task.local_steps[c]):
            gradient = task.gradient(c, local)
            total += gradient
            local -= task.step_size * (gradient + corrections[c])
        means.append(total / task.local_steps[c])
    return np.asarray(means, dtype=np.float64)


def draw_cohorts(rng: np.random.Generator, task: Task, size: int, rounds: int) -> tuple[tuple[int, ...], ...]:
    """Draw `size` different clients for each round."""
    return tuple(tuple(sorted(rng.permutation(task.n_clients)[:size].tolist())) for _ in range(rounds))
