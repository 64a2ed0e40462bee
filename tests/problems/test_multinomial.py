"""Logistic regression with several classes: derivatives, optimum, engines, and two classes as a special case."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize._numdiff import approx_derivative
from sklearn.linear_model import LogisticRegression

import fedscaffold as fs
from fedscaffold.core.types import Array
from fedscaffold.problems import Logistic, Multinomial

SIZES = (9, 14, 30)


def rows(K: int, d: int, sizes: tuple[int, ...] = SIZES, seed: int = 0) -> tuple[list[Array], list[Array]]:
    """Clients that differ in features and in what the classes mean."""
    rng = np.random.default_rng(seed)
    X = [rng.normal(size=(n, d)) + rng.normal(size=d) for n in sizes]
    y = [np.argmax(x @ rng.normal(size=(d, K)) + rng.normal(size=(len(x), K)), axis=1) for x in X]
    y[0][:K] = np.arange(K)
    return X, [labels.astype(float) for labels in y]


def make(K: int = 4, d: int = 3, n_unpenalised: int = 1, l2: float = 0.2, seed: int = 0) -> Multinomial:
    return Multinomial(
        *rows(K, d, seed=seed), n_classes=K, l2=l2, weights=[1.0, 2.0, 5.0], n_unpenalised=n_unpenalised
    )


def test_loss_by_plain_loops() -> None:
    problem, theta = make(), np.random.default_rng(1).normal(size=12)
    each = []
    for x, y in zip(*rows(4, 3), strict=True):
        total = 0.0
        for row, label in zip(x, y, strict=True):
            z = [float(row @ theta[3 * k : 3 * k + 3]) for k in range(4)]
            total += np.log(sum(np.exp(v) for v in z)) - z[int(label)]
        penalty = sum(0.1 * theta[3 * k + j] ** 2 for k in range(4) for j in range(2))
        each.append(total / len(y) + penalty)
    np.testing.assert_allclose(problem.client_losses(theta), each, rtol=1e-13)
    assert problem.loss(theta) == pytest.approx((each[0] + 2 * each[1] + 5 * each[2]) / 8, rel=1e-13)


def test_each_derivative_is_that_of_the_one_before() -> None:
    problem, theta = make(), np.random.default_rng(1).normal(size=12)
    slopes = approx_derivative(problem.client_losses, theta, method="3-point")
    np.testing.assert_allclose(problem.client_gradients(theta), slopes, rtol=1e-7, atol=1e-9)
    curvature = approx_derivative(problem.gradient, theta, method="3-point")
    np.testing.assert_allclose(problem.hessian(theta), curvature, rtol=1e-7, atol=1e-9)
    mean = np.einsum("c,cij->ij", problem.weights, problem.client_hessians(theta))
    np.testing.assert_allclose(mean, problem.hessian(theta), rtol=1e-12, atol=1e-14)


def test_noise_along_directions_by_listing_all_batches_of_one() -> None:
    problem, rng = make(), np.random.default_rng(2)
    theta, U = rng.normal(size=12), np.linalg.qr(rng.normal(size=(12, 12)))[0]
    found = problem.client_noise_along(theta, U, batch_size=3)
    for c, n in enumerate(SIZES):
        each = np.stack([problem.batch_gradient(c, theta, np.array([i])) for i in range(n)]) @ U
        np.testing.assert_allclose(found[c], each.var(axis=0) / 3, rtol=1e-11)
    binary = Logistic(rows(2, 3)[0], [2 * y - 1 for y in rows(2, 3)[1]], l2=0.1)
    V = np.linalg.qr(rng.normal(size=(3, 3)))[0]
    along = binary.client_noise_along(theta[:3], V, batch_size=3)
    whole = binary.client_noise_covariances(theta[:3], batch_size=3)
    np.testing.assert_allclose(along, np.einsum("ji,cjk,ki->ci", V, whole, V), rtol=1e-12)


def test_the_optimum_is_scikit_learns() -> None:
    X, y = rows(4, 3)
    pooled, labels = np.concatenate(X), np.concatenate(y)
    n = len(labels)
    ones = [np.column_stack([x, np.ones(len(x))]) for x in X]
    problem = Multinomial(ones, y, l2=0.05, weights=[len(x) for x in X], n_unpenalised=1)
    model = LogisticRegression(C=1 / (0.05 * n), tol=1e-12, max_iter=10_000).fit(pooled, labels)
    theta = problem.optimum().reshape(4, 4)
    np.testing.assert_allclose(theta[:, :3], model.coef_, rtol=0, atol=1e-6)
    np.testing.assert_allclose(theta[:, 3], model.intercept_, rtol=0, atol=1e-6)
    assert abs(theta[:, 3].sum()) < 1e-12
    assert np.abs(problem.gradient(problem.optimum())).max() < 1e-12


def test_two_classes_are_logistic_regression() -> None:
    """θ_1 − θ_0 follows the binary problem with twice the penalty and step sizes twice as long."""
    X, y = rows(2, 3)
    both = Multinomial(X, y, l2=0.2)
    binary = Logistic(X, [2 * labels - 1 for labels in y], l2=0.1)
    theta = both.optimum()
    np.testing.assert_allclose(theta[3:] - theta[:3], binary.optimum(), rtol=1e-9)
    a = fs.run(both, fs.Scaffold(step_size=0.1, local_steps=5), rounds=6, batch_size=3)
    b = fs.run(binary, fs.Scaffold(step_size=0.2, local_steps=5), rounds=6, batch_size=3)
    np.testing.assert_allclose(a.theta[0, 3:] - a.theta[0, :3], b.theta[0], rtol=0, atol=1e-13)


@given(
    K=st.integers(2, 7),
    d=st.integers(1, 12),
    batch_size=st.none() | st.integers(1, 20),
    n_unpenalised=st.integers(0, 1),
    seed=st.integers(0, 1000),
)
@settings(max_examples=40)
def test_both_engines_agree(K: int, d: int, batch_size: int | None, n_unpenalised: int, seed: int) -> None:
    problem = make(K, d, n_unpenalised, seed=seed)
    method = fs.Scaffold(step_size=0.1, local_steps=4)
    fast, slow = (
        fs.run(problem, method, rounds=2, batch_size=batch_size, repetitions=2, seed=seed, engine=name,
               record=("loss",))
        for name in ("native", "reference")
    )  # fmt: skip
    np.testing.assert_allclose(fast.theta, slow.theta, rtol=0, atol=1e-12)
    np.testing.assert_allclose(fast.control_variates, slow.control_variates, rtol=0, atol=1e-11)


def test_scaffold_reaches_the_optimum_and_stays_centred() -> None:
    problem = make()
    trace = fs.run(problem, fs.Scaffold(step_size=0.2, local_steps=10), rounds=600)
    assert trace.mse[0, -1] < 1e-20
    assert np.abs(trace.theta.reshape(4, 3)[:, 2].sum()) < 1e-12  # the n_unpenalised feature
    assert fs.run(problem, fs.FedAvg(step_size=0.2, local_steps=10), rounds=600).mse[0, -1] > 1e-4


def test_classes_from_a_table() -> None:
    X, y = rows(3, 2)
    frame = pd.DataFrame(np.concatenate(X), columns=["a", "b"])
    frame["kind"] = np.array(["x", "y", "z"])[np.concatenate(y).astype(int)]
    frame["site"] = np.repeat(["u", "v", "w"], SIZES)
    framed = fs.data.from_frame(
        frame, target="kind", client="site", kind="logistic", l2=0.1, weights="uniform", intercept=True
    )
    plain = Multinomial([np.column_stack([x, np.ones(len(x))]) for x in X], y, l2=0.1, n_unpenalised=1)
    assert framed.kind == "multinomial"
    assert framed.classes == ("x", "y", "z")
    assert framed.fingerprint() == plain.fingerprint()
    some = framed.subset([2, 0])
    assert (some.client_names, some.n_clients) == (("w", "u"), 2)
    assert some.fingerprint() == plain.subset([2, 0]).fingerprint()


@pytest.mark.parametrize(
    ("labels", "n_classes", "message"),
    [
        ([0.5, 1.0], None, "whole numbers from 0 on"),
        ([-1.0, 1.0], None, "whole numbers from 0 on"),
        ([0.0, 3.0], 3, "n_classes=3, but the classes go from 0 to 3"),
        ([0.0, 0.0], None, "n_classes=1"),
        ([0.0, 1.0], 1, "n_classes must be a whole number of at least 2"),
    ],
)
def test_refusals(labels: list[float], n_classes: int | None, message: str) -> None:
    with pytest.raises(fs.InvalidInput, match=message):
        Multinomial([np.ones((2, 1))], [labels], n_classes=n_classes)
