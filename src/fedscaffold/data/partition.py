"""Splits of one table over clients, for benchmarks: each row's client, reproducible from a seed.

Every row goes to a client and every client gets at least `min_rows` rows. Random numbers come from NumPy's
default generator.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedscaffold.core.checks import given, not_negative, numbers, positive, seed_number, whole_number
from fedscaffold.core.display import new_axes, plain_grid
from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.types import Array

Ids = NDArray[np.int64]


def iid(y: ArrayLike, *, n_clients: int, seed: int, min_rows: int = 2) -> Ids:
    """Split without skew: rows are dealt out at random, and clients' numbers of rows differ by at most one.

    Parameters
    ----------
    y
        Anything with one entry per row, of which only the length counts.
    n_clients, seed, min_rows
        Number of clients, seed of NumPy's generator, and smallest number of rows of a client.

    Examples
    --------
    >>> from fedscaffold.data import partition
    >>> partition.iid(range(6), n_clients=3, seed=0)
    array([2, 2, 0, 0, 1, 1])
    """
    rows = _rows(y)
    rng = _generator(rows, n_clients, seed, min_rows)
    return _dealt(rng.permutation(rows), n_clients)


def dirichlet(y: ArrayLike, *, n_clients: int, alpha: float, seed: int, min_rows: int = 2) -> Ids:
    """Split with label skew: each class is shared out over clients in proportions p ~ Dirichlet(α, ..., α).

    Small α gives each class to few clients, large α is close to i.i.d. with sizes that vary a little. Clients with
    fewer than `min_rows` rows then get rows, picked at random, from the clients that have the most.

    Parameters
    ----------
    y
        Each row's class, of any kind.
    n_clients, seed, min_rows
        Number of clients, seed of NumPy's generator, and smallest number of rows of a client.
    alpha
        Concentration; 0.1 is strong skew, 100 almost none.

    Examples
    --------
    >>> from fedscaffold.data import partition
    >>> y = ["ill", "well"] * 10
    >>> clients = partition.dirichlet(y, n_clients=3, alpha=0.5, seed=0)
    >>> partition.summary(clients, y).rows
    array([ 5,  2, 13])
    """
    codes = _codes(y)
    positive("alpha", alpha)
    rng = _generator(codes.size, n_clients, seed, min_rows)
    ids = np.empty(codes.size, dtype=np.int64)
    for code in range(int(codes.max()) + 1):
        members = rng.permutation(np.flatnonzero(codes == code))
        counts = rng.multinomial(members.size, rng.dirichlet(np.full(n_clients, float(alpha))))
        ids[members] = np.repeat(np.arange(n_clients), counts)
    return fill_up(ids, n_clients, min_rows, rng)


def shards(y: ArrayLike, *, n_clients: int, labels: int, seed: int, min_rows: int = 2) -> Ids:
    """Split with label skew: rows sorted by class are cut into equal shards, of which a client gets `labels`.

    A client then has about `labels` classes, as in McMahan et al. (2017), and clients have equally many rows.

    Parameters
    ----------
    y
        Each row's class, of any kind.
    n_clients, seed, min_rows
        Number of clients, seed of NumPy's generator, and smallest number of rows of a client.
    labels
        Shards of a client.

    Examples
    --------
    >>> from fedscaffold.data import partition
    >>> y = [0, 0, 0, 0, 1, 1, 1, 1]
    >>> partition.summary(partition.shards(y, n_clients=4, labels=1, seed=0), y).shares.max(axis=1)
    array([1., 1., 1., 1.])
    """
    codes, rng = _codes(y), _generator(_rows(y), n_clients, seed, min_rows)
    count = n_clients * whole_number("labels", labels, least=1)
    if count > codes.size:
        raise InvalidInput(f"{codes.size} rows are too few for {n_clients} clients with {labels} shards each")
    cut = _dealt(_by_class(codes, rng), count)
    ids: Ids = rng.permutation(np.arange(count) % n_clients)[cut]
    return fill_up(ids, n_clients, min_rows, rng)


def similarity(y: ArrayLike, *, n_clients: int, share: float, seed: int, min_rows: int = 2) -> Ids:
    """Split with label skew: a share of the rows is dealt out at random, the others sorted by class and cut.

    share = 0.1 is the similarity of 10 % of Karimireddy et al. (2020), 0 full skew and 1 no skew. Clients' numbers
    of rows differ by two at most.

    Parameters
    ----------
    y
        Each row's class, of any kind.
    n_clients, seed, min_rows
        Number of clients, seed of NumPy's generator, and smallest number of rows of a client.
    share
        Share of the rows that are dealt out at random, between 0 and 1.

    Examples
    --------
    >>> from fedscaffold.data import partition
    >>> y = [0, 1] * 50
    >>> [round(partition.summary(
    ...     partition.similarity(y, n_clients=2, share=share, seed=0), y).skew, 1) for share in (0.0, 1.0)]
    [0.5, 0.0]
    """
    codes, rng = _codes(y), _generator(_rows(y), n_clients, seed, min_rows)
    if not_negative("share", share) > 1.0:
        raise InvalidInput(f"share must be between 0 and 1, got {share!r}")
    order, alike = rng.permutation(codes.size), round(share * codes.size)
    ids = np.empty(codes.size, dtype=np.int64)
    ids[order[:alike]] = _dealt(np.arange(alike), n_clients)
    others = order[alike:]
    ids[others] = _dealt(np.argsort(codes[others], kind="stable"), n_clients)
    return fill_up(ids, n_clients, min_rows, rng)


def natural(column: ArrayLike, *, min_rows: int = 1) -> Ids:
    """Split by a column, such as the hospital or the writer: its values in ascending order are clients 0, 1, ...

    Parameters
    ----------
    column
        One value per row, of any kind.
    min_rows
        Smallest number of rows of a client.

    Raises
    ------
    InvalidInput
        If a client has fewer rows.

    Examples
    --------
    >>> from fedscaffold.data import partition
    >>> partition.natural(["B", "A", "B"])
    array([1, 0, 1])
    """
    _rows(column)
    names, ids, counts = np.unique(np.asarray(column), return_inverse=True, return_counts=True)
    if counts.min(initial=min_rows) < whole_number("min_rows", min_rows, least=1):
        few = names[counts.argmin()]
        raise InvalidInput(f"client {few!s} has {counts.min()} rows, fewer than min_rows={min_rows}; leave it out")
    return ids.astype(np.int64)


def quantity(y: ArrayLike, *, n_clients: int, alpha: float, seed: int, min_rows: int = 2) -> Ids:
    """Split with quantity skew: `min_rows` random rows each, the rest in proportions p ~ Dirichlet(α, ..., α).

    Parameters
    ----------
    y
        Anything with one entry per row, of which only the length counts.
    n_clients, seed, min_rows
        Number of clients, seed of NumPy's generator, and smallest number of rows of a client.
    alpha
        Concentration; with small α a few clients hold most rows.

    Examples
    --------
    >>> import numpy as np
    >>> from fedscaffold.data import partition
    >>> np.bincount(partition.quantity(range(20), n_clients=3, alpha=0.5, seed=0))
    array([ 7,  2, 11])
    """
    rows = _rows(y)
    positive("alpha", alpha)
    rng = _generator(rows, n_clients, seed, min_rows)
    shares = rng.dirichlet(np.full(n_clients, float(alpha)))
    counts = min_rows + rng.multinomial(rows - n_clients * min_rows, shares)
    ids = np.empty(rows, dtype=np.int64)
    ids[rng.permutation(rows)] = np.repeat(np.arange(n_clients), counts)
    return ids


def feature_shift(
    X: ArrayLike, *, n_clients: int, strength: float, seed: int, column: int | None = None, min_rows: int = 2
) -> Ids:
    """Split with feature skew: rows in the order of s·rank + (1 − s)·noise are cut into equal parts.

    The rank, between 0 and 1, is that of the row's projection on the first principal direction of X, or of one
    column; the noise is uniform. s = 0 is i.i.d., s = 1 sorts fully.

    Parameters
    ----------
    X
        Features, (rows, d).
    n_clients, seed, min_rows
        Number of clients, seed of NumPy's generator, and smallest number of rows of a client.
    strength
        s, between 0 (no skew) and 1 (fully sorted).
    column
        Sort by this column instead of the principal direction.

    Examples
    --------
    >>> from fedscaffold.data import partition
    >>> partition.feature_shift([[3.0], [1.0], [4.0], [2.0]], n_clients=2, strength=1.0, seed=0, column=0)
    array([1, 0, 1, 0])
    """
    try:
        features = numbers(X)
    except (TypeError, ValueError) as error:
        raise InvalidInput(f"X must hold numbers: {error}") from None
    if features.ndim != 2 or features.shape[1] == 0:
        raise InvalidInput(f"X must have rows and columns, got shape {features.shape}")
    if not np.isfinite(features).all():
        raise InvalidInput("X holds NaN or infinity; drop or fill such rows first")
    if not_negative("strength", strength) > 1.0:
        raise InvalidInput(f"strength must be between 0 and 1, got {strength!r}")
    rng = _generator(len(features), n_clients, seed, min_rows)
    if column is not None and whole_number("column", column, least=0) >= features.shape[1]:
        raise InvalidInput(f"column must be below {features.shape[1]}, the number of columns of X, got {column}")
    score = _principal(features) if column is None else features[:, column]
    rank = np.empty(score.size)
    rank[np.lexsort((rng.random(score.size), score))] = (np.arange(score.size) + 0.5) / score.size
    key = strength * rank + (1.0 - strength) * rng.random(score.size)
    return _dealt(np.argsort(key, kind="stable"), n_clients)


@dataclass(frozen=True, eq=False)
class PartitionSummary:
    """Numbers of rows of each client and class; `print` shows them as a table."""

    clients: tuple[Any, ...]  # their ids, in ascending order
    classes: tuple[Any, ...]  # in ascending order
    counts: Ids  # numbers of rows, (clients, classes)

    @property
    def rows(self) -> Ids:
        """Number of rows of each client, shape (clients,)."""
        return self.counts.sum(axis=1)

    @property
    def shares(self) -> Array:
        """Share of each class among a client's rows, shape (clients, classes)."""
        return self.counts / self.rows[:, None]

    @property
    def skew(self) -> float:
        """Σ_c w_c ½‖p_c − p‖₁, w_c by rows: distance of clients' class shares from the whole table's, 0 to 1."""
        whole = self.counts.sum(axis=0) / self.counts.sum()
        return float(self.rows @ (0.5 * np.abs(self.shares - whole).sum(axis=1)) / self.rows.sum())

    def plot(self, ax: Any = None) -> Any:
        """Draw a bar of rows for each client, divided into classes, on matplotlib axes; return the axes."""
        ax, below = new_axes(ax), np.zeros(len(self.clients))
        for name, count in zip(self.classes, self.counts.T, strict=True):
            ax.bar(np.arange(below.size), count, bottom=below, width=0.9, label=str(name))
            below = below + count
        ax.set_xlabel("client")
        ax.set_ylabel("rows")
        ax.margins(x=0)
        plain_grid(ax)
        if len(self.classes) <= 12:  # more do not fit beside the bars
            ax.legend(frameon=False, title="class", bbox_to_anchor=(1.0, 1.0))
        return ax

    def __str__(self) -> str:
        rows = self.rows
        span = f"{rows.min()} to {rows.max()} per client"
        wide = max(6, *(len(str(name)) for name in self.classes))
        first = max(6, *(len(str(client)) for client in self.clients))
        lines = [f"{rows.size} clients, {rows.sum()} rows, {span}; label skew {self.skew:.2f}"]
        lines += [f"{'client':>{first}}  {'rows':>7}  " + " ".join(f"{name!s:>{wide}}" for name in self.classes)]
        for client, count, shares in list(zip(self.clients, rows, self.shares, strict=True))[:20]:
            cells = " ".join(f"{share:>{wide}.0%}" for share in shares)
            lines.append(f"{client!s:>{first}}  {count:>7}  {cells}")
        if rows.size > 20:
            lines.append(f"... and {rows.size - 20} more clients")
        return "\n".join(lines)


def summary(clients: ArrayLike, y: ArrayLike) -> PartitionSummary:
    """Count the rows of each client and class.

    Parameters
    ----------
    clients
        Each row's client.
    y
        Each row's class.

    Examples
    --------
    >>> from fedscaffold.data import partition
    >>> print(partition.summary(["A", "A", "B", "B"], ["ill", "well", "ill", "ill"]))
    2 clients, 4 rows, 2 to 2 per client; label skew 0.25
    client     rows     ill   well
         A        2     50%    50%
         B        2    100%     0%
    """
    owners, labels = np.asarray(clients), np.asarray(y)
    if owners.shape != labels.shape or owners.ndim != 1 or owners.size == 0:
        raise InvalidInput(
            f"clients and y must have one entry per row, got shapes {owners.shape} and {labels.shape}"
        )
    names, who = np.unique(owners, return_inverse=True)
    classes, which = np.unique(labels, return_inverse=True)
    counts = np.zeros((names.size, classes.size), dtype=np.int64)
    np.add.at(counts, (who, which), 1)
    return PartitionSummary(tuple(names.tolist()), tuple(classes.tolist()), counts)


def _rows(y: ArrayLike) -> int:
    try:
        return np.shape(y)[0]
    except (ValueError, IndexError):  # rows of different lengths, or a number
        raise InvalidInput(f"y must have one entry per row, got {given(y)}") from None


def _codes(y: ArrayLike) -> Ids:
    """Return each row's class as a number, 0, 1, ..."""
    _rows(y)
    labels = np.asarray(y)
    if labels.ndim != 1:
        raise InvalidInput(f"y must have one label per row, got an array of shape {labels.shape}")
    return np.unique(labels, return_inverse=True)[1].astype(np.int64)


def _by_class(codes: Ids, rng: np.random.Generator) -> Ids:
    """Return an ordering of the rows by class, at random within a class."""
    order = rng.permutation(codes.size)
    return order[np.argsort(codes[order], kind="stable")]


def _generator(rows: int, n_clients: int, seed: int, min_rows: int) -> np.random.Generator:
    n_clients = whole_number("n_clients", n_clients, least=1)
    seed = seed_number("seed", seed)
    min_rows = whole_number("min_rows", min_rows, least=1)
    if rows < n_clients * min_rows:
        raise InvalidInput(
            f"{rows} rows are too few for {n_clients} clients with at least {min_rows} each; take fewer clients"
        )
    return np.random.default_rng(seed)


def _dealt(order: NDArray[np.int64], n_clients: int) -> Ids:
    """Return equal parts of an ordering of the rows."""
    ids = np.empty(order.size, dtype=np.int64)
    ids[order] = np.arange(order.size) * n_clients // order.size
    return ids


def fill_up(ids: Ids, n_clients: int, min_rows: int, rng: np.random.Generator) -> Ids:
    """Move rows, one at a time from the largest client, to clients below `min_rows`."""
    before = np.bincount(ids, minlength=n_clients)
    counts = np.maximum(before, min_rows)
    for _ in range(int(counts.sum()) - ids.size):
        counts[counts.argmax()] -= 1
    given, taken = np.maximum(before - counts, 0), np.maximum(counts - before, 0)
    ends = np.cumsum(before)
    by_client = np.argsort(ids, kind="stable")
    moved = [
        rng.choice(by_client[ends[c] - before[c] : ends[c]], given[c], replace=False) for c in given.nonzero()[0]
    ]
    if moved:
        ids[rng.permutation(np.concatenate(moved))] = np.repeat(np.arange(n_clients), taken)
    return ids


def _principal(features: Array) -> Array:
    """Return projections on the direction of largest variance, its largest entry positive."""
    centred = features - features.mean(axis=0)
    direction = np.linalg.eigh(centred.T @ centred)[1][:, -1]
    return centred @ (direction * np.sign(direction[np.abs(direction).argmax()]))


__all__: Sequence[str] = [
    "PartitionSummary",
    "dirichlet",
    "feature_shift",
    "iid",
    "natural",
    "quantity",
    "shards",
    "similarity",
    "summary",
]
