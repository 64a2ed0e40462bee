"""How problems hold their data."""

import numpy as np
import pytest

from fedscaffold.core.types import Array
from fedscaffold.problems import Logistic, Ridge
from tests.samples import Kind, make, tables


def block(kind: Kind) -> tuple[Array, Array]:
    X, y = tables(kind, (5, 5, 5), 2)
    return np.stack(X), np.stack(y)


@pytest.mark.parametrize("name", ["x", "y", "offsets", "sizes", "weights"])
def test_the_problems_arrays_are_read_only(name: str) -> None:
    for problem in (make("ridge"), Ridge(*block("ridge"), weights=[1, 2, 3])):
        with pytest.raises(ValueError, match="read-only"):
            getattr(problem, name)[0] = 1


def test_lists_arrays_and_other_types_give_the_same_problem() -> None:
    X, y = block("ridge")
    X, y = np.round(X, 1).astype(np.float32).astype(float), np.round(y) + 0.0  # no -0.0
    fingerprint = Ridge(X, y).fingerprint()
    assert Ridge(list(X), list(y)).fingerprint() == fingerprint
    assert Ridge(X.tolist(), y.tolist()).fingerprint() == fingerprint
    assert Ridge(X.astype(np.float32), y.astype(np.int64)).fingerprint() == fingerprint
    assert Ridge(np.asfortranarray(X), y[:, ::-1][:, ::-1]).fingerprint() == fingerprint


def test_clients_lie_one_after_another() -> None:
    X, y = tables("ridge", (4, 1, 7), 3)
    problem = Ridge(X, y)
    assert problem.offsets.tolist() == [0, 4, 5, 12]
    assert problem.sizes.tolist() == [4, 1, 7]
    np.testing.assert_array_equal(problem.x, np.vstack(X))
    np.testing.assert_array_equal(problem.y, np.concatenate(y))
    assert problem.x.ctypes.data % 64 == 0


def test_labels_of_zero_and_one_mean_minus_one_and_one() -> None:
    X, y = block("logistic")
    assert Logistic(X, (y + 1) / 2).fingerprint() == Logistic(X, y).fingerprint()
    assert Logistic(X, y > 0).fingerprint() == Logistic(X, y).fingerprint()
    assert set(Logistic(X, y > 0).y.tolist()) == {-1.0, 1.0}


def test_weights_are_scaled_to_one() -> None:
    X, y = block("ridge")
    assert Ridge(X, y).weights.tolist() == [1 / 3] * 3
    assert Ridge(X, y, weights=[1, 2, 5]).weights.tolist() == [0.125, 0.25, 0.625]


def test_fingerprint_sees_everything() -> None:
    X, y = block("logistic")
    seen = {Ridge(X, y).fingerprint(), Logistic(X, y).fingerprint()}
    seen.add(Ridge(X, y, l2=1e-300).fingerprint())
    seen.add(Ridge(X, y, weights=[1, 1, 1 + 1e-15]).fingerprint())
    seen.add(Ridge(X.reshape(5, 3, 2), y.reshape(5, 3)).fingerprint())
    for index in np.ndindex(X.shape):
        changed = X.copy()
        changed[index] = np.nextafter(changed[index], np.inf)
        seen.add(Ridge(changed, y).fingerprint())
    for place in np.ndindex(y.shape):
        changed = y.copy()
        changed[place] *= -1
        seen.add(Ridge(X, changed).fingerprint())
    assert len(seen) == 5 + X.size + y.size
    assert Ridge(X.copy(), y.copy()).fingerprint() in seen


def test_description() -> None:
    assert make("ridge", (6, 9, 4), 3, l2=0.1).describe() == {
        "kind": "ridge", "n_clients": 3, "dim": 3, "n_records": 19, "smallest_client": 4, "largest_client": 9,
        "l2": 0.1, "n_unpenalised": 0, "weights": "uniform",
    }  # fmt: skip
    assert make("logistic", weights=[1, 2, 3]).describe()["weights"] == "given"
    assert repr(make("logistic")) == "Logistic(n_clients=3, dim=3, n_records=19, l2=0.1)"


def test_strong_convexity_of_ridge_is_the_smallest_curvature_of_any_client() -> None:
    X, y = tables("ridge", (6, 9, 7), 3)
    for l2 in (0.0, 0.3):
        smallest = min(np.linalg.svd(x, compute_uv=False)[-1] ** 2 / len(x) for x in X) + l2
        assert Ridge(X, y, l2=l2).strong_convexity() == pytest.approx(smallest, rel=1e-9)
