"""Scaffold's model against FedAvg's, the pooled one, and those that clients would fit alone."""

import copy
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.memmap import grouped, in_file, spans
from fedscaffold.core.offsets import offsets_of
from fedscaffold.core.progress import Progress
from fedscaffold.core.threads import one_blas_thread
from fedscaffold.core.types import Array
from fedscaffold.data.encoded import EncodedProblem
from fedscaffold.methods import FedAvg
from fedscaffold.models.fit import ENGINE, Settings, Task
from fedscaffold.simulation import Mse, Trace
from fedscaffold.simulation.run import run

MOST_ALONE = 100  # clients for which a model of their own is fitted
FEWEST_ROWS = 4  # of a client, two in each half
NUMBERS_AT_ONCE = 1 << 20  # of rows in a file


@dataclass(frozen=True, kw_only=True)
class Standing:
    """How one θ does: f(θ), ‖θ − θ*‖/‖θ*‖, and f_c(θ) of each client; losses in the target's own units."""

    name: str
    theta: Array
    loss: float
    relative_distance: float
    client_losses: Array


@dataclass(frozen=True, kw_only=True)
class Alone:
    """Losses on rows that were not fitted, of clients `clients`: together and alone, (clients,).

    NaN where a client has no model of its own.
    """

    clients: NDArray[np.int64]
    together: Array
    alone: Array

    @property
    def helped(self) -> NDArray[np.bool_]:
        """Clients that the common model serves better than their own."""
        return self.together < self.alone


def standing(name: str, task: Task, theta: Array) -> Standing:
    """How θ does on the task's problem."""
    losses = task.problem.client_losses(theta) * task.loss_scale
    return Standing(
        name=name,
        theta=theta,
        loss=float(task.problem.weights @ losses),
        relative_distance=float(np.linalg.norm(theta - task.optimum) / np.linalg.norm(task.optimum)),
        client_losses=losses,
    )


def fedavg(task: Task, settings: Settings, *, rounds: int, progress: Progress = None) -> Trace:
    """FedAvg with the same step size, local steps, batches and seed."""
    method = FedAvg(step_size=task.method.step_size, local_steps=task.method.uniform_local_steps)
    return run(
        task.problem,
        method,
        rounds=rounds,
        batch_size=task.batch_size,
        seed=settings.seed,
        engine=ENGINE,
        progress=progress,
        record=(Mse(task.optimum),),
    )


@one_blas_thread
def alone(task: Task, *, most: int = MOST_ALONE) -> Alone:
    """Who gains from the common model: two-fold validation inside every client.

    Every other row of each client makes one half. The common model (the pooled optimum of all clients' halves,
    which is what Scaffold comes close to) and a client's own model are fitted on one half and judged by the mean
    loss without penalty on the other; then the halves change places. With more than `most` clients, evenly spaced
    ones are judged.
    """
    problem = task.problem
    able = np.flatnonzero(problem.sizes >= FEWEST_ROWS)
    chosen = able[np.unique(np.linspace(0, able.size - 1, min(most, able.size)).round().astype(np.int64))]
    together, own = np.zeros(chosen.size), np.zeros(chosen.size)
    for parity in (0, 1):
        common = _common(problem, parity, task.optimum)
        for k, c in enumerate(chosen):
            unseen = _half(problem, [c], 1 - parity)
            together[k] += _data_loss(unseen, common) * task.loss_scale / 2.0
            theta = _own_minimiser(_half(problem, [c], parity), common)
            own[k] += np.nan if theta is None else _data_loss(unseen, theta) * task.loss_scale / 2.0
    return Alone(clients=chosen, together=together, alone=own)


def _half(problem: EncodedProblem, clients: Sequence[int] | NDArray[np.int64], parity: int) -> EncodedProblem:
    """The problem on every other row of some clients; a client of one row keeps it in both halves."""
    chosen = np.asarray(clients)
    sizes = problem.sizes[chosen]
    kept = np.where(sizes > 1, (sizes + 1 - parity) // 2, 1)
    begins = problem.offsets[chosen] + np.where(sizes > 1, parity, 0)
    at = np.repeat(begins, kept) + 2 * (np.arange(kept.sum()) - np.repeat(np.cumsum(kept) - kept, kept))
    other = copy.copy(problem)
    other._set_data(
        problem.x[at],
        problem.y[at],
        offsets_of(kept),
        l2=problem.l2,
        weights=problem.weights[chosen],
        n_unpenalised=problem.n_unpenalised,
    )
    return other


def _common(problem: EncodedProblem, parity: int, start: Array) -> Array:
    """The pooled optimum of all clients' halves; of rows in a file, some clients' at a time are in memory."""
    if not in_file(problem.x):
        return _minimiser(_half(problem, range(problem.n_clients), parity), start)
    blocks = grouped(problem.sizes * problem.n_features, NUMBERS_AT_ONCE)
    bounds = problem.offsets[[0, *(end for _, end in blocks)]]

    def both(theta: Array) -> tuple[float, Array]:
        loss, gradient = 0.0, np.zeros(problem.dim)
        for (begin, end), _ in zip(blocks, spans(bounds, problem.x, problem.y), strict=True):
            part, share = _half(problem, range(begin, end), parity), float(problem.weights[begin:end].sum())
            loss += share * part.loss(theta)
            gradient += share * part.gradient(theta)
        return loss, gradient

    return np.asarray(minimize(both, start, jac=True, method="L-BFGS-B", options={"maxiter": 500}).x)


def _minimiser(problem: EncodedProblem, start: Array) -> Array:
    found = minimize(problem.loss, start, jac=problem.gradient, method="L-BFGS-B", options={"maxiter": 500})
    return np.asarray(found.x)


def _own_minimiser(problem: EncodedProblem, start: Array) -> Array | None:
    """A client's own model; its intercept is penalised too, since it may have rows of one class only."""
    if problem.l2 == 0.0:
        try:
            return problem.optimum()
        except InvalidInput:
            return None
    held = copy.copy(problem)
    held._set_data(problem.x, problem.y, problem.offsets, l2=problem.l2, weights=problem.weights, n_unpenalised=0)
    return _minimiser(held, start)


def _data_loss(problem: EncodedProblem, theta: Array) -> float:
    return problem.loss(theta) - 0.5 * float(problem.penalty @ theta**2)
