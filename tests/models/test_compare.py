"""Who is helped, how different clients are, and where FedAvg ends."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss
from sklearn.preprocessing import StandardScaler

from fedscaffold.data import from_frame
from fedscaffold.data.encoded import EncodedProblem
from fedscaffold.models.compare import run_fedavg, score_model
from fedscaffold.models.heterogeneity import class_counts, heterogeneity
from fedscaffold.models.local_models import compare_local_models
from fedscaffold.models.planning.planned import FitSettings, PlannedFit, plan_fit
from fedscaffold.theory import constants
from tests.hospitals import cancer, diabetes, wine

L2 = 0.02


def problem_of(frame: pd.DataFrame, target: str, kind: str) -> EncodedProblem:
    return from_frame(
        frame, target=target, client="hospital", kind=kind, l2=L2, standardize=True, intercept=True,  # type: ignore[arg-type]
    )  # fmt: skip


def task_of(frame: pd.DataFrame, target: str, kind: str) -> PlannedFit:
    return plan_fit(problem_of(frame, target, kind), FitSettings(step_size=0.01, local_steps=1, rounds=1))


def test_losses_on_rows_left_out_are_those_of_models_fitted_by_scikit_learn() -> None:
    """Independent: two halves per client, scikit-learn's fits, scikit-learn's log loss."""
    frame = cancer().drop(columns="ward").sort_values("hospital", kind="stable").reset_index(drop=True)
    found = compare_local_models(task_of(frame, "diagnosis", "logistic"))
    x = StandardScaler().fit_transform(frame.iloc[:, :8])
    y = (frame.diagnosis == "malignant").to_numpy()
    rank = frame.groupby("hospital").cumcount().to_numpy() % 2
    names = sorted(frame.hospital.unique())
    own = {name: (frame.hospital == name).to_numpy() for name in names}
    share = {name: own[name].mean() for name in names}
    together_on = []
    for parity in (0, 1):
        weight = np.zeros(len(y))  # each client keeps its weight, spread over the rows of its half
        for name in names:
            rows = own[name] & (rank == parity)
            weight[rows] = share[name] / rows.sum()
        pooled = LogisticRegression(C=1 / L2, tol=1e-10, max_iter=10_000)
        together_on.append(pooled.fit(x[rank == parity], y[rank == parity], sample_weight=weight[rank == parity]))
    for name, together, alone in zip(names, found.common, found.local, strict=True):
        wanted = np.zeros(2)
        for parity, pooled in enumerate(together_on):
            judged, rows = own[name] & (rank != parity), own[name] & (rank == parity)
            ones = np.column_stack([x, np.ones(len(x))])  # its intercept is penalised too
            single = LogisticRegression(C=1 / (L2 * rows.sum()), tol=1e-10, max_iter=10_000, fit_intercept=False)
            single.fit(ones[rows], y[rows])
            wanted += [
                log_loss(y[judged], pooled.predict_proba(x[judged]), labels=[False, True]) / 2,
                log_loss(y[judged], single.predict_proba(ones[judged]), labels=[False, True]) / 2,
            ]
        assert together == pytest.approx(wanted[0], rel=2e-3)
        assert alone == pytest.approx(wanted[1], rel=2e-3)


def test_clients_alike_are_helped_and_opposites_are_hurt() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(2, 5, 12, 6))
    truth = rng.normal(size=6)
    y = x @ truth + 0.5 * rng.normal(size=(2, 5, 12))
    for sign, helped in ((1.0, True), (-1.0, False)):
        rows = x.reshape(-1, 6)
        target = (y * np.where(np.arange(5) % 2, sign, 1.0)[:, None]).reshape(-1)
        frame = pd.DataFrame(rows, columns=list("abcdef")).assign(
            target=target, hospital=np.tile(np.repeat([f"h{k}" for k in range(5)], 12), 2)
        )
        found = compare_local_models(task_of(frame, "target", "ridge"))
        assert (found.common < found.local).all() == helped
        assert (found.common < found.local).any() == helped


def test_a_client_of_one_class_has_a_model_of_its_own_with_a_penalty_and_none_without() -> None:
    frame = cancer().drop(columns="ward")
    frame = frame[(frame.hospital != "Ulm") | (frame.diagnosis == "benign")]
    task = task_of(frame, "diagnosis", "logistic")
    assert np.isfinite(compare_local_models(task).local).all()
    bare = from_frame(
        frame, target="diagnosis", client="hospital", kind="logistic", standardize=True, intercept=True
    )
    found = compare_local_models(replace(task, problem=bare))
    assert np.isnan(found.local[-1])
    assert not found.common[-1] < found.local[-1]


def test_only_some_of_many_clients_are_compared() -> None:
    task = task_of(cancer(), "diagnosis", "logistic")
    assert compare_local_models(task, max_clients=2).clients.tolist() == [0, 3]


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
    task = plan_fit(problem_of(diabetes(), "target", "ridge"), FitSettings())
    trace = run_fedavg(task, FitSettings(), rounds=task.rounds)
    assert trace.provenance["method"]["name"] == "FedAvg"
    assert trace.provenance["method"]["local_steps"] == task.method.local_steps
    ends = score_model("FedAvg", task, trace.theta[0])
    assert ends.relative_distance == pytest.approx(
        np.linalg.norm((trace.theta[0] - task.optimum)[:-1]) / np.linalg.norm(task.optimum[:-1])
    )
    best = score_model("Pooled", task, task.optimum)
    raw = problem_of(diabetes(), "target", "ridge")
    assert best.loss == pytest.approx(raw.loss(raw.optimum()), rel=1e-9)
    assert ends.loss > best.loss
