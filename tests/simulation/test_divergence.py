"""Runs that blow up say so, name the client, and tell a step size that would have done."""

import pickle
from typing import Any

import numpy as np
import pytest

import fedscaffold as fs
from fedscaffold.core.random.stream import Batches
from tests.samples import make, tables

STEEP = 2


def steep_problem(kind: str = "ridge", sizes: tuple[int, ...] = (12, 20, 9, 15)) -> Any:
    """One client's features are ten times as large."""
    X, y = tables("ridge", sizes, 3)
    X[STEEP] = 10 * X[STEEP]
    if kind == "ridge":
        return fs.problems.Ridge(X, y)
    return fs.problems.Logistic(X, [np.where(t > 0, 1.0, -1.0) for t in y], l2=50.0)


@pytest.mark.parametrize("engine", ["native", "reference"])
@pytest.mark.parametrize("kind", ["ridge", "logistic"])
@pytest.mark.parametrize("name", ["Scaffold", "FedAvg"])
@pytest.mark.parametrize("batch_size", [2, None])
def test_divergence_is_told_and_the_safe_step_is_safe(
    engine: Any, kind: str, name: str, batch_size: int | None
) -> None:
    problem = steep_problem(kind)
    method = getattr(fs, name)
    settings: Any = {"rounds": 60, "batch_size": batch_size, "engine": engine, "theta0": [3.0, 3.0, 3.0]}
    with pytest.raises(fs.Diverged) as caught:
        fs.run(problem, method(step_size=0.3, local_steps=6), **settings)
    error = caught.value
    assert isinstance(error, fs.FedScaffoldError)
    assert 1 <= error.round <= 60
    assert f"round {error.round}" in str(error)
    assert f"client {error.client}" in str(error)
    assert f"{error.safe_step_size:.3g}" in str(error)
    assert 0 < error.safe_step_size < 0.3
    if kind == "ridge":  # with the penalty of 50, all clients blow up alike
        assert error.client == STEEP
    safe = fs.run(problem, method(step_size=error.safe_step_size, local_steps=6), **settings)
    assert np.isfinite(safe.mse).all()
    assert safe.mse[0, -1] < 0.5 * safe.mse[0, 0]


def test_the_round_is_the_first_with_an_impossible_model() -> None:
    """One round fewer is still returned, and is finite."""
    problem = steep_problem()
    method = fs.FedAvg(step_size=0.3, local_steps=1)
    with pytest.raises(fs.Diverged) as caught:
        fs.run(problem, method, rounds=200)
    assert caught.value.round > 2
    last = fs.run(problem, method, rounds=caught.value.round - 1)
    assert np.isfinite(last.mse).all()
    assert np.abs(last.theta).max() > 1e6


@pytest.mark.parametrize("local_steps", [1, 10, 300, 3000])
def test_nothing_infinite_is_ever_returned(local_steps: int) -> None:
    """Within a round, too: 3,000 steps overflow to NaN long before the server sees anything."""
    with pytest.raises(fs.Diverged) as caught:
        fs.run(steep_problem(), fs.Scaffold(step_size=0.5, local_steps=local_steps), rounds=500, batch_size=1)
    assert caught.value.client == STEEP


def test_a_client_at_nan_went_before_one_at_infinity() -> None:
    """θ ← (1 − x²)θ + x: ten times as large each step for the first client, a hundred times for the second."""
    x = np.sqrt([11.0, 101.0])
    problem = fs.problems.Ridge(x[:, None, None], np.ones((2, 1)))
    with fs.engines.Native().open(problem, Batches(), seed=0) as local_sgd, np.errstate(all="ignore"):
        zero = np.zeros((1, 1))
        ends = {
            h: local_sgd(zero, zero[None], step_size=1.0, local_steps=h, round=0)[0, :, 0] for h in range(300, 320)
        }
    at_infinity = [h for h, end in ends.items() if np.isinf(end[0])]
    assert len(at_infinity) == 1
    assert np.isnan(ends[at_infinity[0]][1])
    with pytest.raises(fs.Diverged) as caught:
        fs.run(problem, fs.FedAvg(step_size=1.0, local_steps=at_infinity[0]), rounds=3)
    assert (caught.value.round, caught.value.client) == (1, 1)


def test_divergence_leaves_the_last_good_checkpoint(tmp_path: Any) -> None:
    path = tmp_path / "checkpoint"
    method = fs.FedAvg(step_size=0.3, local_steps=1)
    for _ in range(2):  # the second time from the checkpoint
        with pytest.raises(fs.Diverged) as caught:
            fs.run(steep_problem(), method, rounds=200, checkpoint=path, checkpoint_every=1)
        last = fs.run(steep_problem(), method, rounds=caught.value.round - 1, checkpoint=path)
        assert np.isfinite(last.theta).all()


def test_a_far_start_is_not_a_divergence() -> None:
    theta0 = np.full(3, 1e20)
    trace = fs.run(make("ridge"), fs.Scaffold(step_size=0.1, local_steps=5), rounds=50, theta0=theta0)
    assert trace.mse[0, -1] < 1e-2 * trace.mse[0, 0]


def test_where_no_step_size_is_proved_safe_none_is_named() -> None:
    """Every record's matrix is a rotation: steps of any size grow on it."""
    A = np.broadcast_to(np.array([[0.0, 1.0], [-1.0, 0.0]]), (2, 1, 2, 2)) + 1e-3 * np.eye(2)
    A = np.concatenate([A, A - 5e-3 * np.eye(2)], axis=1) + np.array([0.0, 5e-3])[:, None, None, None] * np.eye(2)
    problem = fs.problems.LinearSA(A, np.ones((2, 2, 2)))
    with pytest.raises(fs.Diverged, match="No step size can be vouched for") as caught:
        fs.run(problem, fs.FedAvg(step_size=1.0, local_steps=5), rounds=500)
    assert caught.value.safe_step_size == 0.0


def test_numbers_that_are_too_large_are_not_blamed_on_the_step_size() -> None:
    X = np.random.default_rng(0).normal(size=(4, 50, 3))
    problem = fs.problems.Ridge(X, 1e200 * X.sum(axis=2))
    with pytest.raises(fs.Diverged, match="step size is not to blame") as error:
        fs.run(problem, fs.Scaffold(step_size=0.01, local_steps=5), rounds=20, batch_size=10, record=())
    assert error.value.safe_step_size > 0.01


@pytest.mark.parametrize("stored", [False, True])
def test_the_error_keeps_the_trace_of_the_rounds_before(tmp_path: Any, stored: bool) -> None:
    """To the bit that of a run that ends there, also if the client state lies in files."""
    settings: Any = {"batch_size": 2, "repetitions": 2, "client_state_dir": tmp_path if stored else None}
    method = fs.Scaffold(step_size=0.3, local_steps=6)
    with pytest.raises(fs.Diverged) as caught:
        fs.run(steep_problem(), method, rounds=60, **settings)
    trace = caught.value.trace
    assert 0 < trace.rounds == caught.value.round - 1
    shorter = fs.run(steep_problem(), method, rounds=trace.rounds, batch_size=2, repetitions=2)
    for name in ("theta", "control_variates", "mse", "gradients_per_client", "vectors_per_client"):
        np.testing.assert_array_equal(getattr(trace, name), getattr(shorter, name))
    trace.save(tmp_path / "trace")
    assert fs.Trace.load(tmp_path / "trace").rounds == trace.rounds
    assert pickle.loads(pickle.dumps(caught.value)).trace.rounds == trace.rounds


def test_a_run_that_diverges_at_once_keeps_its_start() -> None:
    with pytest.raises(fs.Diverged) as caught:
        fs.run(steep_problem(), fs.FedAvg(step_size=1e3, local_steps=50), rounds=3, theta0=[1.0, 2.0, 3.0])
    assert caught.value.round == 1
    assert caught.value.trace.theta.tolist() == [[1.0, 2.0, 3.0]]
    assert caught.value.trace.mse.shape == caught.value.trace.gradients_per_client.shape == (1, 1)


def test_stages_keep_their_trace_too() -> None:
    with pytest.raises(fs.Diverged) as caught:
        fs.staged(steep_problem(), fs.Scaffold(step_size=0.3, local_steps=6), rounds=60, batch_size=2)
    assert caught.value.trace.rounds == caught.value.round - 1
