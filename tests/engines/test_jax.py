"""The JAX engine gives the other engines' numbers, compiles once and leaves JAX's settings alone."""

import logging
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedscaffold as fs
from fedscaffold.cli.options import engine_of
from fedscaffold.core.random.stream import Batches, Sampling
from fedscaffold.engines.jax_ import engine as jax_engine
from fedscaffold.engines.jax_ import steps
from tests.samples import make, systems, tables

SIZES = (8, 11, 9, 30, 5)


def multinomial(sizes: tuple[int, ...] = SIZES, dim: int = 4) -> fs.problems.Multinomial:
    rng = np.random.default_rng(0)
    X = [rng.normal(size=(n, dim)) + rng.normal(size=dim) for n in sizes]
    y = [rng.integers(0, 3, size=n) for n in sizes]
    return fs.problems.Multinomial(X, y, n_classes=3, l2=0.05, n_unpenalised=1)


PROBLEMS: dict[str, Any] = {
    "ridge": lambda: make("ridge", SIZES, 7, weights=range(1, 6), n_unpenalised=1),
    "logistic": lambda: make("logistic", SIZES, 7, weights=range(1, 6), n_unpenalised=2),
    "multinomial": multinomial,
}
METHODS: dict[str, Any] = {
    "Scaffold": fs.Scaffold(step_size=0.05, local_steps=6),
    "cohorts": fs.Scaffold(step_size=0.05, local_steps=6, cohort=3),
    "unequal steps": fs.Scaffold(step_size=0.05, local_steps=(3, 9, 1, 6, 4), participation=0.6),
    "FedAvg": fs.FedAvg(step_size=0.05, local_steps=6),
    "two-sided": fs.TwoSidedScaffold(step_size=0.05, local_steps=6, server_step_size=0.8, cohort=2),
    "ProxSkip": fs.ProxSkip(step_size=0.05, communication_probability=0.2),
    "FedLin": fs.FedLin(step_size=0.05, local_steps=6, correction_gradients="minibatch"),
}


@pytest.mark.parametrize(
    ("kind", "method"),
    [*(("ridge", method) for method in METHODS), ("logistic", "unequal steps"), ("multinomial", "unequal steps")],
)
def test_fifty_rounds_agree_with_native(kind: str, method: str) -> None:
    """Every method, and every loss: a method does not know of the loss, nor the loss of the method."""
    problem = PROBLEMS[kind]()
    fast, other = (
        fs.run(problem, METHODS[method], rounds=50, batch_size=3, repetitions=2, seed=2**40 + 1, engine=name)
        for name in ("native", "jax")
    )
    for name in ("theta", "control_variates", "mse"):
        wanted = getattr(fast, name)
        np.testing.assert_allclose(getattr(other, name), wanted, rtol=0, atol=1e-10 * np.abs(wanted).max())


@pytest.mark.parametrize(("kind", "exchange"), [*((kind, "minibatch") for kind in PROBLEMS), ("ridge", "full")])
def test_full_gradients_of_clients_of_unequal_sizes(kind: str, exchange: Any) -> None:
    problem, method = PROBLEMS[kind](), fs.FedLin(step_size=0.05, local_steps=3, correction_gradients=exchange)
    batch_size = None if exchange == "minibatch" else 2
    fast, other = (
        fs.run(problem, method, rounds=10, batch_size=batch_size, engine=name) for name in ("native", "jax")
    )
    np.testing.assert_allclose(other.theta, fast.theta, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("batch_size", "sampling"),
    [
        pytest.param(1, "with_replacement", marks=pytest.mark.slow),
        (3, "with_replacement"),
        (3, "without_replacement"),
        pytest.param(5, "without_replacement", marks=pytest.mark.slow),
        (None, "with_replacement"),
    ],
)
def test_later_steps_draws_cohorts_and_steps_of_their_own(batch_size: int | None, sampling: Sampling) -> None:
    """Everything that a round may hand to the hot loop, more steps than are drawn at once, a chunk not full."""
    problem = make("ridge", SIZES, 7)
    rng = np.random.default_rng(0)
    theta, correction = rng.normal(size=(3, 7)), rng.normal(size=(3, 2, 7))
    clients, steps = np.array([[0, 4], [2, 3], [1, 4]]), np.array([[3, 1], [300, 2], [0, 1]])
    kept = theta.copy(), correction.copy()
    for first_step in (0, 1, 7, 1000):
        results = []
        for engine in (fs.engines.Jax(clients_at_once=4), fs.engines.Reference()):
            with engine.open(problem, Batches(batch_size, sampling), seed=3) as local_sgd:
                results.append(
                    local_sgd(
                        theta, correction, step_size=0.05, local_steps=steps, round=2, clients=clients,
                        first_step=first_step,
                    )
                )  # fmt: skip
        np.testing.assert_allclose(results[0], results[1], rtol=0, atol=1e-12)
    np.testing.assert_array_equal(theta, kept[0])  # donated buffers are not the caller's
    np.testing.assert_array_equal(correction, kept[1])


@pytest.mark.parametrize("at_once", [1, 3, 100])
def test_any_number_of_clients_at_once_and_any_number_of_calls(
    at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jax_engine, "NUMBERS_PER_CALL", 50)
    problem, method = make("logistic", SIZES, 7), METHODS["Scaffold"]
    wanted = fs.run(problem, method, rounds=3, batch_size=3, repetitions=3, engine="reference")
    found = fs.run(
        problem, method, rounds=3, batch_size=3, repetitions=3, engine=fs.engines.Jax(clients_at_once=at_once)
    )
    np.testing.assert_allclose(found.theta, wanted.theta, rtol=0, atol=1e-13)
    np.testing.assert_allclose(found.control_variates, wanted.control_variates, rtol=0, atol=1e-12)


@pytest.mark.parametrize(("name", "batch_size"), [("ProxSkip", 4), ("unequal steps", 6), ("FedLin", 7)])
def test_a_run_compiles_the_hot_loop_once(
    name: str, batch_size: int, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With several calls a round, the last one not full, and with steps whose number changes.

    Batches are of sizes that no other test has, so that nothing is compiled yet.
    """
    monkeypatch.setattr(jax_engine, "NUMBERS_PER_CALL", 30)
    with jax.log_compiles(), caplog.at_level(logging.WARNING):
        fs.run(
            PROBLEMS["ridge"](), METHODS[name], rounds=8, batch_size=batch_size, repetitions=2,
            engine=fs.engines.Jax(clients_at_once=2),
        )  # fmt: skip
    compiled = [r.getMessage() for r in caplog.records if "Compiling jit(local_models)" in r.getMessage()]
    assert len(compiled) == 1


def test_control_variates_stay_on_the_host_and_a_cohort_s_rows_go_to_the_device(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """40 clients of 7 numbers, 10 in a round, at most 50 numbers in a call: no array of all clients over there."""
    monkeypatch.setattr(jax_engine, "NUMBERS_PER_CALL", 50)
    problem, method = make("ridge", (9,) * 40, 7), fs.Scaffold(step_size=0.05, local_steps=3, cohort=10)
    moved: list[int] = []
    there: list[int] = []
    run_there, live = steps.local_models, cast(Callable[[], list[Any]], jax.live_arrays)

    def watched(**arguments: Any) -> Any:
        others = {id(leaf) for leaf in (*before, *jax.tree.leaves(arguments["table"]))}
        moved.append(arguments["xi"].size // problem.dim)
        local = run_there(**arguments)
        there.extend(array.size for array in live() if id(array) not in others)
        return local

    monkeypatch.setattr(steps, "local_models", watched)
    before = live()  # of other tests
    kept: list[Any] = []

    class Watched(fs.Scaffold):
        def update_clients(self, memory: Any, *rest: Any) -> Any:
            kept.append(super().update_clients(memory, *rest))
            return kept[-1]

    with_method = Watched(**vars(method))
    trace = fs.run(problem, with_method, rounds=4, batch_size=3, engine=fs.engines.Jax(clients_at_once=2))
    assert max(moved) == 6  # three chunks of two clients, 42 numbers
    assert sum(moved) == 4 * 12  # ten clients a round, the second call filled up
    assert max(there) <= 50
    assert all(type(memory.xi) is np.ndarray for memory in kept)
    assert np.abs(trace.control_variates).max() > 0


def squares(params: Any, batch: Any) -> Any:
    return jnp.mean((batch[0] @ params - batch[1]) ** 2)


def test_another_run_with_the_same_loss_and_shapes_compiles_nothing(caplog: pytest.LogCaptureFixture) -> None:
    with jax.log_compiles(), caplog.at_level(logging.WARNING):
        for seed in range(3):
            clients = list(zip(*tables("ridge", SIZES, 4, seed=seed), strict=True))
            problem = fs.problems.Differentiable(squares, np.zeros(4), clients, l2=0.1)
            fs.run(problem, METHODS["Scaffold"], rounds=2, batch_size=3, seed=seed, engine="jax", record=("loss",))
    compiled = [r.getMessage() for r in caplog.records if "Compiling jit(local_models)" in r.getMessage()]
    assert len(compiled) == 1


def test_jax_settings_stay_as_they_are() -> None:
    before = jax.config.jax_enable_x64
    assert jnp.zeros(1).dtype == ("float64" if before else "float32")
    fs.run(PROBLEMS["ridge"](), METHODS["Scaffold"], rounds=1, batch_size=3, engine="jax")
    assert jax.config.jax_enable_x64 == before
    assert jnp.zeros(1).dtype == ("float64" if before else "float32")


@pytest.mark.parametrize(
    "kind", [k if k == "logistic" else pytest.param(k, marks=pytest.mark.slow) for k in PROBLEMS]
)
def test_single_precision_to_its_own_accuracy(kind: str) -> None:
    problem, method = PROBLEMS[kind](), METHODS["Scaffold"]
    wide = fs.run(problem, method, rounds=2, batch_size=3, engine="jax")
    narrow = fs.run(problem, method, rounds=2, batch_size=3, engine=fs.engines.Jax(dtype="float32"))
    gap = np.abs(narrow.theta - wide.theta).max() / np.abs(wide.theta).max()
    assert 0 < gap < 2e-6


def test_a_run_goes_on_from_its_checkpoint_to_the_same_bits(tmp_path: Path) -> None:
    problem, method, file = PROBLEMS["logistic"](), METHODS["cohorts"], tmp_path / "run.npz"
    whole = fs.run(problem, method, rounds=6, batch_size=3, engine="jax")
    fs.run(problem, method, rounds=3, batch_size=3, engine="jax", checkpoint=file)
    rest = fs.run(problem, method, rounds=6, batch_size=3, engine="jax", checkpoint=file)
    assert rest.theta.tobytes() == whole.theta.tobytes()
    assert rest.provenance["engine"] == "jax-float64-cpu"
    with pytest.raises(fs.CheckpointMismatch):
        fs.run(problem, method, rounds=6, batch_size=3, engine="native", checkpoint=file)


def test_what_it_cannot_do_is_refused() -> None:
    method = fs.Scaffold(step_size=0.01, local_steps=2)
    for problem in (systems(), fs.problems.GarnetTD(n_clients=2, states=5, dim=2)):
        with pytest.raises(fs.InvalidInput, match="jax engine has no gradient for"):
            fs.run(problem, method, rounds=1, batch_size=2, engine="jax")
    with pytest.raises(fs.InvalidInput, match="JAX has no device 'tpu' here"):
        fs.run(PROBLEMS["ridge"](), method, rounds=1, engine=fs.engines.Jax(device="tpu"))
    with pytest.raises(fs.InvalidInput, match="clients_at_once must be a whole number"):
        fs.engines.Jax(clients_at_once=0)
    with pytest.raises(fs.InvalidInput, match="dtype must be one of"):
        fs.engines.Jax(dtype="float16")  # type: ignore[arg-type]


def test_without_jax_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jax", None)
    with pytest.raises(fs.MissingDependency, match=r"pip install 'fedscaffold\[jax\]'"):
        fs.run(PROBLEMS["ridge"](), METHODS["Scaffold"], rounds=1, batch_size=2, engine="jax")
    with pytest.raises(fs.MissingDependency, match=r"pip install 'fedscaffold\[jax\]'"):
        fs.problems.Differentiable(lambda params, batch: 0.0, np.zeros(1), [np.zeros(1)])


def test_the_command_line_hands_over_the_precision() -> None:
    assert engine_of("jax:dtype=float32") == fs.engines.Jax(dtype="float32")
