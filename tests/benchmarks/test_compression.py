"""The benchmark of bits: its engine in closed form takes the same local steps, and bits are those of runs."""

import numpy as np
import pytest

import fedscaffold as fs
from benchmarks import compression
from fedscaffold.core.protocols import Method

METHODS: list[Method] = [
    fs.Scaffold(step_size=0.7, local_steps=3),
    fs.Scaffold(step_size=0.7, local_steps=[1, 2, 5]),
    fs.FedSplit(step_size=0.4, local_steps=4, proximal_weight=0.2),
    fs.Tamuna(step_size=0.9, communication_probability=0.4, owners=2),
    fs.Apda(step_size=0.5, local_steps=3, smoothness=1.0, strong_convexity=0.02),
]


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.kind)
def test_closed_form_takes_the_same_steps(method: Method) -> None:
    problem, engine = compression.rotated(50.0, 3, 5)
    found, right = (
        fs.run(problem, method, rounds=6, engine=each, repetitions=2, progress=False).theta
        for each in (engine, "reference")
    )
    np.testing.assert_allclose(found, right, rtol=0, atol=1e-12)


def test_rotated_has_the_condition_number_that_was_asked_for() -> None:
    problem, _ = compression.rotated(50.0, 3, 5)
    hessians = [problem.x[5 * c : 5 * c + 5].T @ problem.x[5 * c : 5 * c + 5] / 5 for c in range(3)]
    for hessian in hessians:
        np.testing.assert_allclose(np.linalg.eigvalsh(hessian)[[0, -1]], [0.02, 1.0], rtol=1e-12)
    assert np.abs(hessians[0] - np.diag(np.diag(hessians[0]))).max() > 0.01


def test_bits_are_those_of_the_run() -> None:
    problem, engine = compression.rotated(20.0, 3, 5)
    method = fs.Scallion(step_size=1.0, local_steps=4, compression="natural")
    found = compression.measure(problem, engine, [method])
    for seed in compression.SEEDS:
        rounds = compression.rounds_needed(problem, engine, method, seed=seed, most=1000)
        assert rounds is not None
        trace = fs.run(problem, method, rounds=rounds, seed=seed, engine=engine, progress=False)
        reached = trace.mse[0] <= 1e-6 * trace.mse[0, 0]
        assert reached[-1]
        assert not reached[:-1].any()
    assert found.sent == found.rounds * 12 * 5
    assert found.received == found.rounds * 2 * 64 * 5


def test_of_several_settings_the_one_with_the_fewest_bits_is_taken() -> None:
    problem, engine = compression.rotated(20.0, 3, 5)
    settings = [fs.Scaffold(step_size=1.0, local_steps=H) for H in (1, 4, 50)]
    each = [compression.measure(problem, engine, [method]).sent for method in settings]
    best = compression.measure(problem, engine, settings)
    assert best.sent == min(each)
    assert best.method == settings[int(np.argmin(each))]
