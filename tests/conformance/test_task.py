"""What the suite says about its problems, against plain iteration."""

import numpy as np
import pytest

from fedscaffold.conformance.recording import scenarios
from fedscaffold.conformance.task import Task, fedavg_fixed_point, fedavg_map, mean_gradients, optimum

TASKS = [
    pytest.param(scenario.task, id=f"{name}-{i}")
    for name, those in scenarios(5).items()
    for i, scenario in enumerate(those)
]


@pytest.mark.parametrize("task", TASKS)
def test_the_optimum_has_no_gradient(task: Task) -> None:
    theta = optimum(task)
    each = np.stack([task.gradient(c, theta) for c in range(task.n_clients)])
    assert np.abs(task.weights @ each).max() < 1e-13 * np.abs(each).max()
    assert np.abs(each).max() > 0.1 * task.hessians.max()  # heterogeneous


@pytest.mark.parametrize("task", TASKS)
def test_gradient_is_that_of_the_loss(task: Task) -> None:
    def loss(theta: np.ndarray) -> float:
        off = theta - task.minimisers[1]
        return float(0.5 * off @ task.hessians[1] @ off)

    step = 1e-4 * np.eye(task.dim)
    numeric = [(loss(task.theta0 + e) - loss(task.theta0 - e)) / 2e-4 for e in step]
    np.testing.assert_allclose(task.gradient(1, task.theta0), numeric, rtol=1e-6, atol=1e-7 * task.hessians.max())


@pytest.mark.parametrize("task", TASKS)
def test_fedavg_in_closed_form_is_fedavg(task: Task) -> None:
    def one_round(theta: np.ndarray) -> np.ndarray:
        new = np.zeros(task.dim)
        for c in range(task.n_clients):
            local = theta
            for _ in range(task.local_steps[c]):
                local = local - task.step_size * task.gradient(c, local)
            new = new + task.weights[c] * local
        return new

    m, b = fedavg_map(task)
    np.testing.assert_allclose(one_round(task.theta0), m @ task.theta0 + b, rtol=1e-12, atol=1e-13)
    theta = task.theta0
    for _ in range(300):
        theta = one_round(theta)
    np.testing.assert_allclose(theta, fedavg_fixed_point(task), rtol=1e-11, atol=1e-12)
    assert np.linalg.norm(theta - optimum(task)) > 3e-3  # far from the optimum, next to the tolerances


@pytest.mark.parametrize("task", TASKS)
def test_mean_gradients_are_what_moves_a_client(task: Task) -> None:
    xi = np.random.default_rng(0).normal(size=(task.n_clients, task.dim))
    found = mean_gradients(task, range(task.n_clients), task.theta0, xi)
    for c, steps in enumerate(task.local_steps):
        local = task.theta0
        for _ in range(steps):
            local = local - task.step_size * (task.gradient(c, local) + xi[c])
        expected = (task.theta0 - local) / (task.step_size * steps) - xi[c]
        np.testing.assert_allclose(found[c], expected, rtol=1e-11, atol=1e-12)


def test_tasks_are_what_they_say() -> None:
    for seed in range(50):
        tasks = {name: [scenario.task for scenario in those] for name, those in scenarios(seed).items()}
        for name, those in tasks.items():
            assert all(task.has_equal_weights == (name not in ("weights", "weighted cohorts")) for task in those)
            assert all(task.has_equal_local_steps == (name != "steps") for task in those)
            for task in those:
                eigenvalues = np.linalg.eigvalsh(task.hessians)
                assert eigenvalues.min() > 0.2 * eigenvalues.max()
                assert task.weights.sum() == pytest.approx(1.0, abs=1e-12)
                assert np.abs(task.theta0).max() > 0.1
        for task in tasks["weights"] + tasks["weighted cohorts"]:
            np.testing.assert_allclose(100 * task.weights, np.round(100 * task.weights), atol=1e-12)
            assert (
                np.linalg.norm(optimum(task) - optimum(task, np.full(task.n_clients, 1 / task.n_clients))) > 0.01
            )
    assert [len(s.cohorts[0]) for s in scenarios(0)["some"]] == [3, 2]
    assert scenarios(0)["some"][0].cohorts != scenarios(1)["some"][0].cohorts
