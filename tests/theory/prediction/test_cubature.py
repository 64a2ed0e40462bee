"""The predictor on problems that are known by their records' gradients alone."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import fedscaffold as fs
from fedscaffold.core.types import Array
from fedscaffold.problems import Logistic, Multinomial
from fedscaffold.theory.client_blocks import ClientBlock
from fedscaffold.theory.prediction.clouds.cubature import RecordAverages
from fedscaffold.theory.prediction.moments import predict as sizes
from tests.problems.test_multinomial import rows
from tests.samples import tables

METHODS = (fs.Scaffold, fs.FedAvg)


class Opaque:
    """Logistic regression that gives its records' gradients and hides its margins."""

    kind = "opaque"

    def __init__(self, problem: Logistic) -> None:
        self._hidden = problem
        self.n_clients, self.dim, self.weights, self.sizes = (
            problem.n_clients, problem.dim, problem.weights, problem.sizes
        )  # fmt: skip
        self.optimum, self.loss = problem.optimum, problem.loss
        self.client_gradients, self.client_hessians = problem.client_gradients, problem.client_hessians
        self.smoothness, self.strong_convexity = problem.smoothness, problem.strong_convexity
        self.describe, self.fingerprint = problem.describe, problem.fingerprint

    def subset(self, clients: Any) -> "Opaque":
        return Opaque(self._hidden.subset(clients))

    def record_gradients(self, client: int, points: Array) -> Array:
        part = slice(self._hidden.offsets[client], self._hidden.offsets[client + 1])
        x, y = self._hidden.x[part], self._hidden.y[part]
        slopes = [self._hidden.d1(x @ theta, y)[:, None] * x for theta in points]
        return np.stack(slopes) + (self._hidden.penalty * points)[:, None]


def twice(*, l2: float, n_unpenalised: int = 0, sizes: tuple[int, ...], dim: int) -> tuple[Any, Any]:
    """The same problem with its margins and without them."""
    known = Logistic(*tables("logistic", sizes, dim), l2=l2, n_unpenalised=n_unpenalised)
    return known, Opaque(known)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("batch_size", [None, 1])
def test_it_predicts_what_the_one_with_margins_does(
    method: type[fs.Scaffold | fs.FedAvg], batch_size: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both with Gaussian clouds: third cumulants are followed for margins alone."""
    monkeypatch.setattr(sizes, "LARGEST_STATE", 0)
    chosen = method(step_size=0.2, local_steps=10)
    known, opaque = (
        fs.theory.predict(problem, chosen, batch_size=batch_size, rounds=20)
        for problem in twice(l2=0.1, n_unpenalised=1, sizes=(30, 25, 40), dim=4)
    )
    assert opaque.mse == pytest.approx(known.mse, rel=0.003, abs=1e-12)
    assert np.linalg.norm(opaque.bias - known.bias) < 0.03 * np.linalg.norm(known.bias) + 1e-8
    assert known.curve is not None
    assert opaque.curve is not None
    np.testing.assert_allclose(opaque.curve, known.curve, rtol=0.005, atol=1e-12)


@pytest.mark.parametrize("method", METHODS)
def test_multinomial_plateaus_and_curves(method: type[fs.Scaffold | fs.FedAvg]) -> None:
    """Within 5 % and 10 % of simulation, whose standard errors are a third of that or less."""
    problem = Multinomial(*rows(3, 3, (40, 25, 60)), l2=0.1)
    chosen = method(step_size=0.2, local_steps=10)
    predicted = fs.theory.predict(problem, chosen, batch_size=2, rounds=30)
    found = fs.run(problem, chosen, rounds=600, batch_size=2, repetitions=100).plateau()
    assert found is not None
    assert found.standard_error < 0.017 * found.mean
    assert abs(predicted.mse - found.mean) < 0.05 * found.mean
    short = fs.run(problem, chosen, rounds=30, batch_size=2, repetitions=2000).mse
    error = short.std(axis=0) / np.sqrt(2000)
    assert (error[1:] < 0.033 * short.mean(axis=0)[1:]).all()
    assert predicted.curve is not None
    np.testing.assert_allclose(predicted.curve, short.mean(axis=0), rtol=0.1)


def test_averages_of_a_quadratic_are_exact() -> None:
    """With gradients A_i θ − b_i: E ∇f = Āθ − b̄, E C = Cov_i at the mean + the spread's share, E ∇² = Ā."""
    rng = np.random.default_rng(0)
    half = rng.normal(size=(7, 3, 3))
    A, b = half @ half.transpose(0, 2, 1), rng.normal(size=(7, 3))

    class Quadratic:
        n_clients, dim = 1, 3

        def record_gradients(self, client: int, points: Array) -> Array:
            return np.einsum("nij,pj->pni", A, points) - b

    mean, root = rng.normal(size=3), 0.3 * rng.normal(size=(3, 3))
    cov = root @ root.T
    block = ClientBlock(np.array([0]), *(np.empty((1, 0, 3)), np.empty((1, 0)), np.empty((1, 0))))
    found = RecordAverages(Quadratic()).over_clouds(block, mean[None, None], cov[None, None], np.array([0.25]))
    gradient, noise, hessian = (array[0, 0] for array in found)
    each = np.einsum("nij,j->ni", A, mean) - b
    np.testing.assert_allclose(gradient, each.mean(axis=0), rtol=1e-9)
    np.testing.assert_allclose(hessian, A.mean(axis=0), rtol=1e-6)
    off = A - A.mean(axis=0)
    spread = np.einsum("nij,jk,nlk->il", off, cov, off) / 7
    np.testing.assert_allclose(noise, 0.25 * (np.cov(each.T, bias=True) + spread), rtol=1e-6)


def poisson(params: Any, batch: Any) -> Any:
    """Mean of exp(z) − y z."""
    z = batch["x"] @ params
    return jnp.mean(jnp.exp(z) - batch["y"] * z)


def counts(d: int = 30, N: int = 10, n: int = 80) -> fs.problems.Differentiable:
    """Clients whose counts follow models of their own."""
    rng = np.random.default_rng(0)
    clients = []
    for _ in range(N):
        x = rng.normal(size=(n, d)) * rng.uniform(0.5, 1.5, size=d) / np.sqrt(d)
        clients.append({"x": x, "y": rng.poisson(np.exp(x @ (0.7 * rng.normal(size=d)))).astype(float)})
    return fs.problems.Differentiable(poisson, np.zeros(d), clients, l2=0.1)


def test_sharp_plans_are_those_of_the_one_with_margins() -> None:
    """The same rounds and local steps; step sizes may differ, since several reach the target at this cost."""
    problems = twice(l2=0.3, sizes=(12, 15), dim=2)
    known, opaque = (
        fs.plan(problem, target_mse=0.025, batch_size=3, max_local_steps=16, progress=False)
        for problem in problems
    )
    assert (opaque.rounds, opaque.method.local_steps) == (known.rounds, known.method.local_steps)
    for found, other in ((known, problems[1]), (opaque, problems[0])):
        assert found.predicted_mse <= 0.025
        again = fs.theory.predict(other, found.method, batch_size=3, rounds=found.rounds)
        assert again.curve is not None
        assert found.predicted_mse == pytest.approx(again.curve[-1], rel=0.01)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["poisson", "multinomial"])
def test_sharp_plans_reach_their_target_and_not_much_more(kind: str) -> None:
    problem: Any = counts() if kind == "poisson" else Multinomial(*rows(3, 3, (40, 25, 60)), l2=0.1)
    optimum = problem.optimum()
    plan = fs.plan(problem, target_mse=0.05 * float(optimum @ optimum), batch_size=5, optimum=optimum)
    trace = fs.run(problem, plan.method, rounds=plan.rounds, batch_size=5, repetitions=400, engine="jax")
    last = trace.mse[:, -1] / plan.target_mse
    assert last.std() / 20.0 < 0.03
    assert 0.5 < last.mean() < 1.05
    assert plan.max_useful_clients is not None


def test_what_does_not_contract_is_refused_without_a_warning() -> None:
    """Whose numbers overflow on the way."""
    for local_steps, batch_size in ((64, 5), (256, 1)):
        method = fs.Scaffold(step_size=1.0, local_steps=local_steps)
        with pytest.raises(fs.InvalidInput, match="no plateau"):
            fs.theory.predict(counts(d=4, N=3), method, batch_size=batch_size)


@pytest.mark.parametrize("method", [pytest.param(fs.Scaffold, marks=pytest.mark.slow), fs.FedAvg])
def test_poisson_regression_by_automatic_differentiation(method: type[fs.Scaffold | fs.FedAvg]) -> None:
    """Within 5 % of simulation; the measurement's standard error is below 1 %."""
    problem, chosen = counts(d=5, N=4), method(step_size=0.1, local_steps=20)
    predicted = fs.theory.predict(problem, chosen, batch_size=5)
    found = fs.run(problem, chosen, rounds=400, batch_size=5, repetitions=40, engine="jax").plateau()
    assert found is not None
    assert found.standard_error < 0.01 * found.mean
    assert abs(predicted.mse - found.mean) < 0.05 * found.mean
    expanded = fs.theory.expansion(problem, fs.Scaffold(step_size=1e-3, local_steps=5), batch_size=5)
    close = fs.theory.predict(problem, fs.Scaffold(step_size=1e-3, local_steps=5), batch_size=5)
    assert np.linalg.norm(expanded.cov_theta - close.cov_theta) < 0.01 * np.linalg.norm(close.cov_theta)
