"""The native engine gives the reference engine's numbers."""

from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import fedscaffold as fs
from fedscaffold.core.random.stream import Batches, Sampling
from fedscaffold.engines import Native
from fedscaffold.engines.native import library
from tests.samples import KINDS, WEIGHTED_KINDS, Kind, make, systems, weighted

DIMS = (1, 2, 7, 20, 33)


def both(problem: Any, *, dtype: Any = "float64", local_steps: int = 3, rounds: int = 2, **kwargs: Any) -> Any:
    """(native, reference)."""
    method = fs.Scaffold(step_size=0.05, local_steps=local_steps)
    fast = fs.run(problem, method, rounds=rounds, engine=Native(dtype=dtype), **kwargs)
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


PROBLEMS: dict[str, Any] = {
    **{kind: partial(weighted, kind, (20, 31, 40, 7, 9), 11) for kind in WEIGHTED_KINDS},
    "plain ridge": partial(make, "ridge", (20, 31, 40, 7, 9), 11),
    "plain logistic": partial(make, "logistic", (20, 31, 40, 7, 9), 11),
    "ridge of long rows": partial(make, "ridge", (20, 31, 40, 7, 9), 50),
    "multinomial of long rows": partial(weighted, "multinomial", (20, 31, 40, 7, 9), 50),
    "linear systems": partial(systems, (20, 31, 40, 7, 9), 3),
    "ridge stream": partial(fs.problems.RidgeStream, n_clients=5, dim=11),
    "logistic stream": partial(fs.problems.LogisticStream, n_clients=5, dim=11),
}


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("name", PROBLEMS)
def test_every_instruction_set_gives_the_same_bits(name: str, dtype: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    problem, best = PROBLEMS[name](), library.load().fs_level(library.MOST_LEVEL)
    if best == 0:
        pytest.skip("this machine has neither AVX2 nor AVX-512")
    method = fs.Scaffold(step_size=0.02, local_steps=7)
    for batch_size in (1, 3, 5) if "stream" in name else (1, 3, 5, 19, None):
        bits = set()
        for level in range(best + 1):
            monkeypatch.setattr(library, "MOST_LEVEL", level)
            trace = fs.run(problem, method, rounds=3, batch_size=batch_size, engine=Native(dtype=dtype), record=())
            bits.add(trace.theta.tobytes() + trace.control_variates.tobytes())
        assert len(bits) == 1


@pytest.mark.parametrize("dim", range(1, 42))
def test_every_number_of_features_up_to_ten_vectors(dim: int) -> None:
    """Rows of one to eight vectors have code of their own, with batches of some sizes."""
    for kind in KINDS:
        problem = make(kind, (20, 31, 40, 6), dim)
        for batch_size in (1, 5, 10, 13, None):
            fast, slow = both(problem, batch_size=batch_size, record=())
            assert_close(fast, slow, 1e-12)


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
        for name in ("native", "reference")
    )
    np.testing.assert_allclose(fast.theta, slow.theta, rtol=0, atol=1e-13)


def test_an_unknown_loss_is_rejected_by_native_and_served_by_the_reference() -> None:
    class Quartic(fs.problems.Ridge):
        kind = "quartic"

    problem = Quartic(np.ones((2, 3, 1)), np.ones((2, 3)))
    method = fs.FedAvg(step_size=0.1, local_steps=1)
    with pytest.raises(fs.InvalidInput, match="does not know the loss of 'quartic'"):
        fs.run(problem, method, rounds=1, engine="native")
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
    for engine in (fs.engines.Native(), fs.engines.Reference()):
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
    with fs.engines.Native().open(problem, Batches(3), seed=3) as local_sgd:
        five = local_sgd(np.ones((1, 7)), xi, step_size=0.1, local_steps=5, round=1)
        three = local_sgd(np.ones((1, 7)), xi, step_size=0.1, local_steps=3, round=1)
        for c in range(3):
            two = local_sgd(
                three[:, c], xi[:, c : c + 1], step_size=0.1, local_steps=2, round=1, first_step=3,
                clients=np.array([[c]]),
            )  # fmt: skip
            np.testing.assert_array_equal(two[0, 0], five[0, c])
