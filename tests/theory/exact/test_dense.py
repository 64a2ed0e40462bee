"""Laws and curves of every linear method against brute force: all cohorts, all local steps, from pseudo-code."""

from collections.abc import Callable
from itertools import combinations
from typing import Any

import numpy as np
import pytest

import fedscaffold as fs
from fedscaffold.core.random.stream import Batches
from fedscaffold.core.types import Array
from fedscaffold.problems import Ridge
from fedscaffold.theory.exact import exact_law
from tests.samples import make, systems
from tests.theory.exact.dense_rounds import OneRound, stationary

GAMMA, H, BATCH, N, D = 0.05, 4, 2, 4, 2
ETA, MOMENTUM, RATE = 0.6, 0.5, 0.7


def problem_of(weights: Any = None) -> Ridge:
    return make("ridge", (9,) * N, D, l2=0.3, weights=weights)  # type: ignore[return-value]


def of_client(server: Array, clients: Array, own: Array) -> Array:
    return clients


def nothing(server: Array, clients: Array, own: Array) -> Array:
    return 0 * clients


def scaffold(cohort: tuple[int, ...], w: Array, scale: Array, length: float) -> Callable[..., Any]:
    """Lines 8 to 10 of Algorithm 1 for the clients that take part."""
    inside = list(cohort)

    def finish(server: Array, clients: Array, local: Array) -> tuple[Array, Array]:
        sent = server[0] + scale[:, None] * (local - server[0])
        mean = w[inside] / w[inside].sum() @ sent[inside]
        after = clients.copy()
        after[inside] = clients[inside] + (sent[inside] - mean) / (GAMMA * length)
        return mean[None], after

    return finish


def two_sided(cohort: tuple[int, ...]) -> Callable[..., Any]:
    inside, share = list(cohort), len(cohort) / N

    def finish(server: Array, clients: Array, local: Array) -> tuple[Array, Array]:
        theta, c = server
        after = clients.copy()
        after[inside] = clients[inside] - c + (theta - local[inside]) / (GAMMA * H)
        c_after = c + share * (after[inside] - clients[inside]).mean(axis=0)
        return np.stack([theta + ETA * (local[inside].mean(axis=0) - theta), c_after]), after

    return finish


def momentum(w: Array, keeps_variates: bool) -> Callable[..., Any]:
    """Heavy ball on θ − θ̄; server fields θ, θ̄ and the momentum."""

    def finish(server: Array, clients: Array, local: Array) -> tuple[Array, Array]:
        theta, _, trace = server
        mean = w @ local
        trace = theta - mean + MOMENTUM * trace
        after = clients + (local - mean) / (GAMMA * H) if keeps_variates else clients
        return np.stack([theta - RATE * trace, mean, trace]), after

    return finish


EQUAL, UNEQUAL = np.full(N, 1 / N), (1.0, 2.0, 3.0, 6.0)
ALL = tuple(range(N))
ONES = np.ones(N)


def check(
    method: Any,
    K: int,
    correct: Any,
    rounds: list[OneRound],
    weights: Any = None,
    problem: Any = None,
    **more: Any,
) -> None:
    problem = problem_of(weights) if problem is None else problem
    found = exact_law(problem, method, Batches(BATCH), rounds=12)
    mean, second, curve = stationary(problem, GAMMA, BATCH, K, correct, rounds, **more)
    assert found.curve is not None
    np.testing.assert_allclose(found.curve, curve[:13], rtol=1e-10)
    np.testing.assert_allclose(found.bias, mean, rtol=1e-6, atol=1e-9)
    cov = second - np.outer(mean, mean)
    np.testing.assert_allclose(found.cov_theta, cov, rtol=2e-6, atol=1e-9 * np.abs(cov).max())


def same(finish: Any) -> list[OneRound]:
    return [OneRound(1.0, (H,) * N, finish)]


@pytest.mark.parametrize("size", [2, 3])
def test_scaffold_with_cohorts(size: int) -> None:
    cohorts = list(combinations(range(N), size))
    rounds = [OneRound(1 / len(cohorts), (H,) * N, scaffold(c, EQUAL, ONES, H)) for c in cohorts]
    check(fs.Scaffold(step_size=GAMMA, local_steps=H, cohort=size), 1, of_client, rounds)


def test_fedavg_with_cohorts() -> None:
    cohorts = list(combinations(range(N), 2))

    def finish(cohort: tuple[int, ...]) -> Any:
        return lambda server, clients, local: (local[list(cohort)].mean(axis=0)[None], clients)

    rounds = [OneRound(1 / len(cohorts), (H,) * N, finish(c)) for c in cohorts]
    check(fs.FedAvg(step_size=GAMMA, local_steps=H, cohort=2), 1, nothing, rounds)


def test_scaffold_with_unequal_steps_and_weights() -> None:
    steps = (1, 2, 3, 6)
    w = np.array(UNEQUAL) / sum(UNEQUAL)
    finish = scaffold(ALL, w, np.mean(steps) / np.array(steps), float(np.mean(steps)))
    check(fs.Scaffold(step_size=GAMMA, local_steps=steps), 1, of_client, [OneRound(1.0, steps, finish)], UNEQUAL)


@pytest.mark.parametrize("size", [1, 2, 4])
def test_two_sided_scaffold(size: int) -> None:
    cohorts = list(combinations(range(N), size))
    rounds = [OneRound(1 / len(cohorts), (H,) * N, two_sided(c)) for c in cohorts]
    method = fs.TwoSidedScaffold(step_size=GAMMA, local_steps=H, server_step_size=ETA, cohort=size)
    check(method, 2, lambda server, clients, own: server[1] - clients, rounds)


def test_proxskip() -> None:
    p = 0.7
    w = np.array(UNEQUAL) / sum(UNEQUAL)

    def finish(server: Array, clients: Array, local: Array) -> tuple[Array, Array]:
        mean = w @ local
        return mean[None], clients + p * (local - mean) / GAMMA

    likely = [(h, p * (1 - p) ** (h - 1)) for h in range(1, 14)]
    rounds = [OneRound(chance, (h,) * N, finish) for h, chance in likely]
    problem = problem_of(UNEQUAL)
    found = exact_law(problem, fs.ProxSkip(step_size=GAMMA, communication_probability=p), Batches(BATCH))
    mean, second, _ = stationary(problem, GAMMA, BATCH, 1, of_client, rounds, n_rounds=300)
    # the distribution of H is known by 20,000 quantiles
    assert np.trace(found.cov_theta) == pytest.approx(np.trace(second - np.outer(mean, mean)), rel=1e-3)


@pytest.mark.parametrize("gradients", ["full", "minibatch"])
def test_fedlin(gradients: Any) -> None:
    w = np.array(UNEQUAL) / sum(UNEQUAL)
    method = fs.FedLin(step_size=GAMMA, local_steps=H, correction_gradients=gradients)
    check(
        method, 1, lambda server, clients, own: w @ own - own,
        same(lambda server, clients, local: ((w @ local)[None], clients)), UNEQUAL,
        noisy_exchange=gradients == "minibatch",
    )  # fmt: skip


@pytest.mark.parametrize("wrapped", [fs.FedAvg, fs.Scaffold])
def test_momentum_on_the_server(wrapped: Any) -> None:
    pytest.importorskip("optax")
    method = fs.ServerOptimizer(
        method=wrapped(step_size=GAMMA, local_steps=H), optimizer="sgd", learning_rate=RATE,
        options={"momentum": MOMENTUM},
    )  # fmt: skip
    keeps = wrapped is fs.Scaffold
    check(method, 3, of_client if keeps else nothing, same(momentum(EQUAL, keeps)), positions=(0, 1))


def linear_problem(kind: str) -> Any:
    if kind == "td":
        return fs.problems.GarnetTD(n_clients=N, states=6, dim=D, discount=0.5)
    return systems((9,) * N, D, weights=UNEQUAL if kind == "weighted" else None, seed=3)


@pytest.mark.parametrize("kind", ["linear", "weighted", "td"])
@pytest.mark.parametrize("method", ["scaffold", "gradient_scaffold", "fedavg"])
def test_matrices_that_are_not_symmetric(kind: str, method: str) -> None:
    problem = linear_problem(kind)
    assert np.abs(problem.client_matrices - np.swapaxes(problem.client_matrices, 1, 2)).max() > 0.1
    finish = scaffold(ALL, problem.weights, ONES, H)
    kinds = {"scaffold": fs.Scaffold, "gradient_scaffold": fs.GradientScaffold, "fedavg": fs.FedAvg}
    chosen = kinds[method](step_size=GAMMA, local_steps=H)
    if method == "fedavg":
        w = problem.weights
        check(chosen, 1, nothing, same(lambda s, clients, local: ((w @ local)[None], clients)), problem=problem)
    else:
        check(chosen, 1, of_client, same(finish), problem=problem, n_rounds=2000)


@pytest.mark.parametrize("kind", ["linear", "td"])
def test_cohorts_of_linear_systems(kind: str) -> None:
    cohorts = list(combinations(range(N), 2))
    rounds = [OneRound(1 / len(cohorts), (H,) * N, scaffold(c, EQUAL, ONES, H)) for c in cohorts]
    method = fs.Scaffold(step_size=GAMMA, local_steps=H, cohort=2)
    check(method, 1, of_client, rounds, problem=linear_problem(kind), n_rounds=2000)
