"""Compare the common model with those that clients would fit to their own rows alone."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.machine import grouped, in_file, one_blas_thread, spans
from fedscaffold.core.types import Array, offsets_of
from fedscaffold.data.encoded import EncodedProblem
from fedscaffold.models.planning.planned import PreparedProblem

MAX_LOCAL_MODELS = 100  # clients for which a model of their own is fitted
MIN_ROWS = 4  # of such a client, two in each half
NUMBERS_AT_ONCE = 1 << 20  # read from a file of rows


@dataclass(frozen=True, kw_only=True, eq=False)
class LocalModelComparison:
    """Mean losses on rows that were left out of the fits: of the common model, and of clients' own models.

    Attributes
    ----------
    clients
        Which clients were compared, by position, (compared,).
    common
        Loss of the model fitted to all clients, (compared,).
    local
        Loss of each client's own model, (compared,); NaN where a client has none.
    """

    clients: NDArray[np.int64]
    common: Array
    local: Array


@one_blas_thread
def compare_local_models(
    prepared: PreparedProblem, *, max_clients: int = MAX_LOCAL_MODELS
) -> LocalModelComparison:
    """Compare the common model with each client's own, by two-fold cross-validation inside every client.

    Every other row of each client makes one half. The common model (the pooled optimum of all clients' halves,
    which is what Scaffold comes close to) and a client's own model are fitted to one half and scored by the mean
    loss without penalty on the other; then the halves change places. With more than `max_clients` clients, evenly
    spaced ones are compared.
    """
    problem = prepared.problem
    able = np.flatnonzero(problem.sizes >= MIN_ROWS)
    count = min(max_clients, able.size)
    chosen = able[np.unique(np.linspace(0, able.size - 1, count).round().astype(np.int64))]
    common, local = np.zeros(chosen.size), np.zeros(chosen.size)
    for parity in (0, 1):
        theta = _common_model(problem, parity, prepared.optimum)
        for k, c in enumerate(chosen):
            left_out = half_of_rows(problem, [c], 1 - parity)
            common[k] += _data_loss(left_out, theta) * prepared.loss_scale / 2.0
            own = _local_model(half_of_rows(problem, [c], parity), theta)
            local[k] += np.nan if own is None else _data_loss(left_out, own) * prepared.loss_scale / 2.0
    return LocalModelComparison(clients=chosen, common=common, local=local)


def half_of_rows(
    problem: EncodedProblem, clients: Sequence[int] | NDArray[np.int64], parity: int
) -> EncodedProblem:
    """The problem on every other row of some clients; a client of one row keeps it in both halves."""
    chosen = np.asarray(clients)
    sizes = problem.sizes[chosen]
    kept = np.where(sizes > 1, (sizes + 1 - parity) // 2, 1)
    begins = problem.offsets[chosen] + np.where(sizes > 1, parity, 0)
    at = np.repeat(begins, kept) + 2 * (np.arange(kept.sum()) - np.repeat(np.cumsum(kept) - kept, kept))
    x, y = problem.x[at], problem.y[at]
    return problem.with_records(x=x, y=y, offsets=offsets_of(kept), weights=problem.weights[chosen])


def _common_model(problem: EncodedProblem, parity: int, start: Array) -> Array:
    """θ that minimises the loss on all clients' halves; of rows in a file, a block of clients is in memory."""
    if not in_file(problem.x):
        return _minimiser(half_of_rows(problem, range(problem.n_clients), parity), start)
    blocks = grouped(problem.sizes * problem.n_features, NUMBERS_AT_ONCE)
    bounds = problem.offsets[[0, *(end for _, end in blocks)]]

    def both(theta: Array) -> tuple[float, Array]:
        loss, gradient = 0.0, np.zeros(problem.dim)
        for (begin, end), _ in zip(blocks, spans(bounds, problem.x, problem.y), strict=True):
            part, share = half_of_rows(problem, range(begin, end), parity), float(problem.weights[begin:end].sum())
            loss += share * part.loss(theta)
            gradient += share * part.gradient(theta)
        return loss, gradient

    return np.asarray(minimize(both, start, jac=True, method="L-BFGS-B", options={"maxiter": 500}).x)


def _minimiser(problem: EncodedProblem, start: Array) -> Array:
    """θ that minimises a problem's loss, by L-BFGS from `start`."""
    with np.errstate(over="ignore", invalid="ignore"):  # where a step is too long for an exponential
        found = minimize(problem.loss, start, jac=problem.gradient, method="L-BFGS-B", options={"maxiter": 500})
    return np.asarray(found.x)


def _local_model(problem: EncodedProblem, start: Array) -> Array | None:
    """θ of a client's own model; the intercept is penalised too, since it may have rows of one class only.

    None where the client's rows have no unique minimiser.
    """
    if problem.l2 == 0.0:
        try:
            return problem.optimum()
        except InvalidInput:
            return None
    return _minimiser(problem.with_records(n_unpenalised=0), start)


def _data_loss(problem: EncodedProblem, theta: Array) -> float:
    """The loss without the l2 penalty."""
    return problem.loss(theta) - 0.5 * float(problem.penalty @ theta**2)
