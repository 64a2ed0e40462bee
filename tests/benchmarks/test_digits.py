"""The network on digits: a small run, its figure, and rounds counted where the answer is known."""

from pathlib import Path

import jax
import numpy as np
import pytest
from sklearn.datasets import load_digits

import fedscaffold as fs
from benchmarks.digits import NETWORKS, digits, draw, figures, rounds_to, simulate
from fedscaffold.core.types import Array


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
    labels = load_digits(return_X_y=True)[1]
    tested = labels[np.random.default_rng(0).permutation(labels.size)[:360]]
    assert [accuracy(row) for row in theta] == [(tested == 3).mean(), (tested == 7).mean()]


@pytest.mark.slow
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
    found = figures(curves)["dirichlet_0_1"]["fedavg"]
    assert found["percent_at_end"] == pytest.approx(100.0 * curves[0.1, "FedAvg"][:, -1].mean(), rel=1e-12)
    assert found["rounds_to_95"] == "never, never"


def convolved(image: Array, kernel: Array, bias: Array) -> Array:
    """relu of a 3 × 3 convolution with steps of two, written out: nothing before the first row, one zero after."""
    side = len(image) // 2
    filled = np.zeros((2 * side + 1, 2 * side + 1, image.shape[2]))
    filled[: 2 * side, : 2 * side] = image
    out = np.zeros((side, side, len(bias)))
    for i in range(side):
        for j in range(side):
            patch = filled[2 * i : 2 * i + 3, 2 * j : 2 * j + 3]
            out[i, j] = np.maximum(np.einsum("abc,abcd->d", patch, kernel) + bias, 0.0)
    return out


def test_the_convolutional_network_written_out() -> None:
    rng = np.random.default_rng(0)
    params = {
        name: leaf + 0.1 * rng.normal(size=leaf.shape)
        for name, leaf in NETWORKS["convolutional"].initial(rng).items()
    }
    x, y = rng.normal(size=(3, 64)), np.array([4, 0, 9])
    assert sum(leaf.size for leaf in params.values()) == 1898
    scores = []
    for image in x.reshape(3, 8, 8, 1):
        hidden = convolved(
            convolved(image, params["first"], params["first_bias"]), params["second"], params["second_bias"]
        )
        scores.append(hidden.ravel() @ params["out"] + params["out_bias"])
    z = np.array(scores)
    wanted = np.mean(np.log(np.exp(z).sum(axis=1)) - z[np.arange(3), y])
    with jax.enable_x64(True):
        np.testing.assert_allclose(NETWORKS["convolutional"].scores(params, x), z, rtol=0, atol=1e-12)
        np.testing.assert_allclose(NETWORKS["convolutional"].loss(params, (x, y)), wanted, rtol=1e-12)


@pytest.mark.slow
def test_a_convolutional_network_learns() -> None:
    curves = simulate(network="convolutional", alphas=(1.0,), seeds=1, rounds=5)
    assert all(rows[0, -1] > 0.6 > 0.3 > rows[0, 0] for rows in curves.values())


@pytest.mark.slow
def test_a_convolutional_network_on_both_engines() -> None:
    problem, _ = digits(0.1, 0, "convolutional")
    few, method = problem.subset([0, 1]), fs.Scaffold(step_size=0.1, local_steps=2)
    fast, slow = (
        fs.run(few, method, rounds=2, batch_size=2, engine=name, theta0=few.initial, record=("loss",))
        for name in ("jax", "reference")
    )
    np.testing.assert_allclose(fast.theta, slow.theta, rtol=0, atol=1e-12)
    assert (fast.metrics["loss"][:, -1] < fast.metrics["loss"][:, 0]).all()
