"""Splits: every row goes somewhere, every client gets enough, and the skew is the one asked for."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.datasets import load_digits, load_wine

from fedscaffold import InvalidInput
from fedscaffold.core.types import Array
from fedscaffold.data import partition

Split = Callable[..., Any]
SPLITS: dict[str, Split] = {
    "iid": lambda X, y, **options: partition.iid(y, **options),
    "dirichlet 0.01": lambda X, y, **options: partition.dirichlet(y, alpha=0.01, **options),
    "dirichlet 1": lambda X, y, **options: partition.dirichlet(y, alpha=1, **options),
    "shards": lambda X, y, **options: partition.shards(y, labels=1, **options),
    "similarity": lambda X, y, **options: partition.similarity(y, share=0.5, **options),
    "quantity 0.01": lambda X, y, **options: partition.quantity(y, alpha=0.01, **options),
    "quantity 1": lambda X, y, **options: partition.quantity(y, alpha=1, **options),
    "shift": lambda X, y, **options: partition.feature_shift(X, strength=0.7, **options),
    "column": lambda X, y, **options: partition.feature_shift(X, strength=1, column=1, **options),
}


@pytest.mark.parametrize("split", SPLITS)
@given(data=st.data())
def test_every_row_and_every_client(split: str, data: st.DataObject) -> None:
    n_clients, min_rows = data.draw(st.integers(1, 12)), data.draw(st.integers(1, 4))
    rows = n_clients * min_rows + data.draw(st.integers(0, 40))
    seed = data.draw(st.integers(0, 1000))
    rng = np.random.default_rng(seed)
    X, y = rng.integers(0, 3, size=(rows, 2)) * 1.0, rng.choice(["a", "b", "c"], rows)
    options = {"n_clients": n_clients, "seed": seed, "min_rows": min_rows}
    ids = SPLITS[split](X, y, **options)
    assert ids.shape == (rows,)
    assert ids.dtype == np.int64
    counts = np.bincount(ids, minlength=n_clients)
    assert counts.size == n_clients
    assert counts.min() >= min_rows
    np.testing.assert_array_equal(SPLITS[split](X.copy(), list(y), **options), ids)


@pytest.mark.parametrize("split", SPLITS)
def test_seeds_differ(split: str) -> None:
    X, y = load_digits(return_X_y=True)
    if split == "column":
        X = X.round(-1)  # ties are broken at random
    one, two = (SPLITS[split](X, y, n_clients=10, seed=seed) for seed in (0, 1))
    assert (one != two).mean() > 0.3


@pytest.mark.parametrize("split", ["iid", "shift", "column"])
def test_equal_shares(split: str) -> None:
    X, y = load_digits(return_X_y=True)
    counts = np.bincount(SPLITS[split](X, y, n_clients=13, seed=0))
    assert set(counts.tolist()) == {138, 139}  # 1797 rows


def test_iid_puts_every_row_anywhere() -> None:
    """P(row 0 at client 0) = 1/4: 2,000 draws, five standard errors."""
    hits = np.array([partition.iid(np.zeros(40), n_clients=4, seed=seed)[0] for seed in range(2000)])
    share = np.bincount(hits, minlength=4) / 2000
    np.testing.assert_allclose(share, 0.25, atol=5 * np.sqrt(0.25 * 0.75 / 2000))


def shares_of(alpha: float, draws: int) -> Array:
    y = np.repeat([0, 1], 4000)
    found = [partition.dirichlet(y, n_clients=4, alpha=alpha, seed=seed, min_rows=1) for seed in range(draws)]
    return np.array([[np.bincount(ids[y == k], minlength=4) / 4000 for k in (0, 1)] for ids in found])


@pytest.mark.parametrize("alpha", [0.5, 3.0])
def test_dirichlet_has_the_variance_of_its_law(alpha: float) -> None:
    """Var p = (1/4)(3/4)/(4α + 1), plus 1/4000 of what is left; classes independent. 6 % is 5 standard errors."""
    shares = shares_of(alpha, 1500)
    law = 0.1875 / (4 * alpha + 1)
    law += (0.1875 - law) / 4000
    np.testing.assert_allclose(shares.mean(axis=(0, 1)), 0.25, atol=5 * np.sqrt(law / 3000))
    np.testing.assert_allclose(shares.var(axis=0).mean(), law, rtol=0.06)
    across = np.mean((shares[:, 0] - 0.25) * (shares[:, 1] - 0.25))
    assert abs(across) < 5 * law / np.sqrt(1500)


@given(st.lists(st.integers(0, 8), min_size=27, max_size=80), st.integers(1, 3), st.integers(0, 9))
def test_topping_up_moves_what_is_lacking_and_no_more(rows: list[int], min_rows: int, seed: int) -> None:
    raw = np.array(rows)
    ids = partition.fill_up(raw.copy(), 9, min_rows, np.random.default_rng(seed))
    before, after = np.bincount(raw, minlength=9), np.bincount(ids, minlength=9)
    lacking = np.maximum(min_rows - before, 0)
    assert (after[lacking > 0] == min_rows).all()
    assert (raw != ids).sum() == lacking.sum()
    givers = after < before
    if givers.any():  # only the largest give
        assert before[~givers].max() <= after[givers].min() + 1


def test_quantity_skew_leaves_the_classes_alone() -> None:
    _, y = load_digits(return_X_y=True)
    skewed = partition.summary(partition.quantity(y, n_clients=5, alpha=0.3, seed=3), y)
    assert skewed.rows.max() > 5 * skewed.rows.min()
    assert skewed.skew < 0.1
    labels = partition.summary(partition.dirichlet(y, n_clients=5, alpha=0.1, seed=3), y)
    assert labels.skew > 0.5
    even = partition.summary(partition.dirichlet(y, n_clients=5, alpha=1e4, seed=3), y)
    assert even.skew < 0.05


def test_shards_give_each_client_few_classes_and_equally_many_rows() -> None:
    y = np.repeat(np.arange(10), 200)
    for labels in (1, 2, 5):
        found = partition.summary(partition.shards(y, n_clients=20, labels=labels, seed=0), y)
        assert set(found.rows.tolist()) == {100}
        shards = found.counts / (100 // labels)
        np.testing.assert_array_equal(shards, shards.round())  # 200 rows of a class are whole shards
        assert (found.counts > 0).sum(axis=1).max() <= labels
    classes = (partition.summary(partition.shards(y, n_clients=20, labels=2, seed=0), y).counts > 0).sum(axis=1)
    assert classes.mean() > 1.5  # two shards of one class are rare


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 1.0])
def test_similarity_is_the_share_that_is_dealt_out_at_random(share: float) -> None:
    """With ten clients and classes of equal size, a client has its class's rest and a tenth of what is shared."""
    y = np.random.default_rng(0).permutation(np.repeat(np.arange(10), 400))
    found = partition.summary(partition.similarity(y, n_clients=10, share=share, seed=0), y)
    assert set(found.rows.tolist()) == {400}
    wanted = np.full((10, 10), 40.0 * share) + np.diag(np.full(10, 400.0 * (1.0 - share)))
    np.testing.assert_allclose(found.counts, wanted, atol=45 if share else 0)  # classes' rests differ at random
    assert found.skew == pytest.approx(0.9 * (1.0 - share), abs=0.06)


def test_natural_clients_are_the_values_of_a_column() -> None:
    ids = partition.natural(["b", "a", "c", "a"])
    assert ids.tolist() == [1, 0, 2, 0]
    with pytest.raises(InvalidInput, match="client b has 1 rows, fewer than min_rows=2"):
        partition.natural(["b", "a", "a"], min_rows=2)


def test_feature_shift_sorts_by_the_principal_direction() -> None:
    rng = np.random.default_rng(0)
    direction = np.array([3.0, -4.0]) / 5
    X = rng.normal(size=(3000, 1)) * 5 * direction + rng.normal(size=(3000, 2)) * 0.1 + 100
    along = -(X @ direction)  # the largest entry of the direction is taken as positive
    means = []
    for strength in (0.0, 0.5, 1.0):
        ids = partition.feature_shift(X, n_clients=6, strength=strength, seed=0)
        means.append([along[ids == c].mean() - along.mean() for c in range(6)])
    assert np.abs(means[0]).max() < 5 * 5 / np.sqrt(500)
    assert (np.diff(means[1]) > 0).all()
    assert np.ptp(means[0]) < np.ptp(means[1]) < np.ptp(means[2])
    ids = partition.feature_shift(X, n_clients=6, strength=1, seed=0)
    for c in range(5):  # sorted but for what the estimated direction misses
        assert np.quantile(along[ids == c], 0.99) < np.quantile(along[ids == c + 1], 0.02) + 0.2


def test_feature_shift_by_a_column_is_exact() -> None:
    X, _ = load_wine(return_X_y=True)
    ids = partition.feature_shift(X, n_clients=4, strength=1, seed=0, column=9)
    for c in range(3):
        assert X[ids == c, 9].max() <= X[ids == c + 1, 9].min()


def test_summary() -> None:
    found = partition.summary(["v", "u", "u", "v", "v", "v"], [True, True, False, True, True, True])
    assert found.clients == ("u", "v")
    assert found.classes == (False, True)
    assert found.counts.tolist() == [[1, 1], [0, 4]]
    assert found.rows.tolist() == [2, 4]
    assert found.shares.tolist() == [[0.5, 0.5], [0, 1]]
    assert found.skew == pytest.approx((2 * (1 / 3) + 4 * (1 / 6)) / 6)
    assert str(found) == (
        "2 clients, 6 rows, 2 to 4 per client; label skew 0.22\n"
        "client     rows   False   True\n"
        "     u        2     50%    50%\n"
        "     v        4      0%   100%"
    )
    many = str(partition.summary(np.arange(50), np.zeros(50)))
    assert many.endswith("    19        1    100%\n... and 30 more clients")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: partition.iid([1, 2, 3], n_clients=2, seed=0),
            "3 rows are too few for 2 clients with at least 2 each",
        ),
        (lambda: partition.iid(3, n_clients=2, seed=0), "y must have one entry per row, got 3"),
        (lambda: partition.iid([1, 2], n_clients=0, seed=0), "n_clients must be a whole number of at least 1"),
        (lambda: partition.iid([1, 2], n_clients=1, seed=-1), "seed must be a whole number of at least 0"),
        (lambda: partition.iid([1, 2], n_clients=1, seed=0, min_rows=0), "min_rows must be a whole number"),
        (lambda: partition.dirichlet([1, 2], n_clients=1, alpha=0, seed=0), "alpha must be a positive number"),
        (
            lambda: partition.shards([1, 2, 1], n_clients=1, labels=4, seed=0),
            "3 rows are too few for 1 clients with 4 shards each",
        ),
        (
            lambda: partition.similarity([1, 2], n_clients=1, share=10, seed=0),
            "share must be between 0 and 1, got 10",
        ),
        (lambda: partition.quantity([1, 2], n_clients=1, alpha=-1, seed=0), "alpha must be a positive number"),
        (
            lambda: partition.feature_shift([[1.0]] * 4, n_clients=2, strength=2, seed=0),
            "strength must be between 0 and 1",
        ),
        (
            lambda: partition.feature_shift([1.0] * 4, n_clients=2, strength=1, seed=0),
            "X must have rows and columns",
        ),
        (
            lambda: partition.feature_shift([[1.0]] * 4, n_clients=2, strength=1, seed=0, column=1),
            "column must be below 1, the number of columns of X, got 1",
        ),
        (
            lambda: partition.feature_shift([[np.nan]] * 4, n_clients=2, strength=1, seed=0),
            "X holds NaN or infinity",
        ),
        (lambda: partition.summary([1, 2], [1]), "clients and y must have one entry per row, got shapes"),
    ],
)
def test_refusals(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        call()
