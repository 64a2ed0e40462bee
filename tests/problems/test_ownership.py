"""Problems own what they were given: what the caller does to its arrays afterwards changes nothing."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from threadpoolctl import threadpool_limits

import fedscaffold as fs
from fedscaffold.problems import LinearSA, Logistic, LogisticStream, Multinomial, Ridge, RidgeStream

RNG = np.random.default_rng(0)
X = RNG.normal(size=(3, 20, 2))
WEIGHTS = np.array([1.0, 2.0, 3.0])
MAKE: dict[str, Callable[[dict[str, Any]], Any]] = {
    "ridge": lambda given: Ridge(given["X"], given["y"], weights=given["weights"], l2=0.1),
    "logistic": lambda given: Logistic(given["X"], given["labels"], weights=given["weights"], l2=0.1),
    "multinomial": lambda given: Multinomial(given["X"], given["classes"], weights=given["weights"], l2=0.1),
    "one list": lambda given: Ridge([given["X"][0]], [given["y"][0]], l2=0.1),
    "linear": lambda given: LinearSA(given["A"], given["b"], weights=given["weights"]),
    "ridge stream": lambda given: RidgeStream(
        n_clients=3, dim=2, spectrum=given["spectrum"], weights=given["weights"]
    ),
    "logistic stream": lambda given: LogisticStream(
        n_clients=3, dim=2, spectrum=given["spectrum"], weights=given["weights"]
    ),
}


def given() -> dict[str, Any]:
    return {
        "X": X.copy(),
        "y": X.sum(axis=2),
        "labels": np.where(X[:, :, 0] > 0, 1.0, -1.0),
        "classes": (X[:, :, 0] > 0) + 1.0 * (X[:, :, 1] > 0),
        "A": np.eye(2) + 0.1 * RNG.normal(size=(3, 4, 2, 2)),
        "b": RNG.normal(size=(3, 4, 2)),
        "weights": WEIGHTS.copy(),
        "spectrum": np.array([1.0, 0.5]),
    }


@pytest.mark.parametrize("kind", MAKE)
def test_arrays_that_change_later_change_nothing(kind: str) -> None:
    arrays = given()
    problem = MAKE[kind](arrays)
    before = problem.fingerprint()
    for array in arrays.values():
        assert array.flags.writeable
        array[...] = 99.0
    assert problem.fingerprint() == before
    method = fs.Scaffold(step_size=0.01, local_steps=3)
    trace = fs.run(problem, method, rounds=3, batch_size=2)
    assert np.isfinite(trace.theta).all()


def test_a_read_only_array_is_not_copied_and_a_read_only_view_of_a_writable_one_is() -> None:
    mine = X.copy()
    view = mine.view()
    view.flags.writeable = False
    assert not np.shares_memory(Ridge(view, mine.sum(axis=2)).x, mine)
    mine.flags.writeable = False
    assert np.shares_memory(Ridge(mine, mine.sum(axis=2)).x, mine)


def test_files_opened_to_read_are_not_copied_and_those_opened_to_write_are(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", X)
    read, write = (np.load(tmp_path / "x.npy", mmap_mode=mode) for mode in ("r", "r+"))
    assert np.shares_memory(Ridge(read, X.sum(axis=2)).x, read)
    assert not np.shares_memory(Ridge(write, X.sum(axis=2)).x, write)


def test_numbers_that_are_converted_are_copied_once() -> None:
    """From single precision there is a new array anyway, which the problem keeps."""
    problem = Ridge(X.astype(np.float32), X.sum(axis=2))
    assert problem.x.flags.c_contiguous
    assert not problem.x.flags.writeable


def test_the_kernel_never_writes_outside_whatever_the_labels_are() -> None:
    """In another process, since an error here would end it; labels are changed after they were checked."""
    code = """
import numpy as np, fedscaffold as fs
from fedscaffold.core.random.stream import Batches
X = np.random.default_rng(0).normal(size=(40, 50, 4))
theta, xi = np.zeros((1, 16)), np.zeros((1, 40, 16))
for label in (99.0, -1.0, 4.0, 1e300, -np.inf, np.nan, 2.0**40, 2.0**62):
    problem = fs.problems.Multinomial(X, X.argmax(axis=2))
    for array in (problem.y.base, problem.y):
        array.flags.writeable = True
    with fs.engines.Native().open(problem, Batches(10), seed=0) as local_sgd:
        problem.y[:] = label
        found = local_sgd(theta, xi, step_size=0.1, local_steps=20, round=0)
    try:
        fs.run(problem, fs.Scaffold(step_size=0.1, local_steps=20), rounds=20, batch_size=10, record=())
    except fs.InvalidInput:
        print(np.isnan(found).any(axis=2).all())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, 8 * "True\n"), done.stderr


def test_weights_near_the_largest_number_count() -> None:
    problem = Ridge(X, X.sum(axis=2), weights=[1e308, 1e308, 0.5e308])
    assert problem.weights == pytest.approx([0.4, 0.4, 0.2])
    with pytest.raises(fs.InvalidInput, match="count for nothing"):
        Ridge(X, X.sum(axis=2), weights=[1e308, 1e308, 1e-300])


@pytest.mark.parametrize(("kind", "dim"), [
    (Ridge, 20), (Ridge, 200), (Logistic, 20), (Logistic, 200), (Multinomial, 20),
    pytest.param(Multinomial, 200, marks=pytest.mark.slow),
])  # fmt: skip
def test_losses_and_gradients_have_the_same_bits_on_any_number_of_threads(kind: Any, dim: int) -> None:
    x = np.random.default_rng(1).normal(size=(2, 20_000, dim))
    problem = kind(x, (x[:, :, 0] > 0) * 1.0, l2=0.1)
    theta = np.random.default_rng(2).normal(size=problem.dim)
    found = set()
    for threads in (1, 2, 4):
        with threadpool_limits(threads):
            gradients = problem.gradient(theta).tobytes(), problem.client_gradients(theta).tobytes()
            found.add((problem.loss(theta), tuple(problem.client_losses(theta)), *gradients))
    assert len(found) == 1
