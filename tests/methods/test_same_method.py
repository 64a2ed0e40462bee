"""Methods that are one another in special cases."""

from typing import Any

import numpy as np
import pytest

import fedscaffold as fs
from fedscaffold.core.protocols import Method
from fedscaffold.core.types import Array
from tests.samples import KINDS, Kind, make

SIZES, DIM, WEIGHTS = (12, 20, 9, 15), 3, (1.0, 4.0, 0.5, 2.0)
GAMMA = 0.1


def thetas(kind: Kind, method: Method, **options: Any) -> Array:
    """Models after each number of rounds up to eight, (8, repetitions, dim)."""
    problem = make(kind, SIZES, DIM, weights=WEIGHTS)
    options = {"batch_size": 4, "seed": 3, "repetitions": 2, "progress": False} | options
    return np.stack([fs.run(problem, method, rounds=rounds, **options).theta for rounds in range(1, 9)])


def minibatch_sgd(kind: Kind, batch_size: int | None) -> Array:
    """θ ← θ − γ Σ w_c g_c(θ), written out; a gradient is what one step of size one subtracts from θ."""
    problem = make(kind, SIZES, DIM, weights=WEIGHTS)
    theta, found = np.zeros((2, DIM)), []
    engine = fs.engines.Reference()
    from fedscaffold.core.random.stream import Batches

    with engine.open(problem, Batches(batch_size), seed=3) as local_sgd:
        for t in range(8):
            after = local_sgd(theta, np.zeros((1, 1, DIM)), step_size=1.0, local_steps=1, round=t)
            gradients = theta[:, None, :] - after
            theta = theta - GAMMA * np.einsum("c,rcj->rj", problem.weights, gradients)
            found.append(theta)
    return np.stack(found)


ONE_STEP: dict[str, Method] = {
    "FedAvg": fs.FedAvg(step_size=GAMMA, local_steps=1),
    "Scaffold": fs.Scaffold(step_size=GAMMA, local_steps=1),
    "TwoSidedScaffold": fs.TwoSidedScaffold(step_size=GAMMA, local_steps=1, server_step_size=1.0),
    "ProxSkip": fs.ProxSkip(step_size=GAMMA, communication_probability=1.0),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ONE_STEP)
@pytest.mark.parametrize("batch_size", [4, None])
def test_one_local_step_is_minibatch_sgd(kind: Kind, name: str, batch_size: int | None) -> None:
    found = thetas(kind, ONE_STEP[name], batch_size=batch_size)
    np.testing.assert_allclose(found, minibatch_sgd(kind, batch_size), rtol=0, atol=1e-13)


@pytest.mark.parametrize("kind", KINDS)
def test_one_local_step_of_fedlin_is_gradient_descent_without_noise(kind: Kind) -> None:
    found = thetas(kind, fs.FedLin(step_size=GAMMA, local_steps=1), batch_size=None)
    np.testing.assert_allclose(found, minibatch_sgd(kind, None), rtol=0, atol=1e-13)


@pytest.mark.parametrize("kind", KINDS)
def test_one_client_is_local_sgd(kind: Kind) -> None:
    """T rounds of H steps are FedAvg's with one client, and without noise TH steps of gradient descent."""
    problem = make(kind, (14,), DIM)
    scaffold = fs.Scaffold(step_size=GAMMA, local_steps=6)
    a, b = (
        fs.run(problem, method, rounds=5, batch_size=4, progress=False)
        for method in (scaffold, fs.FedAvg(step_size=GAMMA, local_steps=6))
    )
    np.testing.assert_allclose(a.theta, b.theta, rtol=0, atol=1e-13)
    assert np.abs(a.control_variates).max() < 1e-13
    descent = fs.run(problem, fs.FedAvg(step_size=GAMMA, local_steps=30), rounds=1, progress=False)
    plain = fs.run(problem, scaffold, rounds=5, progress=False)
    np.testing.assert_allclose(plain.theta, descent.theta, rtol=0, atol=1e-13)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("one", "other", "tolerance"),
    [
        (
            fs.ProxSkip(step_size=GAMMA, communication_probability=1.0),
            fs.Scaffold(step_size=GAMMA, local_steps=1),
            1e-13,
        ),
        (
            fs.TwoSidedScaffold(step_size=GAMMA, local_steps=7, server_step_size=1.0),
            fs.Scaffold(step_size=GAMMA, local_steps=7),
            1e-12,
        ),
        (fs.Scaffold(step_size=GAMMA, local_steps=(7,) * 4), fs.Scaffold(step_size=GAMMA, local_steps=7), 1e-13),
        (
            fs.Scaffold(step_size=GAMMA, local_steps=7, participation=1.0),
            fs.Scaffold(step_size=GAMMA, local_steps=7, cohort=4),
            0.0,
        ),
        (
            fs.FedAvg(step_size=GAMMA, local_steps=7, participation=0.5),
            fs.FedAvg(step_size=GAMMA, local_steps=7, cohort=2),
            0.0,
        ),
        (
            fs.FedProx(step_size=GAMMA, local_steps=7, proximal_weight=0.0, cohort=3),
            fs.FedAvg(step_size=GAMMA, local_steps=7, cohort=3),
            0.0,
        ),
        (
            fs.FedProx(step_size=GAMMA, local_steps=1, proximal_weight=2.0),
            fs.FedAvg(step_size=GAMMA, local_steps=1),
            1e-13,
        ),
        (
            fs.FedSplit(step_size=GAMMA / 2, local_steps=1, proximal_weight=2.0),
            fs.FedAvg(step_size=GAMMA, local_steps=1),
            1e-13,
        ),
        (
            fs.Scallion(step_size=GAMMA, local_steps=7, compression="identity"),
            fs.Scaffold(step_size=GAMMA, local_steps=7),
            1e-12,
        ),
        (
            fs.Scallion(step_size=GAMMA, local_steps=7, compression="identity", server_levels=2**31),
            fs.Scaffold(step_size=GAMMA, local_steps=7),
            1e-7,  # the server rounds to 2⁻³¹
        ),
        (
            fs.Scallion(step_size=GAMMA, local_steps=7, compression="random_k:1", cohort=3),
            fs.TwoSidedScaffold(step_size=GAMMA, local_steps=7, server_step_size=1.0, cohort=3),
            1e-12,
        ),
        (
            fs.Tamuna(step_size=GAMMA, communication_probability=0.2, owners=4),
            fs.ProxSkip(step_size=GAMMA, communication_probability=0.2),
            1e-12,
        ),
        (
            fs.AmplifiedScaffold(step_size=GAMMA, local_steps=7, window=1, amplification=0.8, cohort=3),
            fs.TwoSidedScaffold(step_size=GAMMA, local_steps=7, server_step_size=0.8, cohort=3),
            1e-12,
        ),
        (
            fs.RandProx(step_size=GAMMA, communication_probability=0.2, share=1.0),
            fs.ProxSkip(step_size=GAMMA, communication_probability=0.2),
            1e-12,
        ),
        (
            fs.GradientScaffold(step_size=GAMMA, local_steps=7),
            fs.Scaffold(step_size=GAMMA, local_steps=7),
            1e-12,
        ),
    ],
    ids=[
        *("p = 1", "η = 1", "equal steps", "everyone", "half", "λ = 0", "one step", "one step of splitting"),
        *(
            "no compression",
            "hardly any rounding by the server",
            "no compression, in cohorts",
            "not compressed by masks",
            "window of one",
            "all coordinates",
            "sums of gradients",
        ),
    ],
)
def test_equal(kind: Kind, one: Method, other: Method, tolerance: float) -> None:
    np.testing.assert_allclose(thetas(kind, one), thetas(kind, other), rtol=0, atol=tolerance)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("one", "other"),
    [
        (fs.LocalSvrg(step_size=GAMMA, local_steps=7), fs.FedLin(step_size=GAMMA, local_steps=7)),
        (
            fs.VRProxSkip(step_size=GAMMA, communication_probability=0.2),
            fs.ProxSkip(step_size=GAMMA, communication_probability=0.2),
        ),
    ],
    ids=["FedLin", "ProxSkip"],
)
def test_on_full_gradients_variance_reduction_changes_nothing(kind: Kind, one: Method, other: Method) -> None:
    full = [thetas(kind, method, batch_size=None) for method in (one, other)]
    np.testing.assert_allclose(full[0], full[1], rtol=0, atol=1e-12)
    assert np.abs(thetas(kind, one) - thetas(kind, other)).max() > 1e-4


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_not_equal(kind: Kind) -> None:
    """That the comparisons above can fail."""
    scaffold = thetas(kind, fs.Scaffold(step_size=GAMMA, local_steps=7))
    for other in (
        fs.FedAvg(step_size=GAMMA, local_steps=7),
        fs.TwoSidedScaffold(step_size=GAMMA, local_steps=7, server_step_size=1.1),
        fs.Scaffold(step_size=GAMMA, local_steps=(7, 7, 7, 6)),
        fs.Scaffold(step_size=GAMMA, local_steps=7, cohort=3),
        fs.FedLin(step_size=GAMMA, local_steps=7),
        fs.FedProx(step_size=GAMMA, local_steps=7, proximal_weight=0.1),
        fs.FedSplit(step_size=GAMMA, local_steps=7, proximal_weight=0.1),
        fs.ProxSkip(step_size=GAMMA, communication_probability=1 / 7),
        fs.Tamuna(step_size=GAMMA, communication_probability=1 / 7, owners=2),
        fs.Scallion(step_size=GAMMA, local_steps=7, compression="natural"),
    ):
        assert np.abs(thetas(kind, other) - scaffold).max() > 1e-4


@pytest.mark.parametrize("kind", KINDS)
def test_fedlins_correction_at_the_optimum(kind: Kind) -> None:
    """ξ_c = ∇f(θ*) − ∇f_c(θ*) = −∇f_c(θ*), so that θ* is a fixed point."""
    problem = make(kind, SIZES, DIM, weights=WEIGHTS)
    optimum = problem.optimum()
    seen: list[Array] = []

    class Watched(fs.FedLin):
        def correction(self, memory: Any, server: Any, exchanged: Any) -> Array:
            seen.append(super().correction(memory, server, exchanged))
            return seen[-1]

    method = Watched(step_size=GAMMA, local_steps=5)
    trace = fs.run(problem, method, rounds=2, theta0=optimum, progress=False)
    during = next(xi for xi in seen if xi.shape[1] == problem.n_clients)
    np.testing.assert_allclose(during[0], -problem.client_gradients(optimum), rtol=0, atol=1e-11)
    assert trace.mse.max() < 1e-24
