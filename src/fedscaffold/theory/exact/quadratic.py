"""Quadratic losses at θ*: each client's mean matrix and slope, and the covariance of its stochastic gradients.

With x = θ − θ*, record i of client c has the gradient A_i x + s_i. The covariance of one record's gradient is
linear in W = E[(1, x)(1, x)ᵀ], which is all that the exact laws need of the records.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, Protocol, runtime_checkable
from weakref import WeakKeyDictionary

import numpy as np

from fedscaffold.core.capabilities import GeneralisedLinear, HasResidualVariances, MarginLoss, PopulationMoments
from fedscaffold.core.protocols import Problem
from fedscaffold.core.random.draws import Draws
from fedscaffold.core.random.stream import Batches
from fedscaffold.core.types import Array, IntArray

BLOCK = 1 << 18  # numbers in a block's records: 2 MB, which stay in the processor's cache


@runtime_checkable
class MeanSystems(Protocol):
    """Linear stochastic approximation: "gradients" with means Ā_c θ − b̄_c and any matrices."""

    client_matrices: Array  # Ā_c, (N, d, d)

    def noise_factor(self, batches: Batches, n: int) -> float:
        """Variance of a batch mean over that of one record, for a client of n records."""


@runtime_checkable
class RecordSystems(MeanSystems, Protocol):
    """Records A_i, b_i of linear systems, drawn uniformly or with given probabilities."""

    A: Array
    b: Array
    offsets: IntArray
    probabilities: Array | None


@runtime_checkable
class TransitionSystems(MeanSystems, Protocol):
    """Records with gradients (m_iᵀθ − y_i) x_i and probabilities, drawn each by itself or along a chain."""

    x: Array
    y: Array
    margins: Array
    offsets: IntArray
    probabilities: Array
    draws: Draws


def is_quadratic(problem: Problem) -> bool:
    """Return whether every client's gradient is linear in θ, with known first and second moments."""
    if isinstance(problem, MeanSystems):
        return isinstance(problem, RecordSystems | TransitionSystems)
    known = isinstance(problem, GeneralisedLinear | PopulationMoments)
    return known and isinstance(problem, MarginLoss) and problem.margin_derivative_bounds == (0.0, 0.0)


def noise_factors(problem: Any, batches: Batches) -> Array:
    """Return the variance of each client's batch mean over that of one record, (N,); 0 for a single record."""
    batches.check_fits(problem.sizes)
    sizes, where = np.unique(problem.sizes, return_inverse=True)
    if isinstance(problem, MeanSystems):
        factors = [problem.noise_factor(batches, int(n)) for n in sizes]
    else:
        endless = isinstance(problem, PopulationMoments)
        factors = [batches.noise_factor(int(n)) if endless or n > 1 else 0.0 for n in sizes]
    return np.array(factors)[where]


# Some clients' records. `covariances` returns Cov of one record's gradient, (k, m, d, d), given W of shape
# (k, m, d + 1, d + 1); with a rotation U, (k, d, d), W and the result are in the coordinates Uᵀx.


@dataclass(frozen=True, eq=False)
class RankOne:
    """Clients with gradients x_i (r_i + m_iᵀx), filled up with zeros to the same number of records."""

    clients: IntArray
    x: Array  # (k, n, d)
    margins: Array  # m_i, (k, n, d); the same object as x for regression
    residuals: Array  # r_i, (k, n)
    share: Array  # probability of each record, 0 for filling, (k, n)

    def covariances(self, second: Array, rotation: Array | None) -> Array:
        """Return Σ_i p_i (uᵢᵀWuᵢ) x_i x_iᵀ − V W Vᵀ, with u_i = (r_i, m_i) and V = Σ_i p_i x_i u_iᵀ."""
        x = self.x if rotation is None else self.x @ rotation
        m = x if self.margins is self.x else self.margins if rotation is None else self.margins @ rotation
        r, p = self.residuals, self.share
        weighted = np.swapaxes(p[..., None] * x, 1, 2)
        mean = np.concatenate([weighted @ r[..., None], weighted @ m], axis=2)  # V, (k, d, d + 1)
        found = np.empty((*second.shape[:2], x.shape[2], x.shape[2]))
        for q in range(second.shape[1]):
            W = second[:, q]
            form = np.einsum("kni,kni->kn", m @ W[:, 1:, 1:], m)
            form += 2.0 * r * (m @ W[:, 1:, :1])[..., 0] + W[:, :1, 0] * r * r
            found[:, q] = np.swapaxes(x * (p * form)[..., None], 1, 2) @ x - mean @ W @ np.swapaxes(mean, 1, 2)
        return found


@dataclass(frozen=True, eq=False)
class Systems:
    """Clients whose records are any matrices [s_i, A_i], filled up with zeros to the same number of records."""

    clients: IntArray
    records: Array  # (k, n, d, d + 1)
    share: Array  # (k, n)

    def covariances(self, second: Array, rotation: Array | None) -> Array:
        """Return Σ_i p_i [s_i, A_i] W [s_i, A_i]ᵀ − V W Vᵀ, with V the mean of the [s_i, A_i]."""
        assert rotation is None  # since matrices that are not symmetric have no common rotation
        mean = np.einsum("kn,knij->kij", self.share, self.records)[:, None]
        moved = np.einsum("knij,kqjl->kqnil", self.records, second)
        total = np.einsum("kn,kqnil,knjl->kqij", self.share, moved, self.records, optimize=True)
        return total - mean @ second @ np.swapaxes(mean, 2, 3)


@dataclass(frozen=True, eq=False)
class GaussianRecords:
    """Clients that draw x ~ N(0, S_c) and y = xᵀw_c plus noise: with u = θ − w_c, by Wick's formula."""

    clients: IntArray
    variances: Array  # diagonal of S_c, (k, d)
    off: Array  # θ* − w_c, (k, d)
    residual: Array  # Var(xᵀθ* − y), (k,)

    def covariances(self, second: Array, rotation: Array | None) -> Array:
        """Return E(xᵀu − noise)² S_c + S_c E[uuᵀ] S_c."""
        S, off = self.variances[:, None], self.off[:, None]
        W, first = second[..., 1:, 1:], second[..., 1:, 0]
        one = second[..., 0, 0]
        if rotation is not None:
            U = rotation[:, None]
            W, first = U @ W @ np.swapaxes(U, 2, 3), (U @ first[..., None])[..., 0]
        cross = first[..., :, None] * off[..., None, :]
        about = (
            W + cross + np.swapaxes(cross, 2, 3) + one[..., None, None] * (off[..., :, None] * off[..., None, :])
        )
        spread = np.einsum("kqii,kqi->kq", W, np.broadcast_to(S, first.shape)) + 2.0 * (S * off * first).sum(-1)
        spread += one * self.residual[:, None]
        found = S[..., :, None] * about * S[..., None, :]
        every = np.arange(S.shape[2])
        found[..., every, every] += spread[..., None] * S
        return found if rotation is None else np.swapaxes(U, 2, 3) @ found @ U


@dataclass(frozen=True, eq=False)
class Quadratic:
    """The clients of a problem at θ*."""

    weights: Array  # (N,)
    optimum: Array  # θ*, (d,)
    matrices: Array  # E A_i of every client, ∇²f_c, (N, d, d)
    slopes: Array  # E s_i of every client, ∇f_c(θ*), (N, d)
    blocks: Sequence[RankOne | Systems | GaussianRecords]  # the clients' records, a few megabytes in each

    @cached_property
    def eigen(self) -> tuple[Array, Array]:
        """Eigenvalues and eigenvectors of symmetric matrices, (N, d) and (N, d, d)."""
        lam, U = np.linalg.eigh(self.matrices)
        return np.asarray(lam), np.asarray(U)

    @cached_property
    def covariances_at_optimum(self) -> Array:
        """Covariance of one record's gradient at θ*, in the eigenbases, (N, d, d)."""
        N, d = self.slopes.shape
        unit = np.diag(np.append(1.0, np.zeros(d)))
        U = self.eigen[1]
        return np.swapaxes(U, 1, 2) @ self.covariances(np.broadcast_to(unit, (N, 1, d + 1, d + 1)))[:, 0] @ U

    @cached_property
    def covariances_of_unit(self) -> Array:
        """Covariance of one record's gradient if E xxᵀ = I and all residuals are 0, (N, d, d)."""
        N, d = self.slopes.shape
        unit = np.diag(np.append(0.0, np.ones(d)))
        return self.covariances(np.broadcast_to(unit, (N, 1, d + 1, d + 1)))[:, 0]

    def part(self, clients: IntArray) -> "Quadratic":
        """Return some of the clients, in increasing order, with the weights that they have here."""
        blocks: list[Any] = []
        for block in self.blocks:
            kept = np.flatnonzero(np.isin(block.clients, clients))
            if kept.size:
                arrays = {id(array): array[kept] for array in vars(block).values()}  # margins may be x itself
                new = [arrays[id(array)] for array in vars(block).values()]
                made: Any = type(block)
                blocks.append(made(np.searchsorted(clients, new[0]), *new[1:]))
        w, A, s = self.weights[clients], self.matrices[clients], self.slopes[clients]
        return Quadratic(w, self.optimum, A, s, blocks)

    def covariances(self, second: Array) -> Array:
        """Return the covariance of one record's gradient of every client, (N, m, d, d), given W of each."""
        found = np.empty((*second.shape[:2], self.optimum.size, self.optimum.size))
        for block in self.blocks:
            found[block.clients] = block.covariances(second[block.clients], None)
        return found


_known: "WeakKeyDictionary[Problem, Quadratic]" = WeakKeyDictionary()


def quadratic(problem: Any) -> Quadratic:
    """Return the clients of a quadratic problem at θ*; computed once for each problem."""
    if problem not in _known:
        theta = problem.optimum()
        _known[problem] = Quadratic(
            weights=problem.weights,
            optimum=theta,
            matrices=problem.client_matrices
            if isinstance(problem, MeanSystems)
            else problem.client_hessians(theta),
            slopes=problem.client_gradients(theta),
            blocks=list(_blocks(problem, theta)),
        )
    return _known[problem]


def _blocks(problem: Any, theta: Array) -> Iterator[RankOne | Systems | GaussianRecords]:
    d = problem.dim
    if isinstance(problem, PopulationMoments):
        assert isinstance(problem, HasResidualVariances)  # as quadratic streams are linear regression
        for clients in np.array_split(np.arange(problem.n_clients), 1 + problem.n_clients * d**2 // BLOCK):
            scale, w = problem.law(clients)
            residual = problem.residual_variances(theta, clients)
            yield GaussianRecords(clients, scale[:, None] * problem.spectrum, theta - w, residual)
        return
    table = isinstance(problem, GeneralisedLinear | TransitionSystems)
    drawn = getattr(problem, "probabilities", None)
    numbers = d if table else d * (d + 1)  # of a record
    for clients, rows in client_rows(problem.offsets, numbers):
        real = rows >= 0
        n = real.sum(axis=1)
        share = real / n[:, None] if drawn is None else np.where(real, np.ravel(drawn)[rows], 0.0)
        if table:
            x = taken(problem.x, rows)
            m = taken(problem.margins, rows) if isinstance(problem, TransitionSystems) else x
            yield RankOne(clients, x, m, np.where(real, m @ theta - problem.y[rows], 0.0), share)
        else:
            A, b = problem.A[rows], problem.b[rows]
            records = np.concatenate([(A @ theta - b)[..., None], A], axis=3)
            yield Systems(clients, records, share)


def client_rows(offsets: IntArray, numbers: int) -> Iterator[tuple[IntArray, IntArray]]:
    """Yield clients of similar sizes, as many as fit into a block, and the rows of their records, (k, n).

    Beyond a client's last record rows are −1. `numbers` is how many numbers a record has.
    """
    sizes = np.diff(offsets)
    order = np.argsort(sizes, kind="stable")
    begin = 0
    for end in range(1, order.size + 1):
        if end == order.size or (end + 1 - begin) * int(sizes[order[end]]) * numbers > BLOCK:
            clients = order[begin:end]
            at = np.arange(int(sizes[clients].max()))
            yield clients, np.where(at < sizes[clients, None], offsets[clients, None] + at, -1)
            begin = end


def taken(table: Array, rows: IntArray) -> Array:
    """Return rows of a table, 0 for −1; a view if they follow one another."""
    first, last = int(rows[0, 0]), int(rows[-1, -1])
    if last == first + rows.size - 1 and all(b - a == rows.shape[1] for a, b in pairwise(rows[:, 0])):
        return table[first : last + 1].reshape(*rows.shape, -1)
    return np.where((rows >= 0)[..., None], table[rows], 0.0)
