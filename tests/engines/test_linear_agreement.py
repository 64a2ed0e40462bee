"""Linear stochastic approximation: the native engine gives the reference engine's numbers."""

from typing import Any

import numpy as np
import pytest

import fedscaffold as fs
from fedscaffold.core.random.stream import Batches
from fedscaffold.engines import Native
from fedscaffold.problems.linear import Observing
from tests.samples import systems

METHOD = fs.ScaffLSA(step_size=0.05, local_steps=6)
SAMPLINGS: tuple[Observing, Observing] = ("iid", "markov")


def garnet(sampling: Observing, **kwargs: Any) -> fs.problems.GarnetTD:
    return fs.problems.GarnetTD(**{"n_clients": 4, "states": 12, "dim": 7, "sampling": sampling, **kwargs})


def assert_same(problem: Any, tolerance: float = 1e-12, **kwargs: Any) -> None:
    fast = fs.run(problem, METHOD, engine=Native(), **{"rounds": 2, **kwargs})
    slow = fs.run(problem, METHOD, engine="reference", **{"rounds": 2, **kwargs})
    for name in ("theta", "control_variates", "mse"):
        wanted = getattr(slow, name)
        np.testing.assert_allclose(getattr(fast, name), wanted, rtol=0, atol=tolerance * np.abs(wanted).max())


@pytest.mark.parametrize("dim", [1, 7, 20, 70])
@pytest.mark.parametrize("batch_size", [1, 5, 9, None])
def test_dense(dim: int, batch_size: int | None) -> None:
    assert_same(systems((1, 9, 14), dim), batch_size=batch_size, repetitions=2)
    if batch_size is not None:
        problem = systems((9, 11), dim)
        assert_same(problem, batch_size=batch_size, sampling="without_replacement", repetitions=2)


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("shape", [(12, 2, 7), (12, 1, 1), (30, 30, 7), (70, 3, 68)])
@pytest.mark.parametrize("batch_size", [1, 5, 12, None])
def test_transitions(sampling: Observing, shape: tuple[int, int, int], batch_size: int | None) -> None:
    states, branching, dim = shape
    problem = garnet(sampling, states=states, branching=branching, dim=dim)
    assert_same(problem, batch_size=batch_size, repetitions=2)


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("batch_size", [700, 1025, 4200])
def test_more_draws_than_are_made_at_once_and_batches_too_long_for_the_stack(
    sampling: Observing, batch_size: int
) -> None:
    assert_same(garnet(sampling, n_clients=2), tolerance=1e-11, batch_size=batch_size, rounds=1)


@pytest.mark.parametrize("problem", [systems([9 + c % 3 for c in range(40)], 7), garnet("markov", n_clients=40)])
def test_the_number_of_threads_does_not_change_a_bit(problem: Any) -> None:
    method = fs.ScaffLSA(step_size=0.05, local_steps=2000)
    one, two = (
        fs.run(problem, method, rounds=2, batch_size=20, engine=fs.engines.Native(threads=threads))
        for threads in (1, 2)
    )
    assert one.theta.tobytes() == two.theta.tobytes()


@pytest.mark.parametrize(
    "problem",
    [systems((9, 14), 7), *(pytest.param(garnet(way), marks=pytest.mark.slow) for way in SAMPLINGS)],
    ids=str,
)
@pytest.mark.parametrize("batch_size", [3, None])
def test_single_precision_to_its_own_accuracy(problem: Any, batch_size: int | None) -> None:
    fast = fs.run(problem, METHOD, rounds=2, batch_size=batch_size, engine=fs.engines.Native(dtype="float32"))
    slow = fs.run(problem, METHOD, rounds=2, batch_size=batch_size, engine="reference")
    gap = np.abs(fast.theta - slow.theta).max() / np.abs(slow.theta).max()
    assert 0 < gap < 2e-6  # zero would mean that it was not used


@pytest.mark.parametrize("problem", [systems((9, 14, 3, 5), 7), garnet("iid"), garnet("markov")], ids=str)
@pytest.mark.parametrize("first_step", [0, 1, 7, 3000])
def test_later_steps_draws_cohorts_and_steps_of_their_own(problem: Any, first_step: int) -> None:
    rng = np.random.default_rng(0)
    theta, correction = rng.normal(size=(3, 7)), rng.normal(size=(3, 2, 7))
    clients, steps = np.array([[0, 3], [2, 3], [1, 2]]), np.array([[3, 1], [1500, 2], [1, 1]])
    results = []
    for engine in (fs.engines.Native(), fs.engines.Reference()):
        with engine.open(problem, Batches(3), seed=3) as local_sgd:
            results.append(
                local_sgd(
                    theta, correction, step_size=0.02, local_steps=steps, round=2, clients=clients,
                    first_step=first_step,
                )
            )  # fmt: skip
    np.testing.assert_allclose(results[0], results[1], rtol=0, atol=1e-12)


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("engine", ["reference", "native"])
def test_transitions_cannot_be_drawn_without_replacement(sampling: Observing, engine: str) -> None:
    with pytest.raises(fs.InvalidInput, match="use sampling='with_replacement'"):
        fs.run(garnet(sampling), METHOD, rounds=1, batch_size=2, engine=engine, sampling="without_replacement")
