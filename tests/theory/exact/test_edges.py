"""Exact laws at the edges: no noise, single records, one client, long rounds, step sizes close to the largest."""

from typing import Any

import numpy as np
import pytest

import fedscaffold as fs
from benchmarks.random_problems import random_case
from benchmarks.ridge_moments import ExactRidge
from fedscaffold import FedAvg, Scaffold
from fedscaffold.core.errors import NoPlateau
from fedscaffold.core.random.stream import Batches
from fedscaffold.problems import Ridge
from fedscaffold.theory.exact import exact_law, law
from tests.samples import make, systems
from tests.theory.dense_algebra import curve_of, ridge_covariance

SCAFFOLD = Scaffold(step_size=0.1, local_steps=5)
WITHOUT_NOISE: dict[str, Any] = {
    "cohorts": Scaffold(step_size=0.1, local_steps=5, cohort=3),
    "unequal steps": Scaffold(step_size=0.1, local_steps=(2, 4, 5, 7)),
    "two-sided": fs.TwoSidedScaffold(step_size=0.1, local_steps=5, server_step_size=0.7, cohort=3),
    "proxskip": fs.ProxSkip(step_size=0.1, communication_probability=0.3),
    "fedlin": fs.FedLin(step_size=0.1, local_steps=5),
    "exchanged minibatches": fs.FedLin(step_size=0.1, local_steps=5, correction_gradients="minibatch"),
    "momentum": fs.ServerOptimizer(method=SCAFFOLD, optimizer="sgd", learning_rate=0.5, options={"momentum": 0.5}),
}


@pytest.mark.parametrize("name", WITHOUT_NOISE)
@pytest.mark.parametrize("kind", ["ridge", "linear"])
def test_without_noise_every_method_of_the_family_has_the_plateau_zero(name: str, kind: str) -> None:
    problem: Any = make("ridge", (9,) * 4, 2, l2=0.3) if kind == "ridge" else systems((9,) * 4, 2)
    method = WITHOUT_NOISE[name]
    found = exact_law(problem, method, Batches(None), rounds=400)
    assert np.trace(found.cov_theta) + found.bias @ found.bias < 1e-25
    assert found.curve is not None
    assert found.curve[-1] < 1e-20
    runs = fs.run(problem, method, rounds=8, repetitions=2000, seed=1, progress=False).mse
    error = runs.std(axis=0, ddof=1) / np.sqrt(len(runs))
    assert (np.abs(found.curve[:9] - runs.mean(axis=0)) <= 4.5 * error + 1e-9 * found.curve[0]).all()


@pytest.mark.parametrize("many", [False, True])
@pytest.mark.parametrize("method", [Scaffold, FedAvg])
def test_without_noise_the_curve_is_the_run(method: Any, many: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if many:
        monkeypatch.setattr(law, "_cheapest", lambda *asked: (law.many_clients(*asked[:3]), 0.0))
    problem = make("ridge", (20, 30, 12, 25), 3, weights=(1.0, 2.0, 3.0, 0.5), seed=4)
    chosen = method(step_size=0.2, local_steps=25)
    mse = fs.run(problem, chosen, rounds=40, engine="reference", progress=False).mse[0]
    for batches in (Batches(None), Batches(12, "without_replacement")):
        found = exact_law(problem.subset([2]) if batches.size else problem, chosen, batches, rounds=40)
        assert found.cov_theta.max() == 0.0
        if not batches.size:
            np.testing.assert_allclose(curve_of(found), mse, rtol=1e-9, atol=1e-24)


def test_clients_of_one_record_have_no_noise() -> None:
    problem = Ridge(np.random.default_rng(1).normal(size=(3, 1, 2)), np.ones((3, 1)), l2=0.1)
    found = exact_law(problem, SCAFFOLD, Batches(1), rounds=10)
    mse = fs.run(problem, SCAFFOLD, rounds=10, engine="reference", progress=False).mse[0]
    np.testing.assert_allclose(curve_of(found), mse, rtol=1e-9)
    assert np.trace(found.cov_theta) == 0.0


@pytest.mark.parametrize("l2", [0.0, 1e-8])
def test_records_that_a_model_fits_have_the_plateau_zero_or_none(l2: float) -> None:
    """Noise that vanishes at θ* grows away from it: with a large step size faster than the method contracts."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(3, 9, 3))
    problem = Ridge(X, X @ rng.normal(size=3), l2=l2)
    found = exact_law(problem, SCAFFOLD, Batches(1), rounds=10)
    np.testing.assert_allclose(curve_of(found), ExactRidge(problem, 0.1, 5, Batches(1), True).curve(10), rtol=1e-9)
    assert np.trace(found.cov_theta) < 1e-15
    with pytest.raises(NoPlateau, match="the noise grows"):
        exact_law(problem, Scaffold(step_size=0.6, local_steps=5), Batches(1))


def test_noise_that_feeds_on_itself_has_no_plateau() -> None:
    x = np.random.default_rng(0).standard_cauchy(size=(2, 40, 2))
    problem = Ridge(x, x[..., 0], l2=0.1)
    largest = float(np.linalg.eigvalsh(problem.client_hessians(np.zeros(2))).max())
    for method in (
        Scaffold(step_size=1.0 / largest, local_steps=5),
        fs.FedLin(step_size=0.5 / largest, local_steps=5),
    ):
        with pytest.raises(NoPlateau, match="no plateau"):
            exact_law(problem, method, Batches(1))


@pytest.mark.parametrize("many", [False, True])
@pytest.mark.parametrize("method", [Scaffold, FedAvg])
@pytest.mark.parametrize(
    ("gamma", "H", "batch_size", "weights"),
    [(0.2, 4, 2, None), (0.2, 4, 2, (1.0, 4.0, 0.5)), (0.1, 60, 1, (1.0, 4.0, 0.5))],
)
def test_ridge_by_a_basis_of_symmetric_matrices(
    method: Any, gamma: float, H: int, batch_size: int, weights: Any, many: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if many:
        monkeypatch.setattr(law, "_cheapest", lambda *asked: (law.many_clients(*asked[:3]), 0.0))
    problem = make("ridge", dim=2, weights=weights)
    assert isinstance(problem, Ridge)
    full, mean = ridge_covariance(problem, gamma, H, batch_size, scaffold=method is Scaffold)
    found = exact_law(problem, method(step_size=gamma, local_steps=H), Batches(batch_size))
    np.testing.assert_allclose(found.cov_theta, full[:2, :2], atol=1e-7 * np.abs(full[:2, :2]).max())
    np.testing.assert_allclose(found.bias, mean[:2], atol=1e-9)


SEEDS = [
    pytest.param(1, id="curvatures from 1 to 1e-10"),
    pytest.param(5, id="one client"),
    pytest.param(7, id="few records"),
    pytest.param(10, id="long rounds"),
    *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(60) if seed not in (1, 5, 7, 10)),
]


@pytest.mark.parametrize("seed", SEEDS)
def test_random_problems(seed: int) -> None:
    """Heavy tails, curvatures over ten orders of magnitude, γ up to 0.95 of the largest with a plateau."""
    case = random_case("ridge", seed)
    plateau, curve = case.exact().plateau(), case.exact().curve(30)
    found = exact_law(case.problem, case.method, case.batches, rounds=30)
    size = float(case.problem.optimum() @ case.problem.optimum())
    mse = np.trace(found.cov_theta) + found.bias @ found.bias
    np.testing.assert_allclose(mse, plateau, rtol=1e-5, atol=1e-20 * size)
    np.testing.assert_allclose(curve_of(found), curve, rtol=1e-3, atol=1e-20 * size)


def test_long_rounds_of_a_tiny_problem() -> None:
    case = random_case("ridge", 4)
    method = Scaffold(step_size=0.02, local_steps=2000)
    assert isinstance(case.problem, Ridge)
    exact = ExactRidge(case.problem, 0.02, 2000, Batches(1), True)
    found = exact_law(case.problem, method, Batches(1), rounds=5)
    np.testing.assert_allclose(curve_of(found), exact.curve(5), rtol=1e-3)
    np.testing.assert_allclose(np.trace(found.cov_theta), exact.plateau(), rtol=1e-5)
