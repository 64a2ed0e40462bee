"""Averages of iterates: closed forms against dense algebra and simulation."""

from typing import Any

import numpy as np
import pytest
from scipy.linalg import block_diag

import fedscaffold as fs
from fedscaffold.core.random.stream import Batches
from fedscaffold.simulation import TailAverage
from fedscaffold.theory.exact.dense import stationary
from fedscaffold.theory.exact.law import dense_rounds, many_clients
from fedscaffold.theory.iterate_average import average_covariance
from tests.samples import make
from tests.theory.dense_algebra import round_matrices

SETTINGS = [(0.02, 5), (0.1, 20), (0.1, 200)]


@pytest.mark.parametrize(("gamma", "H"), SETTINGS)
@pytest.mark.parametrize("weights", [None, (1.0, 5.0, 2.0)])
def test_scaffolds_long_run_covariance_by_dense_algebra(gamma: float, H: int, weights: Any) -> None:
    """(I − A)⁻¹ L Q Lᵀ (I − A)⁻ᵀ of the pseudo-code's round, with the predictor's Q_c, to seven digits."""
    problem = make("ridge", (12,) * 3, 2, l2=0.3, weights=weights)
    method = fs.Scaffold(step_size=gamma, local_steps=H)
    found = fs.theory.scaffold_long_run_covariance(problem, method, batch_size=3)
    many = many_clients(problem, method, Batches(3))
    assert many is not None
    Q = many.powers.U @ many.plateau()[1].gathered @ np.swapaxes(many.powers.U, 1, 2)
    hessians = problem.client_hessians(problem.optimum())
    A, noise = round_matrices(hessians, problem.weights, gamma, H)
    gain = np.linalg.solve(np.eye(len(A)) - A, noise)
    dense = (gain @ block_diag(*Q) @ gain.T)[:2, :2]
    np.testing.assert_allclose(found, dense, atol=1e-9 * np.abs(dense).max())


@pytest.mark.parametrize(("gamma", "H"), SETTINGS[:2])
def test_the_general_long_run_covariance_is_scaffolds(gamma: float, H: int) -> None:
    problem = make("ridge", (12,) * 3, 2, l2=0.3)
    method = fs.Scaffold(step_size=gamma, local_steps=H)
    general = fs.theory.predict_average(problem, method, batch_size=3, rounds=2).long_run_cov
    own = fs.theory.scaffold_long_run_covariance(problem, method, batch_size=3)
    np.testing.assert_allclose(general, own, atol=1e-6 * np.abs(own).max())


@pytest.mark.parametrize("x", [0.1, 1.0, 5.0])
def test_what_long_rounds_lose(x: float) -> None:
    """One curvature and constant noise: (x/2) coth(x/2) times Ḡ⁻¹C̄Ḡ⁻¹/H."""
    problem = fs.problems.Ridge(np.ones((3, 2, 1)), np.tile([-1.0, 1.0], (3, 1)))
    gamma = 1e-3
    H = round(x / gamma)
    method = fs.Scaffold(step_size=gamma, local_steps=H)
    found = float(fs.theory.scaffold_long_run_covariance(problem, method, batch_size=1)[0, 0])
    assert found * 3 * H == pytest.approx(x / 2 / np.tanh(x / 2), rel=2e-3)


@pytest.mark.parametrize("n", [1, 2, 7])
def test_the_covariance_of_a_short_average(n: int) -> None:
    """By summing all covariances of pairs of rounds."""
    problem = make("ridge", (12,) * 3, 2, l2=0.3)
    r = dense_rounds(problem, fs.Scaffold(step_size=0.05, local_steps=4), Batches(3))
    law = stationary(r)
    total = np.zeros((2, 2))
    for i in range(n):
        for j in range(n):
            ahead = np.linalg.matrix_power(law.mean_map, abs(i - j)) @ law.cov
            block = law.cov if i == j else ahead
            total += block[1:3, 1:3] if i >= j else block[1:3, 1:3].T
    np.testing.assert_allclose(average_covariance(r, law, n), total / n**2, rtol=1e-9)


@pytest.mark.parametrize(
    "method",
    [
        fs.Scaffold(step_size=0.1, local_steps=5),
        fs.FedLin(step_size=0.1, local_steps=5, correction_gradients="minibatch"),
    ],
    ids=["scaffold", "fedlin"],
)
def test_averages_of_runs(method: Any) -> None:
    problem = make("ridge", (12,) * 3, 2, l2=0.5)
    found = fs.theory.predict_average(problem, method, batch_size=3, rounds=60, after=20)
    trace = fs.run(
        problem, method, rounds=60, batch_size=3, repetitions=2000, progress=False, record=(TailAverage(after=20),)
    )
    errors = np.square(trace.average - problem.optimum()).sum(axis=1)
    assert abs(errors.mean() - found.mse) <= 0.03 * found.mse + 4 * errors.std() / np.sqrt(errors.size)


def test_the_best_tail_is_no_worse_than_others() -> None:
    problem = make("ridge", (12,) * 3, 2, l2=0.3)
    method = fs.Scaffold(step_size=0.02, local_steps=5)
    best = fs.theory.predict_average(problem, method, batch_size=3, rounds=80)
    for after in (0, 10, 40, 79):
        other = fs.theory.predict_average(problem, method, batch_size=3, rounds=80, after=after)
        assert best.mse <= other.mse * (1 + 1e-12)
    assert 0 < best.after < 79


def test_the_error_of_an_extrapolation() -> None:
    """2θ̄(γ, H) − θ̄(2γ, H/2) of two independent runs."""
    problem = make("ridge", (12,) * 4, 2, l2=0.1)
    fine, coarse = (
        fs.theory.predict_average(
            problem, fs.FedAvg(step_size=g, local_steps=H), batch_size=1, rounds=40, after=30
        )
        for g, H in ((0.05, 20), (0.1, 10))
    )
    error = 2 * fine.mean_error - coarse.mean_error
    assert fine.extrapolated(coarse) == pytest.approx(float(np.trace(4 * fine.cov + coarse.cov) + error @ error))


def test_refusals() -> None:
    problem = make("ridge", (6,) * 3, 2)
    with pytest.raises(fs.InvalidInput, match="leaves nothing"):
        fs.theory.predict_average(
            problem, fs.Scaffold(step_size=0.1, local_steps=2), batch_size=1, rounds=5, after=5
        )
    with pytest.raises(fs.InvalidInput, match="not of fedavg on ridge"):
        fs.theory.scaffold_long_run_covariance(problem, fs.FedAvg(step_size=0.1, local_steps=2), batch_size=1)
    logistic: Any = make("logistic", (6,) * 3, 2)
    for ask in (fs.theory.predict_average, fs.theory.scaffold_long_run_covariance):
        more: Any = {"rounds": 5} if ask is fs.theory.predict_average else {}
        with pytest.raises(fs.InvalidInput, match="on logistic"):
            ask(logistic, fs.Scaffold(step_size=0.1, local_steps=2), batch_size=1, **more)
    many = fs.problems.RidgeStream(n_clients=400, dim=3)
    with pytest.raises(fs.InvalidInput, match="up to 600 numbers"):
        fs.theory.predict_average(many, fs.Scaffold(step_size=0.1, local_steps=2), batch_size=1, rounds=5)
