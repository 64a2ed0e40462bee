"""Federated Newton against the optimum, and what a round of it costs."""

import numpy as np
import pytest

import fedscaffold as fs
from fedscaffold.benchmarking import FedNewton, cheapest, compare
from fedscaffold.core.errors import InvalidInput
from tests.samples import make


def test_newton_converges_quadratically_to_the_optimum_of_logistic_regression() -> None:
    problem = make("logistic", l2=0.01)
    errors = np.linalg.norm(FedNewton().path(problem, rounds=12) - problem.optimum(), axis=1)
    assert errors[-1] < 1e-12
    small = (errors < 0.1) & (errors > 1e-7)
    first = int(np.flatnonzero(small)[0])
    assert errors[first + 1] < 10.0 * errors[first] ** 2


def test_a_step_that_goes_too_far_is_taken_back() -> None:
    """Separable records with a tiny penalty: full Newton steps from zero overshoot in the second coordinate."""
    x = np.array([[[0.1, 5.0], [0.2, -5.0], [8.0, 0.3], [-7.0, -0.2]]])
    problem = fs.problems.Logistic(x, np.array([[1.0, 0.0, 1.0, 0.0]]), l2=1e-6)
    path = FedNewton().path(problem, rounds=60)
    assert np.linalg.norm(path[-1] - problem.optimum()) < 1e-6 * np.linalg.norm(problem.optimum())


def test_what_newton_costs_in_a_comparison() -> None:
    problem = make("ridge")
    dim = problem.dim
    curves = compare(problem, {"newton": FedNewton()}, rounds=5, targets=[1e-20], repetitions=2, batch_size=4)
    cost = cheapest(curves, [1e-20])[0]
    assert cost.rounds == 1  # a quadratic problem
    assert cost.bits == 64 * (dim * (dim + 1) / 2 + 2 * dim + 1)
    assert cost.gradients == pytest.approx(np.mean(problem.sizes) / 4)


def test_a_problem_without_hessians_is_refused() -> None:
    with pytest.raises(InvalidInput, match="FedNewton needs the clients' Hessians"):
        compare(fs.problems.GarnetTD(n_clients=2, states=5, dim=2), {"newton": FedNewton()}, rounds=2)
