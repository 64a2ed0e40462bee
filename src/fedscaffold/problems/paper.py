"""The two problems of the paper's Section 6, and one with a given condition number."""

from typing import Literal

import numpy as np

from fedscaffold.core.checks import choice, not_negative, seed_number, suggest_names, whole_number
from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.imports import load_optional
from fedscaffold.core.machine import check_memory
from fedscaffold.core.types import Array
from fedscaffold.problems.base import aligned_empty, freeze
from fedscaffold.problems.glm import Logistic, Ridge

FEATURES = 20  # as in the paper, and so are the next
RECORDS_PER_CLIENT = 200

INFORMATIVE = (2, 10)  # features of the two datasets, as in the paper for regression; see `paper`

L2 = 0.01  # the paper gives no penalty; its sentences on Figure 1 come out with 0 to 0.1, see the page on Figure 1


@suggest_names
def paper(
    kind: Literal["regression", "classification"],
    *,
    n_clients: int,
    l2: float = L2,
    seed: int = 0,
    informative: tuple[int, int] = INFORMATIVE,
) -> Ridge | Logistic:
    """Build the problem of Section 6 of the paper: two datasets, one for each half of the clients.

    Each has 100·N records and 20 features, so that a client holds 200 records: scikit-learn's make_regression, or
    make_classification, with 2 and 10 informative features and the seeds 2·seed and 2·seed + 1. For classification
    the paper says that "the same procedure" was repeated with two seeds, which can also be read as two datasets
    with make_classification's default: informative=(2, 2).

    Parameters
    ----------
    kind
        "regression" for ridge, "classification" for logistic regression.
    n_clients
        N, the number of clients, even.
    l2
        Strength of the penalty, which the paper does not give.
    seed
        Chooses the two datasets.
    informative
        Numbers of informative features of the two datasets: 1 to 20 for regression, 2 to 18 for classification,
        whose generator adds two redundant ones.

    Returns
    -------
    The problem, with the first dataset on the first half of the clients.

    Raises
    ------
    InvalidInput
        If an argument is out of range, or the number of clients is odd.

    Examples
    --------
    >>> import fedscaffold as fs
    >>> fs.problems.paper("regression", n_clients=10)
    Ridge(n_clients=10, dim=20, n_records=2000, l2=0.01)
    """
    choice("kind", kind, ("regression", "classification"))
    n_clients = whole_number("n_clients", n_clients, least=2)
    if n_clients % 2:
        raise InvalidInput(f"n_clients must be even, one half for each dataset, got {n_clients}")
    largest = 2**31 - 1  # of scikit-learn's generators' seeds, of which this one takes two
    if seed_number("seed", seed) > largest:
        raise InvalidInput(f"seed must be at most {largest} for the paper's data, got {seed}")
    seed, l2 = int(seed), not_negative("l2", l2)
    check_informative(kind, informative)
    check_memory(f"{n_clients:,} clients", 8 * n_clients * RECORDS_PER_CLIENT * (FEATURES + 1) * 3 // 2)
    half = n_clients // 2
    x = aligned_empty((n_clients, RECORDS_PER_CLIENT, FEATURES))
    y = np.empty((n_clients, RECORDS_PER_CLIENT))
    for which, features in enumerate(informative):
        part = slice(which * half, (which + 1) * half)
        _fill(x[part].reshape(-1, FEATURES), y[part].reshape(-1), kind, int(features), 2 * seed + which)
    freeze(x, y)  # they are nobody else's, so that the problem need not copy them
    return Ridge(x, y, l2=l2) if kind == "regression" else Logistic(x, y, l2=l2)


def check_informative(kind: str, informative: tuple[int, int]) -> None:
    """Raise if scikit-learn's generator cannot make datasets with these numbers of informative features."""
    fewest, most = (1, FEATURES) if kind == "regression" else (2, FEATURES - 2)  # two more are redundant
    if not all(fewest <= n <= most for n in informative):
        raise InvalidInput(
            f"informative must be two numbers from {fewest} to {most} for {kind}, got {informative}"
        )


def _fill(x: Array, y: Array, kind: str, informative: int, seed: int) -> None:
    """Put the records of one dataset into x and y, shuffled as scikit-learn's generators do, few at a time."""
    generator = np.random.RandomState(seed)
    if kind == "regression":
        features, targets = _regression(len(x), informative, generator)
    else:
        datasets = load_optional("sklearn.datasets", "the paper's data need scikit-learn", extra="reproduce")
        features, targets = datasets.make_classification(
            len(x), FEATURES, n_informative=informative, shuffle=False, random_state=generator
        )
    order, columns = np.arange(len(x)), np.arange(FEATURES)
    generator.shuffle(order)
    generator.shuffle(columns)
    at_once = 1 << 16  # records, 10 MB
    for begin in range(0, len(x), at_once):
        rows = slice(begin, begin + at_once)
        x[rows] = features[order[rows]][:, columns]
        y[rows] = targets[order[rows]]


def _regression(records: int, informative: int, generator: np.random.RandomState) -> tuple[Array, Array]:
    """Return the numbers of scikit-learn's make_regression without noise, whose import takes longer than a run.

    Standard normal features; targets xᵀβ, where β has `informative` coordinates uniform up to 100. A test compares
    them with scikit-learn's, bit by bit.
    """
    x = generator.standard_normal(size=(records, FEATURES))
    coefficients = np.zeros((FEATURES, 1))
    coefficients[:informative] = 100 * generator.uniform(size=(informative, 1))
    return x, np.dot(x, coefficients)[:, 0]


def conditioned(condition: float, *, n_clients: int = 4, dim: int = 4, seed: int = 0) -> Ridge:
    """Build a problem with L = 1 and μ = 1/κ: diagonal Hessians, eigenvalues in [1/κ, 1], and different optima.

    A client has one record √(d λ_j) e_j for each coordinate j, so that its Hessian is diag(λ).
    """
    generator = np.random.default_rng(seed)
    eigenvalues = np.geomspace(1.0 / condition, 1.0, dim) * np.ones((n_clients, 1))
    eigenvalues[:, 1:-1] *= generator.uniform(0.5, 2.0, size=(n_clients, dim - 2))
    eigenvalues = np.clip(eigenvalues, 1.0 / condition, 1.0)
    x = np.zeros((n_clients, dim, dim))
    x[:, range(dim), range(dim)] = np.sqrt(dim * eigenvalues)
    targets = np.sqrt(dim * eigenvalues) * generator.normal(size=(n_clients, dim))
    return Ridge(x, targets)
