"""Streamed clients: the native engine gives the reference engine's numbers, whatever the blocks and threads."""

from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import fedscaffold as fs
from fedscaffold.core.protocols import Engine
from fedscaffold.core.random.stream import Batches
from fedscaffold.core.types import Array
from fedscaffold.engines import Native, Reference

KINDS = {"ridge": fs.problems.RidgeStream, "logistic": fs.problems.LogisticStream}
DIMS = (1, 7, 20)


def make(kind: str, n_clients: int = 5, dim: int = 7, **kwargs: Any) -> Any:
    return KINDS[kind](n_clients=n_clients, dim=dim, **{"l2": 0.1, "seed": 3, **kwargs})


def both(problem: Any, *, local_steps: int = 4, rounds: int = 2, dtype: Any = "float64", **kwargs: Any) -> Any:
    """(native, reference)."""
    method = fs.Scaffold(step_size=0.05, local_steps=local_steps)
    fast = fs.run(problem, method, rounds=rounds, engine=Native(dtype=dtype), **kwargs)
    return fast, fs.run(problem, method, rounds=rounds, engine="reference", **kwargs)


@given(
    kind=st.sampled_from(sorted(KINDS)),
    n_clients=st.integers(1, 5),
    dim=st.sampled_from(DIMS),
    batch_size=st.integers(1, 20),
    local_steps=st.integers(1, 8),
    repetitions=st.integers(1, 2),
    seed=st.integers(0, 2**64 - 1),
    own_seed=st.integers(0, 2**64 - 1),
)
@example("ridge", 1, 1, 1, 1, 1, 2**64 - 1, 2**64 - 1)
@settings(max_examples=12)
def test_any_shape(
    kind: str,
    n_clients: int,
    dim: int,
    batch_size: int,
    local_steps: int,
    repetitions: int,
    seed: int,
    own_seed: int,
) -> None:
    problem = make(kind, n_clients, dim, seed=own_seed, weights=range(1, n_clients + 1))
    fast, slow = both(problem, local_steps=local_steps, batch_size=batch_size, repetitions=repetitions, seed=seed)
    np.testing.assert_allclose(fast.theta, slow.theta, rtol=0, atol=1e-12)
    np.testing.assert_allclose(fast.control_variates, slow.control_variates, rtol=0, atol=1e-11)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("dim", "batch_size", "local_steps"), [
    (7, 9, 150), (1100, 5, 3), pytest.param(4100, 2, 2, marks=pytest.mark.slow),
])  # fmt: skip
def test_more_numbers_than_are_drawn_at_once(kind: str, dim: int, batch_size: int, local_steps: int) -> None:
    fast, slow = both(make(kind, 2, dim, spectrum=np.full(dim, 1.0 / dim)), batch_size=batch_size, rounds=1,
                      local_steps=local_steps, record=("loss",))  # fmt: skip
    np.testing.assert_allclose(fast.theta, slow.theta, rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("first_step", [0, 1, 7, 1000])
@pytest.mark.parametrize("batch_size", [1, 3])
def test_later_steps_cohorts_and_steps_of_their_own(kind: str, batch_size: int, first_step: int) -> None:
    problem = make(kind)
    rng = np.random.default_rng(0)
    theta, correction = rng.normal(size=(3, 7)), rng.normal(size=(3, 2, 7))
    clients, steps = np.array([[0, 4], [2, 3], [1, 4]]), np.array([[3, 1], [300, 2], [1, 1]])
    results = []
    for engine in (Native(), Reference()):
        with engine.open(problem, Batches(batch_size), seed=3) as local_sgd:
            results.append(
                local_sgd(
                    theta, correction, step_size=0.05, local_steps=steps, round=2, clients=clients,
                    first_step=first_step,
                )
            )  # fmt: skip
    np.testing.assert_allclose(results[0], results[1], rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("engine", [Reference(), Native(threads=1), Native(threads=2)], ids=str)
def test_a_block_is_its_clients(kind: str, engine: Engine) -> None:
    problem = make(kind)
    rng = np.random.default_rng(3)
    theta, xi = rng.standard_normal((2, 7)), rng.standard_normal((2, 5, 7))

    def models(of: Any, correction: Array, first_client: int) -> Array:
        with engine.open(of, Batches(3), seed=11, first_client=first_client) as local_sgd:
            return local_sgd(theta, correction, step_size=0.1, local_steps=6, round=4, first_step=1)

    whole = models(problem, xi, 0)
    block = models(problem.subset(range(2, 5)), xi[:, 2:], 2)
    np.testing.assert_array_equal(block, whole[:, 2:])
    assert not np.allclose(models(problem.subset(range(2, 5)), xi[:, 2:], 0), block)


@pytest.mark.parametrize("kind", KINDS)
def test_same_bits_from_any_threads(kind: str) -> None:
    problem, method = make(kind, 40, 7), fs.Scaffold(step_size=0.05, local_steps=7)
    alone, shared, general = (
        fs.run(problem, method, rounds=3, batch_size=13, repetitions=2, engine=engine)
        for engine in (Native(threads=1), Native(threads=3), Native())
    )
    assert shared.theta.tobytes() == alone.theta.tobytes() == general.theta.tobytes()
    assert shared.control_variates.tobytes() == alone.control_variates.tobytes()


@pytest.mark.parametrize("kind", ["ridge", pytest.param("logistic", marks=pytest.mark.slow)])
def test_single_precision_to_its_own_accuracy(kind: str) -> None:
    fast, slow = both(make(kind), dtype="float32", local_steps=10, batch_size=10)
    gap = np.abs(fast.theta - slow.theta).max() / np.abs(slow.theta).max()
    assert 0 < gap < 4e-6


@pytest.mark.parametrize("engine", ["native", "reference"])
@pytest.mark.parametrize(
    ("method", "kwargs", "words"),
    [
        (fs.FedAvg(step_size=0.1, local_steps=2), {}, "give a batch_size"),
        (
            fs.FedAvg(step_size=0.1, local_steps=2),
            {"batch_size": 2, "sampling": "without_replacement"},
            "none is put back",
        ),
        (fs.FedLin(step_size=0.1, local_steps=2), {"batch_size": 2}, "correction_gradients='minibatch'"),
    ],
)
def test_batches_that_distributions_cannot_give_are_refused(
    engine: str, method: Any, kwargs: Any, words: str
) -> None:
    with pytest.raises(fs.InvalidInput, match=words):
        fs.run(make("ridge"), method, rounds=1, engine=engine, **kwargs)


def test_other_refusals() -> None:
    method = fs.FedAvg(step_size=0.1, local_steps=2)
    with pytest.raises(fs.InvalidInput, match="jax engine"):
        fs.run(make("ridge"), method, rounds=1, batch_size=2, engine="jax")
