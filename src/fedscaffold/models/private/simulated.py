"""Simulated records that are like a table of which only public facts are known."""

from collections.abc import Sequence

import numpy as np
from scipy.special import expit

from fedscaffold.data.public.bounds import LIMIT
from fedscaffold.problems.logistic import Logistic
from fedscaffold.problems.ridge import Ridge

CORRELATION = 0.5  # of any two numbers
EXPLAINED = 0.5  # share of a numeric target's variance
LOG_ODDS = 1.5  # spread of the log odds of a class


def simulated_problem(
    kind: str,
    levels: Sequence[int],
    *,
    clients: int,
    rows: int,
    l2: float,
    intercept: bool = True,
    difference: float = 0.0,
) -> Ridge | Logistic:
    """A problem on simulated records: correlated numbers, and a target that depends on all columns.

    Parameters
    ----------
    kind
        "ridge" or "logistic".
    levels
        For each feature the number of its values; 0 for numbers, which are normal within ±3.
    clients, rows
        Number of clients, and rows of each.
    l2
        Strength of the penalty.
    intercept
        Whether a last column is 1.
    difference
        How much coefficients of clients differ from those of all, in units of their size; 0 for alike clients.
    """
    rng, n = np.random.default_rng(0), clients * rows
    common = rng.normal(size=n)
    columns = []
    for count in levels:
        if count:
            columns.append(np.eye(count)[rng.integers(count, size=n)][:, 1:])
            continue
        number = np.sqrt(CORRELATION) * common + np.sqrt(1.0 - CORRELATION) * rng.normal(size=n)
        columns.append(np.clip(number, -LIMIT, LIMIT)[:, None])
    x = np.column_stack(columns)
    coefficients = rng.normal(size=x.shape[1])
    margin = x @ coefficients
    if difference:
        own = difference * float(np.linalg.norm(coefficients)) / np.sqrt(x.shape[1])
        shifts = own * rng.normal(size=(clients, x.shape[1] + 1))
        each = np.repeat(shifts, rows, axis=0)
        margin = margin + (x * each[:, :-1]).sum(axis=1) + each[:, -1]
    margin = (margin - margin.mean()) / max(float(margin.std()), 1e-12)
    if intercept:
        x = np.column_stack([x, np.ones(n)])
    features = x.reshape(clients, rows, -1)
    if kind == "ridge":
        y = np.sqrt(EXPLAINED) * margin + np.sqrt(1.0 - EXPLAINED) * rng.normal(size=n)
        return Ridge(features, y.reshape(clients, rows), l2=l2, n_unpenalised=int(intercept))
    signs = np.where(rng.random(n) < expit(LOG_ODDS * margin), 1.0, -1.0)
    return Logistic(features, signs.reshape(clients, rows), l2=l2, n_unpenalised=int(intercept))
