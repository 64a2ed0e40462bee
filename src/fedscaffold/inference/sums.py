"""Closing sums, from which standard errors, tests and the distance to the optimum are computed.

They are computed in one pass over the records at θ, some thousand rows at a time. Intercepts of single clients are
fitted to the client's rows and eliminated from its sums.
"""

import math
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property, partial, reduce
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.machine import one_blas_thread, spans
from fedscaffold.core.types import Array, IntArray
from fedscaffold.problems.base import OFFSET, TARGET, WEIGHT, log_softmax
from fedscaffold.problems.cox import RiskSets
from fedscaffold.problems.families import family_of
from fedscaffold.problems.glm import Glm
from fedscaffold.problems.multinomial import Multinomial, gram

MATRICES = ("hessian", "information", "score_products", "cluster_products")
NUMBERS_AT_ONCE = 1 << 18  # of a block of records: 2 megabytes, of which two copies are made
MOST_COEFFICIENTS = 1000  # a Hessian of 8 megabytes, and a second or so for its inverse
MOST_STEPS = 100  # of Newton's method for one intercept


@dataclass(frozen=True, kw_only=True, eq=False)
class ClosingSums:
    """Sums over the records of one client, or of several, at one θ; sums of several clients are added with +.

    Records have weights a: the sample weight, times a factor of the client unless clients count by their rows.

    Attributes
    ----------
    kind
        The problem's kind, such as "logistic".
    theta
        The model at which the sums were taken, (dim,).
    rows, clients
        Numbers of records with a positive weight, and of clients that have some.
    intercepts
        Number of clients with an intercept that was fitted.
    weight
        Σ a.
    loss
        Σ a ℓ, without penalty.
    saturated, constant, pearson
        Σ a ℓ of a perfect fit, terms of the log-likelihood without θ, and Pearson's statistic.
    null
        Sums for the model with a constant alone; they depend on the family.
    gradient
        Σ a ∇ℓ, (dim,).
    squares
        Σ a x², (features,).
    varying
        For each feature, the number of clients in which it is not constant, (features,).
    hessian
        Σ a ∇²ℓ, (dim, dim).
    information
        The expected Hessian, (dim, dim), if it differs from `hessian`; else None.
    score_products
        Σ a² ∇ℓ ∇ℓᵀ over records, (dim, dim); zeros unless asked for.
    cluster_products
        Σ g gᵀ over clients with gradients g, (dim, dim); zeros unless products of scores were asked for.

    Examples
    --------
    >>> import numpy as np
    >>> import fedscaffold as fs
    >>> rng = np.random.default_rng(0)
    >>> X, y = rng.normal(size=(3, 20, 2)), rng.normal(size=(3, 20))
    >>> problem = fs.problems.Ridge(X, y)
    >>> one, two, three = (fs.inference.client_sums(problem, c, np.zeros(2)) for c in range(3))
    >>> (one + two + three).rows
    60
    >>> sum(block.size for block in (one + two + three).blocks().values())  # numbers that a client would send
    25
    """

    kind: str
    theta: Array
    rows: int
    clients: int
    intercepts: int
    weight: float
    loss: float
    saturated: float
    constant: float
    pearson: float
    null: Array
    gradient: Array
    squares: Array
    varying: Array
    hessian: Array
    information: Array | None
    score_products: Array
    cluster_products: Array

    def __add__(self, other: "ClosingSums") -> "ClosingSums":
        """Return the sums over the records of both, which must have been taken at the same θ."""
        if self.kind != other.kind or not np.array_equal(self.theta, other.theta):
            raise InvalidInput("closing sums can be added only if they were taken at the same θ of the same kind")
        own, others = self.blocks(), other.blocks()
        return self.of_blocks(self.kind, self.theta, {name: block + others[name] for name, block in own.items()})

    @property
    def dim(self) -> int:
        """Number of coefficients, intercepts of clients not counted."""
        return self.theta.size

    def penalised_loss(self, penalty: Array) -> float:
        """Return f(θ), the loss per row, from the penalty's second derivatives in units of the sums."""
        return (self.loss + 0.5 * float(penalty @ self.theta**2)) / self.rows

    def blocks(self) -> dict[str, Array]:
        """Return all sums as vectors by name, those of clients to be added up; of matrices the upper triangle."""
        upper = np.triu_indices(self.dim)
        values = {each.name: getattr(self, each.name) for each in fields(self)[2:]}
        return {
            name: np.array(value[upper] if name in MATRICES else value, dtype=np.float64, ndmin=1)
            for name, value in values.items()
            if value is not None
        }

    @classmethod
    def of_blocks(cls, kind: str, theta: Array, blocks: Mapping[str, Array]) -> Self:
        """Return the sums at θ from such blocks; products of scores are zeros if they are missing.

        Raises
        ------
        InvalidInput
            If another block is missing, or has another size.
        """
        none = np.zeros((theta.size, theta.size))
        found: dict[str, Any] = {"information": None, "score_products": none, "cluster_products": none}
        try:
            for each in fields(cls)[2:]:
                if each.name in found and each.name not in blocks:
                    continue
                block = blocks[each.name]
                if each.name in MATRICES:
                    matrix = np.zeros_like(none)
                    matrix[np.triu_indices(theta.size)] = block
                    found[each.name] = matrix + np.triu(matrix, 1).T
                elif each.type is Array:
                    found[each.name] = block
                    if each.name == "gradient" and block.shape != theta.shape:
                        raise ValueError(f"the gradient has {block.size} entries, not {theta.size}")
                else:
                    (number,) = block.tolist()
                    found[each.name] = round(number) if each.type is int else number
        except (KeyError, ValueError) as error:
            raise InvalidInput(f"these are not the blocks of closing sums at this θ: {error}") from None
        return cls(kind=kind, theta=theta, **found)


def symmetric(matrix: Array) -> Array:
    """Return the symmetric part of a matrix."""
    return 0.5 * (matrix + matrix.T)


def needs_newton(kind: str, *, client_intercepts: bool) -> str | None:
    """Return the setting that only Newton's method can train: a kind with baselines, or client intercepts."""
    return f"kind={kind!r}" if family_of(kind).baseline else "client_intercepts" if client_intercepts else None


def slope_mask(vectors: int, n_features: int, n_intercepts: int) -> NDArray[np.bool_]:
    """Return whether each coordinate of θ is a slope, (vectors · n_features,), not at the end of its vector."""
    return np.tile(np.arange(n_features) < n_features - n_intercepts, vectors)


class ProblemSums:
    """Closing sums of all clients of a problem at any θ; sums that do not depend on θ are computed once.

    Parameters
    ----------
    problem
        `fedscaffold.problems.Ridge`, `Logistic`, `Multinomial`, `Poisson` or `Gamma`.
    names
        Names of the features, for messages.
    n_intercepts
        How many of the last features are intercepts.
    client_intercepts
        Whether each client has an intercept, which no sum reveals.
    """

    def __init__(
        self, problem: Any, *, names: tuple[str, ...] = (), n_intercepts: int = 0, client_intercepts: bool = False
    ) -> None:
        family_of(problem.kind)  # raises if it is not a regression
        self.problem, self.names, self.client_intercepts = problem, names, client_intercepts
        self.needs_newton = needs_newton(problem.kind, client_intercepts=client_intercepts)
        self.dim, self.hessians = int(problem.dim), True
        self.slopes: NDArray[np.bool_] = slope_mask(problem.vectors, problem.n_features, n_intercepts)

    @cached_property
    def _counts_for(self) -> Array:
        """Factor of each client's weights: 1 if clients count by their rows."""
        problem = self.problem
        found = problem.weights * problem.n_records / problem.sizes
        return np.ones(problem.n_clients) if np.allclose(found, 1.0, rtol=1e-9, atol=0.0) else np.asarray(found)

    @cached_property
    def _fixed(self) -> dict[str, Any]:
        return _fixed_sums(self.problem, 0, self.problem.n_clients, self._counts_for)

    def penalty(self, sums: ClosingSums) -> Array:
        """Return the second derivatives of the penalty in units of the sums, (dim,)."""
        return np.asarray(self.problem.n_records * self.problem.penalty)

    @one_blas_thread
    def closing(self, theta: Array, *, scores: bool) -> ClosingSums:
        """Return the closing sums at θ, with products of scores if these are asked for."""
        if self.dim > MOST_COEFFICIENTS:
            raise InvalidInput(
                f"standard errors need the Hessian of all {self.dim:,} coefficients; at most "
                f"{MOST_COEFFICIENTS:,} are possible"
            )
        problem, theta = self.problem, np.asarray(theta, dtype=np.float64)
        if not self.client_intercepts:
            every = (0, problem.n_clients)
            return _sums(problem, theta, *every, self._counts_for, scores=scores, fixed=self._fixed)
        own = partial(client_sums, problem, theta=theta, scores=scores, intercept=True)
        clients = enumerate(spans(problem.offsets, problem.x, problem.y))
        return reduce(operator.add, (own(c, counts_for=float(self._counts_for[c])) for c, _ in clients))


def closing_sums(
    problem: Any, theta: Array, *, scores: bool = True, client_intercepts: bool = False
) -> ClosingSums:
    """Return the closing sums of all clients of a problem at θ.

    Parameters
    ----------
    problem
        `fedscaffold.problems.Ridge`, `Logistic`, `Multinomial`, `Poisson` or `Gamma`.
    theta
        Coefficients, (dim,).
    scores
        Whether products of scores are summed too, which robust standard errors need.
    client_intercepts
        Whether each client has an intercept, fitted at θ, which no sum reveals.

    Returns
    -------
    ClosingSums

    Raises
    ------
    InvalidInput
        If the problem is not a regression, or has too many coefficients for a Hessian.

    Examples
    --------
    >>> import numpy as np
    >>> import fedscaffold as fs
    >>> rng = np.random.default_rng(0)
    >>> X, y = rng.normal(size=(3, 20, 2)), rng.normal(size=(3, 20))
    >>> sums = fs.inference.closing_sums(fs.problems.Ridge(X, y), np.zeros(2))
    >>> sums.rows, sums.clients
    (60, 3)
    """
    return ProblemSums(problem, client_intercepts=client_intercepts).closing(theta, scores=scores)


def client_sums(
    problem: Any,
    client: int,
    theta: Array,
    *,
    scores: bool = True,
    intercept: bool = False,
    counts_for: float = 1.0,
) -> ClosingSums:
    """Return the closing sums of one client at θ.

    Parameters
    ----------
    problem, theta, scores
        As in `closing_sums`.
    client
        Which client.
    intercept
        Whether the client has an intercept, fitted at θ.
    counts_for
        Factor of the weights of its records.

    Returns
    -------
    ClosingSums

    Examples
    --------
    >>> import numpy as np
    >>> import fedscaffold as fs
    >>> rng = np.random.default_rng(0)
    >>> problem = fs.problems.Ridge(rng.normal(size=(3, 20, 2)), rng.normal(size=(3, 20)))
    >>> fs.inference.client_sums(problem, 1, np.zeros(2)).rows
    20
    """
    theta, factor = np.asarray(theta, dtype=np.float64), np.array([counts_for])
    if not intercept:
        return _sums(problem, theta, client, client + 1, factor, scores=scores)
    if isinstance(problem, Multinomial):
        raise InvalidInput("client intercepts are not there for more than two classes")
    alpha = client_intercept(problem, client, theta)
    if alpha is None:  # fitted perfectly by an infinite intercept, whatever the slopes
        nothing = _sums(problem, theta, client, client + 1, 0.0 * factor, scores=scores)
        return replace(nothing, rows=0, clients=0, varying=np.zeros(theta.size))
    wide = _sums(problem, np.append(theta, alpha), client, client + 1, factor, scores=scores)
    return without_last(wide, theta)


def _sums(
    problem: Any, theta: Array, first: int, last: int, counts_for: Array, *, scores: bool,
    fixed: dict[str, Any] | None = None,
) -> ClosingSums:  # fmt: skip
    """Return the sums of clients `first` to `last − 1`.

    A θ with one coefficient more than the problem has features ends in an intercept.
    """
    fixed = _fixed_sums(problem, first, last, counts_for) if fixed is None else fixed
    wide, d = theta.size > problem.dim, theta.size
    total: dict[str, Any] = {}
    cluster, unfinished = np.zeros((d, d)), np.zeros(d)
    for rows, starts, factor, ends in _blocks(problem, first, last, counts_for, d):
        x = problem.x[rows]
        x = np.column_stack([x, np.ones(len(x))]) if wide else x
        y, o, a = record_columns(problem.y[rows])
        found, scores_of = _block_sums(problem, theta, x, y, o, factor * a)
        if scores:  # and gradients of clients; the last one may go on in the next block
            each = scores_of()
            found["score_products"] = each.T @ each
            gradients = np.add.reduceat(each, starts, axis=0)
            gradients[0] += unfinished
            unfinished = np.zeros(d) if ends else gradients[-1]
            gradients = gradients if ends else gradients[:-1]
            cluster += gradients.T @ gradients
        total = {name: value + total[name] for name, value in found.items()} if total else found
    if not scores:
        total["score_products"] = np.zeros((d, d))
    total.setdefault("information", None)
    return ClosingSums(kind=problem.kind, theta=theta, intercepts=0, cluster_products=cluster, **fixed, **total)


def _fixed_sums(problem: Any, first: int, last: int, counts_for: Array) -> dict[str, Any]:
    """Return the sums of clients `first` to `last − 1` that do not depend on θ, by name."""
    family, features = family_of(problem.kind), problem.n_features
    begin, end = int(problem.offsets[first]), int(problem.offsets[last])
    squares, varying, null = np.zeros(features), np.zeros(features), np.zeros(1)
    weight = saturated = constant = 0.0
    low, high = np.full(features, np.inf), np.full(features, -np.inf)  # of a client that goes on
    for rows, starts, factor, ends in _blocks(problem, first, last, counts_for, features):
        x = problem.x[rows]
        y, o, a = record_columns(problem.y[rows])
        a = factor * a
        squares += a @ x**2
        weight, saturated = weight + float(a.sum()), saturated + family.saturated(y, a)
        constant += family.constant(y, a)
        if problem.kind == "multinomial":
            null = null + np.bincount(y.astype(np.int64), weights=a, minlength=problem.n_classes)
        else:
            null = null + family.null_sums(y, o, a)
        lows, highs = np.minimum.reduceat(x, starts, axis=0), np.maximum.reduceat(x, starts, axis=0)
        lows[0], highs[0] = np.minimum(lows[0], low), np.maximum(highs[0], high)
        low, high = (np.full(features, np.inf), np.full(features, -np.inf)) if ends else (lows[-1], highs[-1])
        count = len(lows) if ends else len(lows) - 1
        lows, highs = lows[:count], highs[:count]
        varying += (highs - lows > 1e-12 * np.maximum(np.abs(lows), np.abs(highs))).sum(axis=0)
    present = (end - begin, last - first)
    if problem.y.ndim > 1:
        positive = problem.y[begin:end, WEIGHT] > 0
        each = np.add.reduceat(positive, problem.offsets[first:last] - begin, dtype=np.int64)
        present = int(each.sum()), int(np.count_nonzero(each))
    return {
        "rows": present[0], "clients": present[1], "weight": weight, "saturated": saturated, "constant": constant,
        "null": null, "squares": squares, "varying": varying,
    }  # fmt: skip


def _blocks(problem: Any, first: int, last: int, counts_for: Array, width: int) -> Any:
    """Yield blocks of rows: rows, starts of clients, factor of each row, whether the last client ends there.

    For Cox regression, blocks are clients.
    """
    offsets: IntArray = problem.offsets[first : last + 1]
    step = max(1, NUMBERS_AT_ONCE // width)
    bounds = np.append(np.arange(offsets[0], offsets[-1], step, dtype=np.int64), offsets[-1])
    if family_of(problem.kind).baseline:
        bounds = offsets
    plain = bool((counts_for == 1.0).all())
    for begin, end in spans(bounds, problem.x, problem.y):
        i = int(np.searchsorted(offsets, begin, side="right")) - 1
        j = int(np.searchsorted(offsets, end, side="left"))
        inside = np.clip(offsets[i : j + 1], begin, end)
        factor = 1.0 if plain else np.repeat(counts_for[i:j], np.diff(inside))
        yield slice(begin, end), inside[:-1] - begin, factor, bool(offsets[j] == end)


def _block_sums(
    problem: Any, theta: Array, x: Array, y: Array, o: Array, a: Array
) -> tuple[dict[str, Any], Callable[[], Array]]:
    """Return the sums of some records that depend on θ, by name, and a function that returns their scores."""

    def scores_of() -> Array:
        return (slopes[:, :, None] * x[:, None, :]).reshape(len(x), theta.size)

    if isinstance(problem, Multinomial):
        z = log_softmax(x @ theta.reshape(problem.n_classes, problem.n_features).T)
        p, own = np.exp(z), (np.arange(len(x)), y.astype(np.int64))
        found = {"loss": -float(a @ z[own]), "pearson": 0.0, "hessian": problem.curvature_of(x, p, a)}
        p[own] -= 1.0
        slopes = p * a[:, None]
        return {**found, "gradient": (slopes.T @ x).ravel()}, scores_of
    family, z = family_of(problem.kind), x @ theta + o
    if family.baseline:
        rows, weight = RiskSets(y, z, x), float(a[0])
        found = {"loss": weight * rows.loss, "gradient": weight * rows.gradient, "hessian": weight * rows.hessian}
        return {**found, "pearson": 0.0}, lambda: weight * rows.scores
    slopes = (a * problem.d1(z, y))[:, None]
    found = {
        "loss": float(a @ problem.value(z, y)),
        "pearson": family.pearson(z, y, a),
        "gradient": slopes[:, 0] @ x,
        "hessian": gram(x, a * problem.d2(z, y)),
    }
    if family.expected is not None:
        found["information"] = gram(x, a * family.expected(z, y))
    return found, scores_of


def own_intercept(problem: Glm | type[Glm], z: Array, y: Array, a: Array) -> float | None:
    """Return α with Σ a ℓ'(z + α, y) = 0; None if the loss decreases without bound."""
    present = a > 0
    if not present.any():
        return None
    same = np.unique(y[present])
    if (problem.kind == "logistic" and same.size == 1) or (problem.kind == "poisson" and not same.any()):
        return None
    alpha = 0.0
    for _ in range(MOST_STEPS):
        slope, curvature = a @ problem.d1(z + alpha, y), a @ problem.d2(z + alpha, y)
        most = math.inf if problem.kind == "ridge" else 1.0
        step = float(np.clip(slope / curvature, -most, most))
        alpha -= step
        if abs(step) <= 1e-14 * max(1.0, abs(alpha)):
            break
    return alpha


def client_intercept(problem: Any, client: int, theta: Array) -> float | None:
    """Return the intercept of one client at θ; None if an infinite one fits its rows perfectly."""
    part = slice(int(problem.offsets[client]), int(problem.offsets[client + 1]))
    y, o, a = record_columns(problem.y[part])
    return own_intercept(problem, problem.x[part] @ theta + o, y, a)


def record_columns(y: Array) -> tuple[Array, Array, Array]:
    """Return targets, offsets and weights of records."""
    if y.ndim == 1:
        return y, np.zeros(len(y)), np.ones(len(y))
    return y[:, TARGET], y[:, OFFSET], y[:, WEIGHT]


def without_last(wide: ClosingSums, theta: Array) -> ClosingSums:
    """Return sums in which the last coefficient, the client's intercept, is the best one for the others.

    With A the Hessian and r = A_·l / A_ll, gradients become g − r g_l and matrices P M Pᵀ with P = [I, −r].
    """
    d = theta.size
    column = wide.hessian[:d, d] / wide.hessian[d, d]
    P = np.column_stack([np.eye(d), -column])
    bread = wide.hessian if wide.information is None else wide.information
    expected = np.column_stack([np.eye(d), -bread[:d, d] / bread[d, d]])
    gradient = P @ wide.gradient
    return replace(
        wide,
        theta=theta,
        intercepts=1,
        gradient=gradient,
        hessian=symmetric(P @ wide.hessian @ P.T),
        information=None if wide.information is None else symmetric(expected @ bread @ expected.T),
        score_products=symmetric(P @ wide.score_products @ P.T),
        cluster_products=np.outer(gradient, gradient),
    )
