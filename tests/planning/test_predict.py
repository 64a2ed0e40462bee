"""Predictions against long simulations and independent algebra, and their edges."""

from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure
from scipy.special import stdtrit

import fedscaffold as fs
from fedscaffold.core.errors import NoPlateau
from fedscaffold.core.random.stream import Batches
from fedscaffold.planning import measured
from fedscaffold.planning.measured import _of_few
from fedscaffold.theory.exact import exact_law
from tests.samples import make, weighted

SCAFFOLD = fs.Scaffold(step_size=0.2, local_steps=10)


def simulated(problem: Any, method: Any, rounds: int, repetitions: int, **more: Any) -> tuple[Any, Any]:
    """Means over the second half of rounds from 0 of ‖e‖² and e, of every repetition."""
    optimum = problem.optimum()

    class Path:
        name, keep = "path", "every"

        def watch(self, problem: Any) -> Any:
            return lambda round, theta, previous: theta - optimum

    record: Any = (Path(),)
    trace = fs.run(problem, method, rounds=rounds, repetitions=repetitions, record=record, **more)
    kept = trace.metrics["path"][:, rounds // 2 :]
    return np.square(kept).sum(axis=2).mean(axis=1), kept.mean(axis=1)


CASES: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "logistic, Scaffold": (make("logistic", (20, 15, 25), 3), SCAFFOLD, {"batch_size": 2}),
    "logistic, FedAvg": (
        make("logistic", (20, 15, 25), 3), fs.FedAvg(step_size=0.5, local_steps=10), {"batch_size": 2}
    ),
    "logistic, cohort": (
        make("logistic", (20, 20, 20), 2), fs.Scaffold(step_size=0.2, local_steps=5, cohort=2), {"batch_size": 2}
    ),
    "ridge, clipped": (
        make("ridge", (20, 15, 25), 3), SCAFFOLD,
        {"batch_size": None, "privacy": fs.privacy.RecordLevel(clip=0.5, noise_multiplier=1.0)},
    ),
    "ridge, ProxSkip": (
        make("ridge", (20, 15), 3), fs.ProxSkip(step_size=0.1, communication_probability=0.2), {"batch_size": 2}
    ),
    "poisson": (weighted("poisson", (40, 50), 2), fs.Scaffold(step_size=0.02, local_steps=5), {"batch_size": 4}),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_measured_plateaus_are_those_of_long_runs(name: str) -> None:
    """The error, and its two parts: bias from the products of different repetitions, variance from the rest."""
    problem, method, options = CASES[name]
    found = fs.theory.predict(problem, method, how="measured", accuracy=0.03, **options)
    assert found.how == "measured"
    assert 0.0 < found.standard_error <= 0.03 * found.mse
    squares, means = simulated(problem, method, 300, 100, seed=5, **options)
    error = np.hypot(found.standard_error, squares.std() / np.sqrt(squares.size))
    assert abs(squares.mean() - found.mse) < 3.5 * error
    R, mean = len(means), means.mean(axis=0)
    square = (R * R * mean @ mean - np.square(means).sum()) / (R * (R - 1))
    assert found.squared_bias == pytest.approx(square, abs=0.05 * found.mse)
    assert found.mse == pytest.approx(found.variance + found.bias @ found.bias)
    assert found.cov_theta is not None
    assert np.trace(found.cov_theta) == pytest.approx(found.variance)


@pytest.mark.parametrize("method", [SCAFFOLD, fs.FedAvg(step_size=0.2, local_steps=10)])
def test_measured_and_exact_predictions_agree(method: Any) -> None:
    problem = make("ridge", (20, 15, 25), 3)
    exact: Any = fs.theory.predict(problem, method, batch_size=2, rounds=12)
    drawn: Any = fs.theory.predict(problem, method, batch_size=2, rounds=12, how="measured")
    assert (exact.how, exact.standard_error) == ("exact", 0.0)
    law = exact_law(problem, method, Batches(2), rounds=12)
    assert exact.mse == pytest.approx(np.trace(law.cov_theta) + law.bias @ law.bias)
    assert abs(drawn.mse - exact.mse) < 3.5 * drawn.standard_error
    np.testing.assert_allclose(drawn.cov_theta, exact.cov_theta, atol=0.1 * exact.variance)
    np.testing.assert_allclose(drawn.bias, exact.bias, atol=0.1 * np.sqrt(exact.mse))
    assert (np.abs(drawn.curve - exact.curve) <= 4.0 * drawn.curve_error + 1e-12).all()
    assert (drawn.curve_error <= 0.02 * drawn.curve).all()


def test_standard_errors_are_honest() -> None:
    """Over many problems, measured plateaus are about normally far from exact ones, in standard errors.

    Coarser ones are nearer: most of their standard error is what the start may have left.
    """
    away = []
    for seed in range(30):
        problem = fs.problems.RidgeStream(n_clients=3, dim=2, seed=seed)
        exact = fs.theory.predict(problem, SCAFFOLD, batch_size=2).mse
        drawn = fs.theory.predict(problem, SCAFFOLD, batch_size=2, how="measured", accuracy=0.01)
        away.append((drawn.mse - exact) / drawn.standard_error)
    assert np.abs(away).max() < 3.5
    assert 0.6 < np.sqrt(np.mean(np.square(away))) < 1.5


def test_the_start_counts_as_an_error_until_it_is_forgotten() -> None:
    blocks, rng = measured._Blocks(np.zeros(2), 100), np.random.default_rng(0)
    for round in range(48):  # the errors of the start are three times as large, and fall by e in eight rounds
        blocks.add(rng.normal(size=(100, 2)) * (1.0 + 2.0 * np.exp(-round / 8)))
    known, unknown = measured.MeasuredPlateau(blocks, 8.0), measured.MeasuredPlateau(blocks, 0.0)
    assert known.mse == unknown.mse > 2.0 + 4.0 * unknown.standard_error
    assert known.mse < 2.0 + 2.0 * known.standard_error


def test_two_repetitions_are_enough_only_after_three_times_their_memory() -> None:
    blocks, rng = measured._Blocks(np.zeros(1), 2), np.random.default_rng(0)
    for _ in range(24):
        blocks.add(1.0 + 1e-6 * rng.normal(size=(2, 1)))
    assert measured.MeasuredPlateau(blocks, 1.0).is_enough(0.02)
    assert not measured.MeasuredPlateau(blocks, 5.0).is_enough(1.0)


def test_first_order_predictions_take_no_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    problem, method = make("logistic", (20, 15, 25), 3), fs.Scaffold(step_size=0.01, local_steps=3)
    drawn = fs.theory.predict(problem, method, batch_size=2)
    monkeypatch.setattr(measured, "validate_run", None)
    first = fs.theory.predict(problem, method, batch_size=2, rounds=3000, how="first order")
    law = fs.theory.expansion(problem, method, batch_size=2)
    assert first.variance == pytest.approx(np.trace(law.cov_theta))
    np.testing.assert_allclose(first.bias, law.bias)
    assert first.mse == pytest.approx(drawn.mse, rel=0.15)
    assert first.curve is not None
    assert first.curve[0] == pytest.approx(problem.optimum() @ problem.optimum())
    assert first.curve[-1] == pytest.approx(first.mse, rel=0.3)


def test_without_noise_the_plateau_is_the_bias() -> None:
    problem = make("logistic", (20, 15, 25), 3)
    found: Any = fs.theory.predict(problem, SCAFFOLD, batch_size=None, rounds=3)
    assert (found.mse, found.standard_error) == (0.0, 0.0)
    np.testing.assert_allclose(found.curve, fs.run(problem, SCAFFOLD, rounds=3).mse[0])
    method = fs.FedAvg(step_size=0.2, local_steps=10)
    last = fs.run(problem, method, rounds=500).theta[0] - problem.optimum()
    np.testing.assert_allclose(fs.theory.predict(problem, method, batch_size=None).bias, last, rtol=0.01)


def test_the_same_call_gives_the_same_prediction() -> None:
    problem = make("logistic", (20, 15, 25), 3)
    one, two = (fs.theory.predict(problem, SCAFFOLD, batch_size=2, rounds=5) for _ in range(2))
    assert one.mse == two.mse
    np.testing.assert_array_equal(one.curve, two.curve)


@pytest.mark.parametrize(
    ("method", "batch_size"),
    [
        (fs.Scaffold(step_size=30.0, local_steps=10), 2),
        (fs.Scaffold(step_size=30.0, local_steps=10), None),  # θ* is a fixed point: it must be seen to be unstable
        (fs.FedAvg(step_size=30.0, local_steps=10), 2),
    ],
)
def test_a_method_that_diverges_has_no_plateau(method: Any, batch_size: int | None) -> None:
    problem = make("ridge", (20, 15, 25), 3)
    with pytest.raises(NoPlateau, match=r"no plateau.*step_size"):
        fs.theory.predict(problem, method, batch_size=batch_size, how="measured")


def test_the_time_limit_ends_a_measurement() -> None:
    problem = make("logistic", (20, 15, 25), 3)
    found = fs.theory.predict(problem, SCAFFOLD, batch_size=2, accuracy=1e-9, seconds=0.1)
    assert found.standard_error > 1e-9 * found.mse
    assert found.mse == pytest.approx(fs.theory.predict(problem, SCAFFOLD, batch_size=2).mse, rel=0.2)


def test_a_problem_without_an_optimum_needs_one() -> None:
    problem = make("logistic", (20, 15, 25), 3)
    optimum = problem.optimum()

    class Unknown(type(problem)):  # type: ignore[misc]
        def optimum(self) -> Any:
            raise fs.InvalidInput("this problem has no known optimum")

    unknown = Unknown([problem.x[a:b] for a, b in zip(problem.offsets, problem.offsets[1:], strict=False)],
                      [problem.y[a:b] for a, b in zip(problem.offsets, problem.offsets[1:], strict=False)],
                      l2=problem.l2)  # fmt: skip
    with pytest.raises(fs.InvalidInput, match="no known optimum"):
        fs.theory.predict(unknown, SCAFFOLD, batch_size=2)
    found = fs.theory.predict(unknown, fs.FedProx(step_size=0.2, local_steps=10, proximal_weight=0.1),
                              batch_size=2, optimum=optimum, accuracy=0.1)  # fmt: skip
    assert found.mse > 0.0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rounds": 0}, "rounds must be"),
        ({"how": "guessed"}, "how must be"),
        ({"how": "exact"}, "no exact law of Scaffold on logistic"),
        ({"accuracy": 0.0}, "accuracy must be"),
        ({"seconds": -1.0}, "seconds must be"),
        ({"batch_size": 0}, "batch_size must be"),
        ({"optimum": [1.0]}, "optimum must be 3 finite numbers"),
        (
            {"how": "first order", "privacy": fs.privacy.RecordLevel(clip=1.0, noise_multiplier=1.0)},
            "leave how out",
        ),
    ],
)
def test_rejections(options: dict[str, Any], message: str) -> None:
    with pytest.raises(fs.InvalidInput, match=message):
        fs.theory.predict(make("logistic", (20, 15, 25), 3), SCAFFOLD, **{"batch_size": 2, **options})


def test_a_prediction_shows_itself() -> None:
    problem = make("logistic", (20, 15, 25), 3)
    found = fs.theory.predict(problem, SCAFFOLD, batch_size=2, rounds=5, accuracy=0.1)
    text = repr(found)
    assert max(map(len, text.splitlines())) < 80
    assert f"mse: {found.mse:.4g} ± {found.standard_error:.2g}" in text.replace("\n ", "")
    assert "how: measured" in text.replace("\n ", "")
    own = Figure().subplots()
    assert found.plot(own) is own
    lines = {line.get_label(): np.asarray(line.get_ydata()) for line in own.get_lines()}
    np.testing.assert_array_equal(lines["predicted"], found.curve)
    assert set(lines["predicted plateau"]) == {found.mse}
    with pytest.raises(fs.InvalidInput, match="rounds=100"):
        fs.theory.predict(problem, SCAFFOLD, batch_size=2, accuracy=0.1).plot()


def test_few_samples_count_by_students_law() -> None:
    for n in (2, 3, 5, 6, 7, 12, 50, 1000):
        assert _of_few(n) == pytest.approx(stdtrit(n - 1, 0.995) / 2.576, rel=0.006)
