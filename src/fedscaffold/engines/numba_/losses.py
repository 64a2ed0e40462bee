"""The losses that there are kernels for, by the name that a problem has as its `kind`."""

from typing import Any

RIDGE, LOGISTIC, DENSE, SOFTMAX = 0, 1, 2, 3  # the kernels' numbers
WEIGHTED_RIDGE, WEIGHTED_LOGISTIC, POISSON, GAMMA, WEIGHTED_SOFTMAX = (
    4,
    5,
    6,
    7,
    8,
)  # of records with three targets

TABLE_LOSSES = {"ridge": RIDGE, "logistic": LOGISTIC, "td": RIDGE, "linear_sa": DENSE, "multinomial": SOFTMAX}
WEIGHTED_LOSSES = {
    "ridge": WEIGHTED_RIDGE,
    "logistic": WEIGHTED_LOGISTIC,
    "poisson": POISSON,
    "gamma": GAMMA,
    "multinomial": WEIGHTED_SOFTMAX,
}
WITHOUT_ANCHOR = (DENSE, SOFTMAX, WEIGHTED_SOFTMAX)  # whose kernels subtract no gradients at an anchor
STREAM_LOSSES = {"ridge_stream": RIDGE, "logistic_stream": LOGISTIC}


def table_loss(problem: Any) -> int | None:
    """Number of the loss of a problem on tables; None where there is no kernel for it.

    Records with offsets and weights have three targets (target, offset, weight) and losses of their own.
    """
    y = getattr(problem, "y", None)
    return (WEIGHTED_LOSSES if y is not None and y.ndim == 2 else TABLE_LOSSES).get(problem.kind)
