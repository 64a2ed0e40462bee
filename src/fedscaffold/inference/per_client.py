"""What each client computes for the closing sums: one pass over its records at θ, some thousand rows at a time."""

from dataclasses import replace
from typing import Any

import numpy as np
from scipy.special import logsumexp

from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.machine import one_blas_thread, spans
from fedscaffold.core.types import Array
from fedscaffold.inference.families import EXTREME, ErrorFamily, family_of
from fedscaffold.inference.own_intercepts import own_intercept, record_columns, without_last
from fedscaffold.inference.sums import ClosingSums
from fedscaffold.problems.glm import Glm
from fedscaffold.problems.multinomial import Multinomial

NUMBERS_AT_ONCE = 1 << 18  # of a block of records: 2 megabytes, of which two copies are made
MOST_COEFFICIENTS = 1000


@one_blas_thread
def closing_sums(
    problem: Any, theta: Array, *, scores: bool = True, client_intercepts: bool = False
) -> ClosingSums:
    """Closing sums of all clients of a problem at θ, added up.

    Parameters
    ----------
    problem
        `fedscaffold.problems.Ridge`, `Logistic`, `Multinomial`, `Poisson` or `Gamma`.
    theta
        Coefficients, (dim,).
    scores
        Whether products of scores are summed too, which robust standard errors need.
    client_intercepts
        Whether each client has an intercept of its own, fitted at θ and told to nobody.

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
    check_dimension(problem)
    counts_for = problem.weights * problem.n_records / problem.sizes
    if np.allclose(counts_for, 1.0, rtol=1e-9, atol=0.0):
        counts_for = np.ones(problem.n_clients)
    total: ClosingSums | None = None
    for client, _ in enumerate(spans(problem.offsets, problem.x, problem.y)):
        own = client_sums(
            problem,
            client,
            theta,
            scores=scores,
            intercept=client_intercepts,
            counts_for=float(counts_for[client]),
        )
        total = own if total is None else total + own
    assert total is not None  # a problem has clients
    return total


def check_dimension(problem: Any) -> None:
    """Refuse problems that are no regressions, or have too many coefficients for a Hessian."""
    family_of(problem.kind)
    if problem.dim > MOST_COEFFICIENTS:
        raise InvalidInput(
            f"standard errors need the Hessian of all {problem.dim:,} coefficients; at most {MOST_COEFFICIENTS:,} "
            "are possible"
        )


def client_sums(
    problem: Any,
    client: int,
    theta: Array,
    *,
    scores: bool = True,
    intercept: bool = False,
    counts_for: float = 1.0,
) -> ClosingSums:
    """Closing sums of one client at θ.

    Parameters
    ----------
    problem, theta, scores
        As in `closing_sums`.
    client
        Which client.
    intercept
        Whether the client has an intercept of its own, fitted at θ.
    counts_for
        Factor of the weights of its records.

    Examples
    --------
    >>> import numpy as np
    >>> import fedscaffold as fs
    >>> rng = np.random.default_rng(0)
    >>> problem = fs.problems.Ridge(rng.normal(size=(3, 20, 2)), rng.normal(size=(3, 20)))
    >>> fs.inference.client_sums(problem, 1, np.zeros(2)).rows
    20
    """
    family = family_of(problem.kind)
    theta = np.asarray(theta, dtype=np.float64)
    part = slice(int(problem.offsets[client]), int(problem.offsets[client + 1]))
    x, targets = problem.x[part], problem.y[part]
    y, o, a = record_columns(targets)
    a = counts_for * a
    if isinstance(problem, Multinomial):
        if intercept:
            raise InvalidInput("client intercepts are not there for more than two classes")
        return _multinomial_sums(problem, family, theta, x, y, a, scores=scores)
    if not intercept:
        return _glm_sums(problem, family, theta, x, y, o, a, scores=scores)
    alpha = own_intercept(problem, x @ theta + o, y, a)
    if alpha is None:  # fitted perfectly by an infinite intercept, whatever the slopes
        nothing = np.zeros_like(a)
        return replace(
            _glm_sums(problem, family, theta, x, y, o, nothing, scores=scores), varying=np.zeros(theta.size)
        )
    wide = _glm_sums(problem, family, np.append(theta, alpha), x, y, o, a, scores=scores)
    return without_last(wide, theta)


def _glm_sums(
    problem: Glm, family: ErrorFamily, theta: Array, x: Array, y: Array, o: Array, a: Array, *, scores: bool
) -> ClosingSums:  # fmt: skip
    """Sums of a loss of one margin; where θ has one coefficient more than x has features, that is an intercept."""
    d, squares = theta.size, np.zeros(x.shape[1])
    gradient, hessian, products, information = np.zeros(d), *np.zeros((3, d, d))
    loss = saturated = constant = pearson = 0.0
    extreme, null = 0, family.null_sums(y[:0], o[:0], a[:0])
    for rows in _blocks(len(x), d):
        xb, yb, ob, ab = x[rows], y[rows], o[rows], a[rows]
        squares += ab @ xb**2
        if d > xb.shape[1]:
            xb = np.column_stack([xb, np.ones(len(xb))])
        z = xb @ theta + ob
        slopes = ab * problem.d1(z, yb)
        gradient += slopes @ xb
        hessian += _gram(xb, ab * problem.d2(z, yb))
        if family.expected is not None:
            information += _gram(xb, ab * family.expected(z, yb))
        if scores:
            products += _gram(xb, slopes**2)
        loss += float(ab @ problem.value(z, yb))
        saturated += family.saturated(yb, ab)
        constant += family.constant(yb, ab)
        pearson += family.pearson(z, yb, ab)
        null = null + family.null_sums(yb, ob, ab)
        if family.extreme is not None:
            extreme += int((family.extreme(z) & (ab > 0)).sum())
    present = a > 0
    return ClosingSums(
        kind=problem.kind, theta=theta, rows=int(present.sum()), clients=int(present.any()), intercepts=0,
        weight=float(a.sum()), loss=loss, saturated=saturated, constant=constant, pearson=pearson, extreme=extreme,
        null=null, gradient=gradient, squares=squares, varying=_varying(x), hessian=hessian,
        information=None if family.expected is None else information, score_products=products,
        cluster_products=np.outer(gradient, gradient),
    )  # fmt: skip


def _multinomial_sums(
    problem: Multinomial, family: ErrorFamily, theta: Array, x: Array, y: Array, a: Array, *, scores: bool
) -> ClosingSums:
    """Sums of a loss of one margin per class: scores are (p − e_y) ⊗ x."""
    K, d = problem.n_classes, problem.n_features
    gradient, hessian, products = np.zeros((K, d)), *np.zeros((2, K, d, K, d))
    loss, extreme, squares = 0.0, 0, np.zeros(d)
    for rows in _blocks(len(x), problem.dim):
        xb, yb, ab = x[rows], y[rows].astype(np.int64), a[rows]
        squares += ab @ xb**2
        z = xb @ theta.reshape(K, d).T
        z -= logsumexp(z, axis=1)[:, None]
        loss -= float(ab @ z[np.arange(yb.size), yb])
        extreme += int(((z.max(axis=1) > -np.exp(-EXTREME)) & (ab > 0)).sum())
        p = np.exp(z)
        slopes = p.copy()
        slopes[np.arange(yb.size), yb] -= 1.0
        slopes *= ab[:, None]
        gradient += slopes.T @ xb
        for k in range(K):
            for m in range(k + 1):
                hessian[k, :, m, :] += _gram(xb, ab * p[:, k] * ((k == m) - p[:, m]))
                if scores:
                    products[k, :, m, :] += _gram(xb, slopes[:, k] * slopes[:, m])
    for k in range(K):
        for m in range(k):
            hessian[m, :, k, :], products[m, :, k, :] = hessian[k, :, m, :].T, products[k, :, m, :].T
    present, flat, n = a > 0, gradient.ravel(), problem.dim
    null = np.zeros(K)
    np.add.at(null, y.astype(np.int64), a)
    return ClosingSums(
        kind=problem.kind, theta=theta, rows=int(present.sum()), clients=int(present.any()), intercepts=0,
        weight=float(a.sum()), loss=loss, saturated=0.0, constant=0.0, pearson=0.0, extreme=extreme, null=null,
        gradient=flat, squares=squares, varying=_varying(x), hessian=hessian.reshape(n, n), information=None,
        score_products=products.reshape(n, n), cluster_products=np.outer(flat, flat),
    )  # fmt: skip


def _blocks(rows: int, width: int) -> list[slice]:
    step = max(1, NUMBERS_AT_ONCE // width)
    return [slice(begin, begin + step) for begin in range(0, rows, step)]


def _gram(x: Array, weight: Array) -> Array:
    """Σ weight_i x_i x_iᵀ; where no weight is negative by a product of one matrix with itself, which is faster."""
    if weight.size and weight.min() < 0.0:
        return x.T @ (weight[:, None] * x)
    scaled = np.sqrt(weight)[:, None] * x
    return scaled.T @ scaled


def _varying(x: Array) -> Array:
    """1.0 for each feature that is not constant over the records, else 0.0."""
    low, high = x.min(axis=0), x.max(axis=0)
    return (high - low > 1e-12 * np.maximum(np.abs(low), np.abs(high))).astype(np.float64)
