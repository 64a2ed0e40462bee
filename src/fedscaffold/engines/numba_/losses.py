"""The numbers by which kernels know losses, named by the `kind` of a problem, and ways to draw records."""

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
LINEAR = RIDGE  # the form of all records with margins and one target, whatever their loss
WEIGHTED = POISSON  # the form of those with target, offset and weight
WITHOUT_ANCHOR = (DENSE, SOFTMAX, WEIGHTED_SOFTMAX)  # whose kernels subtract no gradients at an anchor
STREAM_LOSSES = {"ridge_stream": RIDGE, "logistic_stream": LOGISTIC}

# how the records of a step are found: all, uniformly, by probabilities of their own, or along a Markov chain
FULL, WITH_REPLACEMENT, WITHOUT_REPLACEMENT, BY_CHANCE, ALONG_CHAIN = 0, 1, 2, 3, 4


def table_loss(problem: Any) -> int | None:
    """Number of the loss of a problem on tables; None where there is no kernel for it.

    Records with offsets and weights have three targets (target, offset, weight) and losses of their own.
    """
    y = getattr(problem, "y", None)
    return (WEIGHTED_LOSSES if y is not None and y.ndim == 2 else TABLE_LOSSES).get(problem.kind)
