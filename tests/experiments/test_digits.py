"""The network on digits: a small run, its figure, and rounds counted where the answer is known."""

from pathlib import Path

import numpy as np

from fedscaffold.experiments.digits import Accuracy, digits, draw, rounds_to, simulate, summary


def test_rounds_to_an_accuracy() -> None:
    curves = np.array([[0.1, 0.8, 0.9, 0.85], [0.1, 0.2, 0.3, 0.4], [0.95, 0.1, 0.1, 0.1]])
    assert rounds_to(curves, 0.9) == [2, None, 0]


def test_accuracy_is_the_share_of_records_named_right() -> None:
    problem, accuracy = digits(0.1, seed=0)
    params = problem.unravel(np.zeros(problem.dim))
    assert {name: leaf.shape for name, leaf in params.items()}["in"] == (64, 32)
    theta = np.zeros((2, problem.dim))
    biases = theta[:, -10:] if list(params)[-1] == "out_bias" else None
    assert biases is not None
    biases[0, 3], biases[1, 7] = 1.0, 1.0  # always says three, always says seven
    found = Accuracy(accuracy.x, accuracy.y).watch(problem)(0, theta, None)
    np.testing.assert_array_equal(found, [(accuracy.y == 3).mean(), (accuracy.y == 7).mean()])


def test_a_small_run_and_its_figure(tmp_path: Path) -> None:
    curves = simulate(alphas=(0.1,), seeds=2, rounds=3)
    assert {key: rows.shape for key, rows in curves.items()} == {
        (0.1, "Scaffold"): (2, 4),
        (0.1, "FedAvg"): (2, 4),
    }
    assert all(rows[:, -1].min() > 0.4 > rows[:, 0].max() for rows in curves.values())
    np.testing.assert_array_equal(curves[0.1, "Scaffold"][:, :2], curves[0.1, "FedAvg"][:, :2])  # ξ = 0 at first
    draw(curves, tmp_path / "digits.png")
    assert (tmp_path / "digits.png").read_bytes().startswith(b"\x89PNG")
    assert summary(curves).count("last accuracy") == 2
