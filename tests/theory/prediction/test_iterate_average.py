"""Averages of iterates: closed forms against dense algebra and simulation."""

from typing import Any

import numpy as np
import pytest
from scipy.linalg import block_diag

import fedscaffold as fs
from fedscaffold.simulation import TailAverage
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
    from fedscaffold.core.random.batches import Batches
    from fedscaffold.theory.prediction.setting import setting
    from fedscaffold.theory.prediction.stationary import solve_stationary

    state = solve_stationary(setting(problem, method, Batches(3)))
    Q = state.cur.U @ state.Q @ np.swapaxes(state.cur.U, 1, 2)
    hessians = problem.client_hessians(problem.optimum())
    A, noise = round_matrices(hessians, problem.weights, gamma, H)
    gain = np.linalg.solve(np.eye(len(A)) - A, noise)
    dense = (gain @ block_diag(*Q) @ gain.T)[:2, :2]
    np.testing.assert_allclose(found, dense, rtol=1e-7)


@pytest.mark.parametrize(("gamma", "H"), SETTINGS[:2])
def test_the_general_long_run_covariance_is_scaffolds(gamma: float, H: int) -> None:
    problem = make("ridge", (12,) * 3, 2, l2=0.3)
    method = fs.Scaffold(step_size=gamma, local_steps=H)
    general = fs.theory.predict_average(problem, method, batch_size=3, rounds=2).long_run_cov
    own = fs.theory.scaffold_long_run_covariance(problem, method, batch_size=3)
    np.testing.assert_allclose(general, own, atol=1e-5 * np.abs(own).max())  # Scaffold's own passes stop at 1e-6


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
    from fedscaffold.core.random.batches import Batches
    from fedscaffold.theory.prediction.family.family_setting import family_setting
    from fedscaffold.theory.prediction.family.stationary_law import stationary_law
    from fedscaffold.theory.prediction.iterate_average import average_covariance

    problem = make("ridge", (12,) * 3, 2, l2=0.3)
    s = family_setting(problem, fs.Scaffold(step_size=0.05, local_steps=4), Batches(3))
    law = stationary_law(s)
    total = np.zeros((2, 2))
    for i in range(n):
        for j in range(n):
            ahead = np.linalg.matrix_power(law.mean_map, abs(i - j)) @ law.cov
            block = law.cov if i == j else ahead
            total += block[:2, :2] if i >= j else block[:2, :2].T
    np.testing.assert_allclose(average_covariance(s, law, n), total / n**2, rtol=1e-9)


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


def test_extrapolation_removes_most_of_the_bias() -> None:
    """Logistic, long rounds and single records: 2θ̄(γ, H) − θ̄(2γ, H/2) against θ̄(γ, H), over many rounds."""
    problem = make("logistic", (12,) * 4, 2, l2=0.1)
    fine, coarse = (
        fs.theory.predict_average(
            problem, fs.Scaffold(step_size=gamma, local_steps=H), batch_size=1, rounds=40, after=30
        )
        for gamma, H in ((0.05, 20), (0.1, 10))
    )
    left = 2 * fine.bias - coarse.bias
    assert left @ left < 0.1 * fine.bias @ fine.bias
    settled = float(np.trace(4 * fine.cov + coarse.cov) + np.square(2 * fine.mean_error - coarse.mean_error).sum())
    assert fine.extrapolated(coarse) == pytest.approx(settled)


def test_refusals() -> None:
    problem = make("ridge", (6,) * 3, 2)
    with pytest.raises(fs.InvalidInput, match="leaves nothing"):
        fs.theory.predict_average(
            problem, fs.Scaffold(step_size=0.1, local_steps=2), batch_size=1, rounds=5, after=5
        )
    with pytest.raises(fs.InvalidInput, match="not of fedavg"):
        fs.theory.scaffold_long_run_covariance(problem, fs.FedAvg(step_size=0.1, local_steps=2), batch_size=1)
