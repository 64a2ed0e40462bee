"""The numba engine gives the reference engine's numbers."""

from functools import partial
from itertools import count
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import fedscaffold as fs
from fedscaffold.core.random.stream import Batches, Sampling
from fedscaffold.engines import Numba
from fedscaffold.engines.numba_.machine_code import choose
from fedscaffold.engines.numba_.machine_code.choose import LARGEST_BATCH
from tests.samples import KINDS, Kind, make

DIMS = (1, 2, 7, 20, 33)
SPECIAL = (7, 20)  # have kernels of their own here, for large batches: small ones are in test_small_steps
LARGE_BATCH = 19


def both(problem: Any, *, dtype: Any = "float64", local_steps: int = 3, rounds: int = 2, **kwargs: Any) -> Any:
    """(numba, reference)."""
    method = fs.Scaffold(step_size=0.05, local_steps=local_steps)
    large = kwargs.get("batch_size") is None or kwargs["batch_size"] > LARGEST_BATCH
    engine = Numba(dtype=dtype, specialise=large and problem.dim in SPECIAL)
    fast = fs.run(problem, method, rounds=rounds, engine=engine, **kwargs)
    return fast, fs.run(problem, method, rounds=rounds, engine="reference", **kwargs)


def assert_close(fast: fs.Trace, slow: fs.Trace, tolerance: float) -> None:
    for name in ("theta", "control_variates", *slow.metrics):
        wanted = getattr(slow, name)
        np.testing.assert_allclose(getattr(fast, name), wanted, rtol=0, atol=tolerance * np.abs(wanted).max())


@given(
    kind=st.sampled_from(KINDS),
    sizes=st.lists(st.integers(1, 30), min_size=1, max_size=6),
    dim=st.sampled_from(DIMS),
    batch_size=st.none() | st.integers(1, 40),
    sampling=st.sampled_from(("with_replacement", "without_replacement")),
    local_steps=st.integers(1, 12),
    repetitions=st.integers(1, 3),
    n_unpenalised=st.integers(0, 2),
    seed=st.integers(0, 2**64 - 1),
)
@example("ridge", [1], 1, 1, "without_replacement", 1, 1, 1, 2**64 - 1)
@example("logistic", [3, 1, 5], 33, 40, "with_replacement", 12, 3, 0, 2**32)
@settings(max_examples=30)
def test_any_shape(
    kind: Kind, sizes: list[int], dim: int, batch_size: int | None, sampling: Sampling,
    local_steps: int, repetitions: int, n_unpenalised: int, seed: int,
) -> None:  # fmt: skip
    if batch_size is not None and sampling == "without_replacement":
        batch_size = min(batch_size, *sizes)
    problem = make(
        kind, sizes, dim, weights=range(1, len(sizes) + 1), n_unpenalised=min(dim, n_unpenalised), seed=seed % 1000
    )
    fast, slow = both(
        problem, local_steps=local_steps, batch_size=batch_size, sampling=sampling,
        repetitions=repetitions, seed=seed, record=("loss",),
    )  # fmt: skip
    assert_close(fast, slow, 1e-12)


@pytest.mark.parametrize("batch_size", [*range(1, 19), 31])
def test_every_batch_size_up_to_eighteen(batch_size: int) -> None:
    for kind in KINDS:
        fast, slow = both(make(kind, (20, 31, 40), 7), batch_size=batch_size)
        assert_close(fast, slow, 1e-12)


@pytest.mark.parametrize("sampling", ["with_replacement", "without_replacement"])
@pytest.mark.parametrize(("local_steps", "batch_size"), [(4100, 1), (470, 9), (9, 1025)])
def test_more_draws_than_are_made_at_once(sampling: Sampling, local_steps: int, batch_size: int) -> None:
    problem = make("ridge", (1030,), 7)
    fast, slow = both(problem, local_steps=local_steps, batch_size=batch_size, sampling=sampling, rounds=1)
    assert_close(fast, slow, 1e-11)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("sizes", "dim", "batch_size"), [((7, 3, 5), 5003, 3), ((5001, 4200), 3, None)])
def test_vectors_too_long_for_the_stack(
    kind: Kind, sizes: tuple[int, ...], dim: int, batch_size: int | None
) -> None:
    problem = make(kind, sizes, dim)
    fast, slow = both(problem, batch_size=batch_size, repetitions=2, record=("loss",))
    for name in ("theta", "control_variates", "loss"):
        wanted = getattr(slow, name)
        np.testing.assert_allclose(getattr(fast, name), wanted, rtol=0, atol=1e-11 * np.abs(wanted).max())


@pytest.mark.parametrize("dim", SPECIAL)
@pytest.mark.parametrize("kind", KINDS)
def test_the_kernel_for_any_number_of_features_gives_the_same_bits(dim: int, kind: Kind) -> None:
    problem, method = make(kind, (20, 31, 40), dim), fs.Scaffold(step_size=0.05, local_steps=7)
    special, general = (
        fs.run(
            problem, method, rounds=3, batch_size=LARGE_BATCH, repetitions=2, engine=Numba(specialise=specialise)
        )
        for specialise in (True, False)
    )
    assert general.theta.tobytes() == special.theta.tobytes()
    assert general.control_variates.tobytes() == special.control_variates.tobytes()


def test_a_run_changes_to_the_special_kernel_once_that_pays(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a clock by which every call takes 0.7 seconds: after the third round; the bits stay the same."""
    problem, method = make("ridge", (20, 31, 40), SPECIAL[0]), fs.Scaffold(step_size=0.05, local_steps=7)
    settings: Any = {"rounds": 5, "batch_size": LARGE_BATCH}
    wanted = fs.run(problem, method, engine=Numba(specialise=False), **settings)
    special = []
    table_kernel = choose.table_kernel

    def watched(*arguments: Any, specialise: bool, **others: Any) -> Any:
        chosen = table_kernel(*arguments, specialise=specialise, **others)

        def given(*first: Any) -> Any:
            def bind(*arguments: Any) -> Any:
                special.append(specialise)
                return chosen.given(*first).bind(*arguments)

            return SimpleNamespace(bind=bind)

        return SimpleNamespace(given=given)

    monkeypatch.setattr(choose, "table_kernel", watched)
    monkeypatch.setattr("fedscaffold.engines.numba_.engine.time.perf_counter", partial(next, count(step=0.7)))
    found = fs.run(problem, method, engine=Numba(), **settings)
    assert special == [False] * 3 + [True] * 2  # the general one in rounds of 0.7 s each until two have passed
    assert found.theta.tobytes() == wanted.theta.tobytes()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("batch_size", [1, 10, None])
def test_single_precision_to_its_own_accuracy(kind: Kind, batch_size: int | None) -> None:
    fast, slow = both(make(kind, (20, 31, 40), 7), dtype="float32", local_steps=10, batch_size=batch_size)
    gap = np.abs(fast.theta - slow.theta).max() / np.abs(slow.theta).max()
    assert 0 < gap < 2e-6  # 17 times the unit roundoff of float32; zero would mean that it was not used


def test_correction_of_one_client_serves_all() -> None:
    """FedAvg hands over ξ of shape (1, 1, d), Scaffold (R, N, d)."""
    problem = make("ridge", (8, 8, 8), 7)
    method = fs.FedAvg(step_size=0.1, local_steps=5)
    fast, slow = (
        fs.run(problem, method, rounds=3, batch_size=2, repetitions=3, engine=name)
        for name in ("numba", "reference")
    )
    np.testing.assert_allclose(fast.theta, slow.theta, rtol=0, atol=1e-13)


def test_a_problem_without_a_kernel_is_refused_by_numba_and_served_by_the_reference() -> None:
    class Quartic(fs.problems.Ridge):
        kind = "quartic"

    problem = Quartic(np.ones((2, 3, 1)), np.ones((2, 3)))
    method = fs.FedAvg(step_size=0.1, local_steps=1)
    with pytest.raises(fs.InvalidInput, match="no kernel for 'quartic'"):
        fs.run(problem, method, rounds=1, engine="numba")
    trace = fs.run(problem, method, rounds=1)
    assert trace.provenance["engine"] == "reference"
    assert trace.theta[0, 0] == pytest.approx(0.1)


@pytest.mark.parametrize("sampling", ["with_replacement", "without_replacement"])
@pytest.mark.parametrize("first_step", [0, 1, 2, 7, 1000])
@pytest.mark.parametrize("batch_size", [1, 3, 4])
def test_later_steps_draws_cohorts_and_steps_of_their_own(
    batch_size: int, first_step: int, sampling: Sampling
) -> None:
    """Everything that a round may hand to the hot loop, for repetitions with cohorts of their own."""
    problem = make("ridge", (8, 11, 9, 30, 5), 7)
    rng = np.random.default_rng(0)
    theta, correction = rng.normal(size=(3, 7)), rng.normal(size=(3, 2, 7))
    clients, steps = np.array([[0, 4], [2, 3], [1, 4]]), np.array([[3, 1], [1300 // batch_size, 2], [1, 1]])
    results = []
    for engine in (fs.engines.Numba(), fs.engines.Reference()):
        with engine.open(problem, Batches(batch_size, sampling), seed=3) as local_sgd:
            results.append(
                local_sgd(
                    theta, correction, step_size=0.05, local_steps=steps, round=2, clients=clients,
                    first_step=first_step,
                )
            )  # fmt: skip
    np.testing.assert_allclose(results[0], results[1], rtol=0, atol=1e-12)


def test_steps_after_others_continue_them() -> None:
    """Three steps, then two that draw as the fourth and fifth, are five steps."""
    problem = make("logistic", (8, 11, 9), 7)
    xi = np.random.default_rng(0).normal(size=(1, 3, 7))
    with fs.engines.Numba().open(problem, Batches(3), seed=3) as local_sgd:
        five = local_sgd(np.ones((1, 7)), xi, step_size=0.1, local_steps=5, round=1)
        three = local_sgd(np.ones((1, 7)), xi, step_size=0.1, local_steps=3, round=1)
        for c in range(3):
            two = local_sgd(
                three[:, c], xi[:, c : c + 1], step_size=0.1, local_steps=2, round=1, first_step=3,
                clients=np.array([[c]]),
            )  # fmt: skip
            np.testing.assert_array_equal(two[0, 0], five[0, c])
