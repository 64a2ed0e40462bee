"""The round loop: what it records, what it starts from, what it shows."""

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pytest

import fedscaffold as fs
from fedscaffold.core.protocols import Watch
from fedscaffold.core.types import Array, IntArray
from fedscaffold.methods.base import BaseMethod, same_for_all
from tests.samples import KINDS, Kind, make

METHOD = fs.Scaffold(step_size=0.1, local_steps=4)


@dataclass(frozen=True)
class Iterates:
    """A user's observer: keeps θ itself."""

    name: str = "iterates"
    keep: Literal["every"] = "every"

    def watch(self, problem: Any) -> Watch:
        def theta(round: int, theta: Array, previous: Array | None) -> Array:
            return theta.copy()

        return theta


@pytest.mark.parametrize("kind", KINDS)
def test_shapes_and_start(kind: Kind) -> None:
    problem = make(kind)
    theta0 = np.array([1.0, 2.0, -1.0])
    trace = fs.run(problem, METHOD, rounds=7, batch_size=2, repetitions=5, theta0=theta0, record=("mse", "loss"))
    assert trace.theta.shape == (5, 3)
    assert trace.control_variates.shape == (5, 3, 3)
    assert trace.mse.shape == trace.loss.shape == (5, 8)
    np.testing.assert_allclose(trace.mse[:, 0], np.sum((theta0 - problem.optimum()) ** 2), rtol=1e-14)
    np.testing.assert_allclose(
        trace.mse[:, -1], np.sum((trace.theta - problem.optimum()) ** 2, axis=1), rtol=1e-13
    )
    np.testing.assert_allclose(trace.loss[:, 0], problem.loss(theta0), rtol=1e-14)
    np.testing.assert_allclose(trace.loss[2, -1], problem.loss(trace.theta[2]), rtol=1e-14)


def test_observers_see_every_round_and_averages_are_of_what_they_saw() -> None:
    problem = make("ridge")
    common: dict[str, Any] = {"rounds": 9, "batch_size": 2, "repetitions": 2, "theta0": [1.0, 2.0, 3.0]}
    trace = fs.run(problem, METHOD, record=("average", "mse", "loss", Iterates()), **common)
    iterates = trace.metrics["iterates"]
    assert iterates.shape == (2, 10, 3)
    assert iterates[:, 0].tolist() == [[1.0, 2.0, 3.0]] * 2
    np.testing.assert_array_equal(iterates[:, -1], trace.theta)
    np.testing.assert_allclose(trace.average, iterates[:, 1:].mean(axis=1), rtol=1e-13)
    np.testing.assert_allclose(trace.mse, np.sum((iterates - problem.optimum()) ** 2, axis=2), rtol=1e-13)
    np.testing.assert_allclose(trace.loss[1], [problem.loss(theta) for theta in iterates[1]], rtol=1e-13)
    for after in (1, 5, 8):
        tail = fs.run(problem, METHOD, record=(fs.simulation.TailAverage(after=after),), **common).average
        np.testing.assert_allclose(tail, iterates[:, after + 1 :].mean(axis=1), rtol=1e-13)
    late = fs.run(problem, METHOD, record=(fs.simulation.TailAverage(after=9),), **common).average
    np.testing.assert_array_equal(late, trace.theta)  # nothing to average yet: the iterate itself


def test_what_was_not_recorded_is_refused_with_the_way_to_get_it() -> None:
    trace = fs.run(make("ridge"), METHOD, rounds=1, record=())
    assert trace.metrics == {}
    with pytest.raises(fs.InvalidInput, match=r"recorded nothing\); run with record=\('mse',\)"):
        _ = trace.mse
    with pytest.raises(fs.InvalidInput, match=r"recorded 'mse'\)"):
        _ = fs.run(make("ridge"), METHOD, rounds=1).average


def test_a_start_for_each_repetition() -> None:
    problem, starts = make("ridge"), np.arange(6.0).reshape(2, 3)
    trace = fs.run(problem, METHOD, rounds=2, repetitions=2, theta0=starts)
    for r in range(2):
        alone = fs.run(problem, METHOD, rounds=2, theta0=starts[r])  # full gradients: no other difference
        np.testing.assert_array_equal(trace.theta[r], alone.theta[0])


def test_a_run_goes_on_from_where_another_ended() -> None:
    problem = make("logistic", weights=(1, 2, 3))
    whole = fs.run(problem, METHOD, rounds=9)
    first = fs.run(problem, METHOD, rounds=4)
    second = fs.run(problem, METHOD, rounds=5, theta0=first.theta, control_variates0=first.control_variates)
    np.testing.assert_array_equal(second.theta, whole.theta)
    np.testing.assert_array_equal(second.control_variates, whole.control_variates)


def test_starting_values_are_the_users_and_stay_so() -> None:
    problem = make("ridge")
    theta0, xi0 = np.ones(3), np.array([[1.0, 0, 0], [-1.0, 0, 0], [0, 0, 0]])
    first = fs.run(problem, METHOD, rounds=1, theta0=theta0, control_variates0=xi0)
    assert theta0.tolist() == [1, 1, 1]
    assert xi0.tolist() == [[1, 0, 0], [-1, 0, 0], [0, 0, 0]]
    assert np.abs(first.theta - fs.run(problem, METHOD, rounds=1, theta0=theta0).theta).max() > 1e-3


def test_progress_is_told_of_every_round() -> None:
    calls: list[tuple[int, int]] = []
    fs.run(make("ridge"), METHOD, rounds=5, progress=lambda done, rounds: calls.append((done, rounds)))
    assert calls == [(k, 5) for k in range(6)]


@pytest.mark.parametrize("progress", [None, False])
def test_nothing_is_printed_where_nobody_watches(progress: bool | None, capfd: pytest.CaptureFixture[str]) -> None:
    fs.run(make("ridge"), METHOD, rounds=3, progress=progress)
    assert capfd.readouterr() == ("", "")


def test_a_bar_on_request_goes_to_standard_error(capfd: pytest.CaptureFixture[str]) -> None:
    fs.run(make("ridge"), METHOD, rounds=3, progress=True)
    out, err = capfd.readouterr()
    assert out == ""
    assert "Scaffold" in err


def test_numbers_from_numpy_are_numbers(tmp_path: Any) -> None:
    """As they come out of np.arange or np.geomspace; what is saved must hold them too."""
    method = fs.Scaffold(step_size=np.float32(0.125), local_steps=np.int64(4))  # type: ignore[arg-type]
    odd: Any = {"rounds": np.int64(3), "batch_size": np.int32(2), "seed": np.uint64(7), "repetitions": np.int8(2)}
    plain = fs.Scaffold(step_size=0.125, local_steps=4)
    wanted = fs.run(make("ridge"), plain, rounds=3, batch_size=2, seed=7, repetitions=2)
    path = tmp_path / "checkpoint"
    trace = fs.run(make("ridge"), method, checkpoint=path, **odd)
    np.testing.assert_array_equal(trace.theta, wanted.theta)
    again = fs.run(make("ridge"), plain, rounds=3, batch_size=2, seed=7, repetitions=2, checkpoint=path)
    np.testing.assert_array_equal(again.mse, wanted.mse)
    trace.save(tmp_path / "trace.npz")
    assert fs.Trace.load(tmp_path / "trace.npz").provenance["seed"] == 7


class Plain(BaseMethod):
    """A user's method that is no dataclass of its own: FedAvg in other words."""

    kind = "plain"

    def __init__(self, step_size: float) -> None:
        object.__setattr__(self, "step_size", step_size)

    def local_step_counts(self, n_clients: int, round_uniform: Array) -> IntArray:
        return same_for_all(4)

    def safe_step_size(self, smoothness: float, strong_convexity: float) -> float:
        return 1.0 / smoothness


def test_a_users_method(tmp_path: Any) -> None:
    """The protocol is all that a run asks for; what it was is kept, and told apart in a checkpoint."""
    problem = make("ridge")
    trace = fs.run(problem, Plain(0.1), rounds=3, batch_size=2, checkpoint=tmp_path / "checkpoint")
    usual = fs.run(problem, fs.FedAvg(step_size=0.1, local_steps=4), rounds=3, batch_size=2)
    np.testing.assert_array_equal(trace.theta, usual.theta)
    assert trace.provenance["method"]["name"] == "Plain"
    with pytest.raises(fs.CheckpointMismatch, match="method"):
        fs.run(problem, Plain(0.2), rounds=3, batch_size=2, checkpoint=tmp_path / "checkpoint")


def largest(theta: Array) -> float:
    return float(theta.max())


def test_a_plain_function_of_one_model_is_an_observer(tmp_path: Any) -> None:
    problem = make("ridge")
    common: dict[str, Any] = {"rounds": 6, "batch_size": 2, "repetitions": 3}

    def ends(theta: Array) -> Array:
        return theta[[0, -1]]

    record = ("mse", largest, ends, problem.loss, Iterates())
    trace = fs.run(problem, METHOD, record=record, checkpoint=tmp_path / "run", **common)
    iterates = trace.metrics["iterates"]
    np.testing.assert_array_equal(trace.metrics["largest"], iterates.max(axis=2))
    np.testing.assert_array_equal(trace.metrics["ends"], iterates[:, :, [0, 2]])
    np.testing.assert_array_equal(trace.loss, [[problem.loss(theta) for theta in row] for row in iterates])
    more = fs.run(problem, METHOD, record=record, checkpoint=tmp_path / "run", **{**common, "rounds": 8})
    np.testing.assert_array_equal(more.metrics["largest"][:, :7], trace.metrics["largest"])
    with pytest.raises(fs.InvalidInput, match="recorded once, got \\['loss', 'loss'\\]"):
        fs.run(problem, METHOD, record=("loss", problem.loss), **common)


@pytest.mark.parametrize("kind", ["logistic", "multinomial"])
@pytest.mark.parametrize("weighted", [False, True])
def test_accuracy_is_the_share_of_records_named_right(kind: str, weighted: bool) -> None:
    rng = np.random.default_rng(0)
    X = [rng.normal(size=(n, 3)) for n in (5, 40)]
    y = [table.argmax(axis=1) if kind == "multinomial" else table[:, 0] > 0.3 for table in X]
    weights = [rng.integers(0, 3, size=len(table)) for table in X] if weighted else None
    problem = (fs.problems.Multinomial if kind == "multinomial" else fs.problems.Logistic)(
        X, y, l2=0.1, sample_weight=weights
    )
    trace = fs.run(problem, METHOD, rounds=5, record=("accuracy",))
    x, labels = np.concatenate(X), np.concatenate(y)
    each = np.ones(45) if weights is None else np.concatenate(weights)
    margins = x @ trace.theta[0].reshape(-1, 3).T
    named = margins.argmax(axis=1) if kind == "multinomial" else margins[:, 0] > 0
    assert trace.accuracy.shape == (1, 6)
    assert trace.accuracy[0, -1] == pytest.approx(each @ (named == labels) / each.sum(), rel=1e-14)
    assert trace.accuracy[0, -1] > trace.accuracy[0, 0]


def test_a_callback_sees_every_round_and_its_values() -> None:
    problem, seen = make("ridge"), []

    def callback(round: int, values: Any) -> None:
        seen.append((round, values["mse"].tolist(), values["average"].tolist()))
        if round == 3 and len(seen) == 4:
            raise StopIteration

    settings: Any = {"rounds": 3, "repetitions": 2, "record": ("mse", "average")}
    with pytest.raises(StopIteration):
        fs.run(problem, METHOD, callback=callback, **settings)
    trace = fs.run(problem, METHOD, callback=None, **settings)
    assert [round for round, _, _ in seen] == [0, 1, 2, 3]
    assert [mse for _, mse, _ in seen] == trace.mse.T.tolist()
    assert seen[-1][2] == trace.average.tolist()
    with pytest.raises(fs.InvalidInput, match="callback must be a function of \\(round, values\\)"):
        fs.run(problem, METHOD, rounds=1, callback=3)  # type: ignore[arg-type]
