"""How different clients are, and where FedAvg ends."""

from collections.abc import Callable

import numpy as np
import pandas as pd
import pytest

from fedscaffold.cli.prepare import class_counts, heterogeneity, plan_beside_fedavg, prepare_problem
from fedscaffold.data import from_frame
from fedscaffold.data.encoded import EncodedProblem
from fedscaffold.models import FitSettings
from fedscaffold.theory import constants
from tests.hospitals import cancer, diabetes, wine

L2 = 0.02


def problem_of(frame: pd.DataFrame, target: str, kind: str) -> EncodedProblem:
    return from_frame(
        frame, target=target, client="hospital", kind=kind, l2=L2, standardize=True, intercept=True,  # type: ignore[arg-type]
    )  # fmt: skip


@pytest.mark.parametrize(
    ("make", "target", "kind"), [(cancer, "diagnosis", "logistic"), (diabetes, "target", "ridge")]
)
def test_heterogeneity_is_that_of_theory(make: Callable[[], pd.DataFrame], target: str, kind: str) -> None:
    problem = problem_of(make(), target, kind)
    wanted = constants(problem, batch_size=None)
    found = heterogeneity(problem, problem.optimum())
    assert found.zeta1 == pytest.approx(wanted.zeta1, rel=1e-9)
    assert found.zeta2 == pytest.approx(wanted.zeta2, rel=1e-9)
    eigenvalues = np.linalg.eigvalsh(problem.hessian(problem.optimum()))
    assert found.condition_number == pytest.approx(eigenvalues[-1] / eigenvalues[0])
    assert found.sampled == problem.n_clients


def test_hessians_of_some_clients_when_there_are_many() -> None:
    """The first and the last of four, whose weights then sum to one."""
    problem = problem_of(cancer(), "diagnosis", "logistic")
    found = heterogeneity(problem, problem.optimum(), max_numbers=2 * problem.dim**2)
    assert found.sampled == 2
    hessians = problem.client_hessians(problem.optimum())[[0, 3]]
    weights = problem.weights[[0, 3]] / problem.weights[[0, 3]].sum()
    spread = np.linalg.norm(hessians - np.tensordot(weights, hessians, axes=1), 2, axis=(1, 2))
    assert found.zeta2 == pytest.approx(np.sqrt(weights @ spread**2), rel=1e-9)


def test_several_classes_have_heterogeneity_too() -> None:
    problem = problem_of(wine(), "target", "logistic")
    optimum = problem.optimum()
    found = heterogeneity(problem, optimum)
    step, direction = 1e-5, np.random.default_rng(0).normal(size=problem.dim)
    gradients = problem.client_gradients(optimum)
    assert found.zeta1**2 == pytest.approx(float(problem.weights @ (gradients**2).sum(axis=1)), rel=1e-9)
    ahead = problem.client_gradients(optimum + step * direction) - problem.client_gradients(
        optimum - step * direction
    )
    spread = (ahead - problem.weights @ ahead) / (2 * step * np.linalg.norm(direction))
    assert np.sqrt(problem.weights @ (spread**2).sum(axis=1)) <= found.zeta2 * 1.001


def test_classes_are_counted() -> None:
    frame = wine()
    wanted = frame.groupby(["hospital", "target"]).size().unstack(fill_value=0).to_numpy()
    np.testing.assert_array_equal(class_counts(problem_of(frame, "target", "logistic")), wanted)
    two = cancer()
    wanted = two.groupby(["hospital", "diagnosis"]).size().unstack(fill_value=0).to_numpy()
    np.testing.assert_array_equal(class_counts(problem_of(two, "diagnosis", "logistic")), wanted)
    assert class_counts(problem_of(diabetes(), "target", "ridge")) is None


def test_fedavg_has_the_same_effort_and_the_losses_are_in_own_units() -> None:
    raw = problem_of(diabetes(), "target", "ridge")
    prepared = prepare_problem(raw, FitSettings())
    _, fedavg = plan_beside_fedavg(prepared)
    ahead = (fedavg - prepared.optimum)[:-1]
    assert prepared.relative_distance(fedavg) == pytest.approx(
        np.linalg.norm(ahead) / np.linalg.norm(prepared.optimum[:-1])
    )
    assert prepared.loss(prepared.optimum) == pytest.approx(raw.loss(raw.optimum()), rel=1e-9)
    assert prepared.loss(fedavg) > prepared.loss(prepared.optimum)
