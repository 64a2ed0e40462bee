"""Random intercepts of clients in linear regression, from one exchange of sums.

Rows of client c have the covariance σ² (I + λ 11ᵀ). So the likelihood, as a function of λ alone, follows from each
client's XᵀX, Xᵀy, yᵀy, Xᵀ1, 1ᵀy and n; and given λ, generalised least squares are those on rows less a share
1 − 1/√(1 + λ n) of their client's means.
"""

from typing import Any

import numpy as np
from scipy.optimize import minimize_scalar

from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.machine import in_file
from fedscaffold.core.types import Array
from fedscaffold.problems.base import TabularProblem

LOG_RATIOS = np.linspace(
    -14.0, 14.0, 57
)  # of λ: intercepts from a thousandth to a thousand times as spread as rows


def variance_ratio(problem: TabularProblem) -> float:
    """Return λ = τ²/σ², the variance of intercepts over that of rows, at the largest restricted likelihood.

    Parameters
    ----------
    problem
        A linear regression without penalty, offsets and weights.

    Returns
    -------
    float
        0 if clients differ no more than their rows suggest.

    Examples
    --------
    >>> import numpy as np
    >>> import fedscaffold as fs
    >>> from fedscaffold.inference.random_intercepts import variance_ratio
    >>> rng = np.random.default_rng(0)
    >>> X = np.stack([rng.normal(size=(40, 50)), np.ones((40, 50))], axis=2)
    >>> y = X[:, :, 0] + rng.normal(size=(40, 1)) + rng.normal(size=(40, 50))
    >>> round(variance_ratio(fs.problems.Ridge(X, y, n_unpenalised=1)), 1)
    1.4
    """
    joined = [np.column_stack([x, y]) for x, y in problem._clients()]
    products = sum(rows.T @ rows for rows in joined)
    totals, n = np.stack([rows.sum(axis=0) for rows in joined]), problem.sizes.astype(np.float64)
    free = problem.n_records - problem.dim

    def criterion(ratio: float) -> float:
        """−2 log of the restricted likelihood, up to a constant."""
        shrunk = products - (totals * (ratio / (1.0 + ratio * n))[:, None]).T @ totals
        sign, volume = np.linalg.slogdet(shrunk[:-1, :-1])
        left = shrunk[-1, -1] - shrunk[-1, :-1] @ np.linalg.solve(shrunk[:-1, :-1], shrunk[:-1, -1])
        if sign <= 0.0 or left <= 0.0:
            raise np.linalg.LinAlgError
        return float(free * np.log(left) + np.log1p(ratio * n).sum() + volume)

    try:
        values = [criterion(float(np.exp(one))) for one in LOG_RATIOS]
        best = int(np.argmin(values))
        ends = LOG_RATIOS[max(best - 1, 0)], LOG_RATIOS[min(best + 1, LOG_RATIOS.size - 1)]
        found = minimize_scalar(
            lambda log: criterion(float(np.exp(log))), bounds=ends, method="bounded", options={"xatol": 1e-9}
        )
        return float(np.exp(found.x)) if found.fun < criterion(0.0) and best > 0 else 0.0
    except np.linalg.LinAlgError:  # dependent columns, which the fit names
        return 0.0


def without_means(problem: Any, ratio: float) -> Any:
    """Return the problem of rows less a share of their client's means, whose least squares know the intercepts."""
    less = 1.0 - 1.0 / np.sqrt(1.0 + ratio * problem.sizes)
    means = np.stack([np.append(x.mean(axis=0), y.mean()) for x, y in problem._clients()])
    removed: Array = np.repeat(less[:, None] * means, problem.sizes, axis=0)
    return problem.with_records(x=problem.x - removed[:, :-1], y=problem.y - removed[:, -1])


def check_random_intercepts(problem: Any) -> None:
    """Raise if a problem cannot have random intercepts, with every reason."""
    found = []
    if problem.kind != "ridge":
        found.append(f"client_intercepts='random' is for kind='ridge', not {problem.kind!r}")
    if problem.l2 != 0.0:
        found.append("client_intercepts='random' requires l2=0")
    if problem.y.ndim > 1:
        found.append("client_intercepts='random' does not support offset=... and weight=...")
    if not np.allclose(problem.weights * problem.n_records, problem.sizes):
        found.append("client_intercepts='random' requires weights='rows'")
    if in_file(problem.x):
        found.append("client_intercepts='random' requires a table that is held in memory")
    if problem.n_clients < 2:
        found.append("client_intercepts='random' requires two or more clients")
    if found:
        raise InvalidInput("; ".join(found))
