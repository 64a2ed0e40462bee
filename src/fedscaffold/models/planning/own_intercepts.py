"""A table's problem in which every client has an intercept of its own, and all have the slopes in common."""

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.machine import in_file
from fedscaffold.data.encoded import EncodedProblem
from fedscaffold.inference import close
from fedscaffold.inference.own_intercepts import client_intercept
from fedscaffold.problems.base import OFFSET, plain_columns

FOUND = 1e-6  # standard errors: a distance to the optimum at which slopes count as found


class OwnIntercepts(NamedTuple):
    """A problem of slopes alone, whose offsets hold the clients' intercepts, and how many clients were left out.

    Clients whose target never varies, so that an infinite intercept fits them, say nothing about slopes.
    """

    problem: EncodedProblem
    left_out: int


def with_own_intercepts(problem: EncodedProblem) -> OwnIntercepts:
    """Take the common intercept away and give each client the one that fits it best with the best common slopes.

    In a federation a client fits its intercept anew whenever it gets slopes; a simulated run holds it where that
    ends.
    """
    if problem.vectors > 1:
        raise InvalidInput("client_intercepts does not support more than two classes")
    if in_file(problem.x):
        raise InvalidInput("client_intercepts requires a table that is held in memory")
    slopes = _without_intercept(problem)
    zero = np.zeros(slopes.dim)
    kept = [c for c in range(slopes.n_clients) if client_intercept(slopes, c, zero) is not None]
    if not kept:
        raise InvalidInput(
            f"the target {problem.encoding.target!r} varies in no client, so slopes have no meaning"
        )
    left_out = slopes.n_clients - len(kept)
    slopes = slopes if left_out == 0 else slopes.subset(kept)
    closed = close(slopes, zero, client_intercepts=True, names=slopes.encoding.names)
    if not closed.distance <= FOUND:
        raise InvalidInput(
            "no slopes were found that fit best beside the clients' own intercepts; pass a larger l2=..., or "
            "leave out client_intercepts"
        )
    y = np.array(plain_columns(slopes.y))
    for c in range(slopes.n_clients):
        alpha = client_intercept(slopes, c, closed.theta)
        assert alpha is not None  # as for θ = 0
        y[slopes.offsets[c] : slopes.offsets[c + 1], OFFSET] += alpha
    return OwnIntercepts(slopes.with_records(y=y), left_out)


def _without_intercept(problem: EncodedProblem) -> EncodedProblem:
    if not problem.encoding.intercept:
        return problem
    if problem.n_features == 1:
        raise InvalidInput("there is no feature besides the intercept")
    made = problem.with_records(x=np.ascontiguousarray(problem.x[:, :-1]), n_unpenalised=0)
    made.encoding = replace(problem.encoding, intercept=False)
    return made
