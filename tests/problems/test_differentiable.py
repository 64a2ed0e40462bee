"""Problems of any differentiable loss: derivatives, runs and theory against problems that are known by formula."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

import fedscaffold as fs
from fedscaffold.core.random.stream import Batches
from fedscaffold.core.types import Array
from fedscaffold.problems import Differentiable
from tests.samples import make, tables

SIZES = (30, 17, 40, 25)


def softmax_loss(params: Any, batch: Any) -> Any:
    x, y = batch
    z = x @ params["classes"].T
    return jnp.mean(jax.nn.logsumexp(z, axis=1) - jnp.take_along_axis(z, y[:, None], axis=1)[:, 0])


def margin_loss(params: Any, batch: Any) -> Any:
    return jnp.mean(jnp.logaddexp(0.0, -batch["y"] * (batch["x"] @ params)))


def poisson_loss(params: Any, batch: Any) -> Any:
    x, y = batch
    z = x @ params["slope"] + params["intercept"]
    return jnp.mean(jnp.exp(z) - y * z)


def huber_loss(params: Any, batch: Any) -> Any:
    x, y = batch
    r = jnp.abs(x @ params - y)
    return jnp.mean(jnp.where(r < 1.0, 0.5 * r**2, r - 0.5))


def network_loss(params: Any, batch: Any) -> Any:
    x, y = batch
    hidden = jnp.tanh(x @ params["in"] + params["b"])
    return jnp.mean((hidden @ params["out"] - y) ** 2)


def softmax_pair(l2: float = 0.1) -> tuple[Differentiable, fs.problems.Multinomial]:
    rng = np.random.default_rng(0)
    X = [rng.normal(size=(n, 4)) * rng.uniform(0.5, 1.5) for n in SIZES]
    y = [rng.integers(0, 3, size=n) for n in SIZES]
    weights, clients = [1.0, 2.0, 3.0, 4.0], list(zip(X, y, strict=True))
    own = Differentiable(softmax_loss, {"classes": np.zeros((3, 4))}, clients, l2=l2, weights=weights)
    return own, fs.problems.Multinomial(X, y, l2=l2, weights=weights)


def margin_pair() -> tuple[Any, Any]:
    X, y = tables("logistic", SIZES, 5)
    clients = [{"x": a, "y": b} for a, b in zip(X, y, strict=True)]
    return Differentiable(margin_loss, np.zeros(5), clients, l2=0.1), make("logistic", SIZES, 5, l2=0.1)


def poisson(dim: int = 30, sizes: tuple[int, ...] = (60, 90, 80)) -> Differentiable:
    rng = np.random.default_rng(1)
    clients = []
    for n in sizes:
        x = rng.normal(size=(n, dim - 1)) / np.sqrt(dim)
        z = x @ rng.normal(size=dim - 1) + 0.5
        clients.append((x, rng.poisson(np.exp(z)).astype(float)))
    return Differentiable(poisson_loss, {"slope": np.zeros(dim - 1), "intercept": np.zeros(())}, clients, l2=0.05)


def huber(dim: int = 4) -> Differentiable:
    clients = list(zip(*tables("ridge", SIZES, dim), strict=True))
    return Differentiable(huber_loss, np.zeros(dim), clients, l2=0.1)


def network() -> Differentiable:
    rng = np.random.default_rng(0)
    params = {"in": rng.normal(size=(3, 5)), "b": np.zeros(5), "out": rng.normal(size=5)}
    return Differentiable(network_loss, params, list(zip(*tables("ridge", SIZES, 3), strict=True)))


# derivatives


def test_multinomial_regression_by_hand_and_by_jax() -> None:
    own, known = softmax_pair()
    rng = np.random.default_rng(0)
    theta, along = rng.normal(size=12), rng.normal(size=(12, 2))
    for name in ("loss", "gradient", "hessian", "client_losses", "client_gradients", "client_hessians"):
        np.testing.assert_allclose(getattr(own, name)(theta), getattr(known, name)(theta), rtol=0, atol=1e-14)
    for batches in ({"batch_size": 3}, {"batch_size": 3, "sampling": "without_replacement"}, {"batch_size": None}):
        found = own.client_noise_along(theta, along, **batches)
        wanted = known.client_noise_along(theta, along, **batches)
        np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-14)
    np.testing.assert_allclose(own.optimum(), known.optimum(), rtol=0, atol=1e-13)


def test_logistic_regression_by_hand_and_by_jax() -> None:
    own, known = margin_pair()
    rng = np.random.default_rng(0)
    theta, matrices = rng.normal(size=5), rng.normal(size=(4, 5, 5))
    for M in (matrices, matrices[0]):
        found, wanted = (problem.client_third_derivatives(theta, M) for problem in (own, known))
        np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-14)
    covariances = [
        problem.client_noise_covariances(theta, batch_size=4, sampling="without_replacement")
        for problem in (own, known)
    ]
    np.testing.assert_allclose(covariances[0], covariances[1], rtol=0, atol=1e-14)
    rows = np.array([3, 3, 0])
    np.testing.assert_allclose(
        own.batch_gradient(1, theta, rows), known.batch_gradient(1, theta, rows), rtol=0, atol=1e-15
    )


def test_pieces_do_not_change_the_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    own, known = softmax_pair()
    theta = np.linspace(-1, 1, 12)
    monkeypatch.setattr("fedscaffold.problems.differentiable.ROWS_AT_ONCE", 7)
    for name in ("loss", "gradient", "hessian"):
        np.testing.assert_allclose(getattr(own, name)(theta), getattr(known, name)(theta), rtol=0, atol=1e-14)


def test_smoothness_is_the_curvature_at_the_initial_parameters() -> None:
    X, y = tables("ridge", SIZES, 5)
    clients, truth = list(zip(X, y, strict=True)), fs.problems.Ridge(X, y, l2=0.1)

    def squares(params: Any, batch: Any) -> Any:
        return 0.5 * jnp.mean((batch[0] @ params - batch[1]) ** 2)

    own = Differentiable(squares, np.ones(5), clients, l2=0.1)
    for batches in (Batches(), Batches(1), Batches(7), Batches(5, "without_replacement")):
        found, wanted = own.smoothness(batches), truth.smoothness(batches)
        assert 0.995 * wanted < found < 1.0001 * wanted  # the power method comes from below


# runs

ALL: dict[str, Callable[[], Differentiable]] = {
    "multinomial": lambda: softmax_pair()[0],
    "poisson": poisson,
    "huber": huber,
    "network": network,
}


@pytest.mark.parametrize("batch_size", [3, pytest.param(None, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "kind", ["poisson", "network", *(pytest.param(k, marks=pytest.mark.slow) for k in ("multinomial", "huber"))]
)
def test_the_jax_engine_agrees_with_the_reference(kind: str, batch_size: int | None) -> None:
    problem, method = ALL[kind](), fs.Scaffold(step_size=0.05, local_steps=3, cohort=2)
    fast, slow = (
        fs.run(
            problem, method, rounds=4, batch_size=batch_size, repetitions=2, engine=name, theta0=problem.initial,
            record=("loss",),
        )
        for name in ("jax", "reference")
    )  # fmt: skip
    for name in ("theta", "control_variates", "loss"):
        np.testing.assert_allclose(getattr(fast, name), getattr(slow, name), rtol=0, atol=1e-12)


@pytest.mark.parametrize("batch_size", [5, None])
def test_multinomial_regression_runs_as_its_own_kernel_does(batch_size: int | None) -> None:
    own, known = softmax_pair()
    method = fs.Scaffold(step_size=0.1, local_steps=10)
    by_jax = fs.run(own, method, rounds=50, batch_size=batch_size, repetitions=2, engine="jax")
    compiled = fs.run(known, method, rounds=50, batch_size=batch_size, repetitions=2)
    np.testing.assert_allclose(by_jax.theta, compiled.theta, rtol=0, atol=1e-10)
    np.testing.assert_allclose(by_jax.mse, compiled.mse, rtol=0, atol=1e-10)


@pytest.mark.parametrize("make_problem", [pytest.param(poisson, marks=pytest.mark.slow), huber])
def test_without_noise_scaffold_reaches_the_optimum_and_fedavg_does_not(
    make_problem: Callable[[], Differentiable],
) -> None:
    problem = make_problem()
    assert np.abs(problem.gradient(problem.optimum())).max() < 1e-12
    ends = [
        fs.run(problem, kind(step_size=0.1, local_steps=20), rounds=200, engine="jax").mse[0, -1]
        for kind in (fs.Scaffold, fs.FedAvg)
    ]
    assert ends[0] < 1e-14
    assert ends[1] > 1e-5


def test_single_precision_serves_whole_number_labels() -> None:
    problem, method = softmax_pair()[0], fs.Scaffold(step_size=0.05, local_steps=5)
    wide, narrow = (
        fs.run(problem, method, rounds=2, batch_size=3, engine=fs.engines.Jax(dtype=dtype)).theta
        for dtype in ("float64", "float32")
    )
    assert 0 < np.abs(narrow - wide).max() / np.abs(wide).max() < 2e-6


def test_parameters_come_back_as_the_tree_that_they_were() -> None:
    problem = network()
    params = problem.unravel(problem.initial)
    with jax.enable_x64(True):
        np.testing.assert_array_equal(ravel_pytree(params)[0], problem.initial)
    assert {name: leaf.shape for name, leaf in params.items()} == {"in": (3, 5), "b": (5,), "out": (5,)}


def test_runs_start_from_the_parameters_that_the_problem_was_given(tmp_path: Path) -> None:
    """At zero this network has no gradient and stays there; `theta0` takes a vector or a tree."""
    problem, method = network(), fs.Scaffold(step_size=0.05, local_steps=4)
    settings: Any = {"rounds": 10, "batch_size": 3, "record": ("loss",)}
    trace = fs.run(problem, method, checkpoint=tmp_path / "run", **settings)
    assert trace.loss[0, 0] == problem.loss(problem.initial) != problem.loss(np.zeros(problem.dim))
    assert trace.theta.tolist() == fs.run(problem, method, theta0=problem.initial, **settings).theta.tolist()
    other = {name: leaf + 0.1 for name, leaf in problem.unravel(problem.initial).items()}
    tree, vector = (fs.run(problem, method, theta0=start, **settings) for start in (other, problem.initial + 0.1))
    assert tree.theta.tolist() == vector.theta.tolist() != trace.theta.tolist()
    assert fs.staged(problem, method, **settings).trace.loss[0, 0] == trace.loss[0, 0]
    with pytest.raises(fs.InvalidInput, match="theta0 must hold numbers"):
        fs.run(problem, method, theta0={"in": other["in"]}, **settings)
    with pytest.raises(fs.CheckpointMismatch, match="start differ"):
        fs.run(problem, method, theta0=np.zeros(problem.dim), checkpoint=tmp_path / "run", **settings)


# theory


@pytest.mark.slow
def test_first_order_plans_reach_their_target() -> None:
    problem = poisson(dim=6)
    plan = fs.plan(problem, target_mse=2e-3, batch_size=5, mode="first_order")
    trace = fs.run(problem, plan.method, rounds=plan.rounds, batch_size=5, repetitions=100, engine="jax")
    assert 0.7 * plan.predicted_mse < trace.mse[:, -1].mean() < 2e-3


def test_the_paper_s_expansion_is_that_of_logistic_regression() -> None:
    method = fs.Scaffold(step_size=0.01, local_steps=10)
    own, known = (fs.theory.expansion(problem, method, batch_size=4) for problem in margin_pair())
    np.testing.assert_allclose(own.cov_theta, known.cov_theta, rtol=1e-10)
    np.testing.assert_allclose(own.bias, known.bias, rtol=1e-9)


def test_a_sample_of_the_clients() -> None:
    own, known = softmax_pair()
    theta, some = np.linspace(-1, 1, 12), np.array([2, 0])
    np.testing.assert_allclose(own.subset(some).loss(theta), known.subset(some).loss(theta), rtol=1e-14)
    np.testing.assert_array_equal(own.subset(some).client_losses(theta), own.client_losses(theta)[some])


# identity


def bounded(scale: Any) -> Any:
    def loss(params: Any, batch: Any) -> Any:
        return jnp.mean((batch[0] @ params - batch[1]) ** 2) * jnp.mean(scale)

    return loss


def named_alike() -> Any:
    def loss(params: Any, batch: Any) -> Any:
        return jnp.mean((batch[0] @ params - batch[1]) ** 4)

    loss.__qualname__ = huber_loss.__qualname__
    return loss


def test_fingerprints_tell_problems_apart() -> None:
    X, y = tables("ridge", SIZES, 4)
    clients = list(zip(X, y, strict=True))

    def other(params: Any, batch: Any) -> Any:
        return jnp.mean((batch[0] @ params - batch[1]) ** 2)

    def digest(loss: Any = huber_loss, params: Array | None = None, which: Any = clients, **more: Any) -> str:
        return Differentiable(loss, np.zeros(4) if params is None else params, which, **more).fingerprint()

    changed = [(X[0] + 1e-9, y[0]), *clients[1:]]
    several = [digest(), digest(other), digest(params=np.ones(4)), digest(which=changed), digest(l2=0.1)]
    several.append(digest(weights=[1, 2, 3, 4]))
    several += [digest(bounded(1.0)), digest(bounded(2.0)), digest(bounded(np.ones(3)))]
    several.append(digest(named_alike()))
    assert len(set(several)) == len(several)
    assert digest() == several[0]
    assert digest(bounded(2.0)) == several[7]
    assert huber().describe()["loss"].endswith("huber_loss")


# refusals


def summed(params: Any, batch: Any) -> Any:
    return jnp.sum((batch[0] @ params - batch[1]) ** 2)


def normalised(params: Any, batch: Any) -> Any:
    x = (batch[0] - batch[0].mean(axis=0)) / (batch[0].std(axis=0) + 1.0)
    return jnp.mean((x @ params - batch[1]) ** 2)


def with_buffers(params: Any, batch: Any) -> Any:
    return jnp.mean((batch[0] @ params) ** 2), {"mean": batch[0].mean(axis=0)}


X2, Y2 = np.random.default_rng(0).normal(size=(6, 2)), np.ones(6)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((summed, np.ones(2), [(X2, Y2)]), "must be the mean over the batch"),
        ((normalised, np.ones(2), [(X2, Y2)]), "must be the mean over the batch"),
        ((with_buffers, np.ones(2), [(X2, Y2)]), "one floating-point number and nothing else"),
        ((lambda p, b: b[0] @ p, np.ones(2), [(X2, Y2)]), "one floating-point number and nothing else"),
        ((huber_loss, np.ones(3), [(X2, Y2)]), "failed on the first records"),
        ((lambda p, b: jnp.mean(jnp.log(-(p[0] ** 2) + 0 * b[1])), np.ones(2), [(X2, Y2)]), "is nan on the first"),
        ((huber_loss, np.ones(2, dtype=int), [(X2, Y2)]), "floating-point numbers only"),
        ((huber_loss, np.array([np.nan, 0]), [(X2, Y2)]), "params hold NaN"),
        ((huber_loss, {}, [(X2, Y2)]), "params hold no numbers"),
        ((huber_loss, np.ones(2), []), "there are no clients"),
        ((huber_loss, np.ones(2), 3), "one tree of arrays per client"),
        ((huber_loss, np.ones(2), [(X2, Y2), X2]), "every client needs the same arrays"),
        ((huber_loss, np.ones(2), [(X2, Y2[:5])]), "the first axis is the records"),
        ((huber_loss, np.ones(2), [(X2[:0], Y2[:0])]), "client 0 has no records"),
        ((huber_loss, np.ones(2), [(X2, Y2), (X2[:, :1], Y2)]), "all must agree"),
        ((huber_loss, np.ones(2), [(X2, Y2), (X2, Y2.astype(int))]), "all must agree"),
        ((huber_loss, np.ones(2), [(X2, Y2), (X2 * np.inf, Y2)]), "client 1's records hold NaN or infinity"),
        ((huber_loss, np.ones(2), [(X2, np.array(["a"] * 6))]), "must be numbers"),
        ((huber_loss, np.ones(2), [(X2, np.full(6, 2**31))]), r"below 2\*\*31"),
        (("huber", np.ones(2), [(X2, Y2)]), "loss must be a function"),
    ],
)
def test_what_makes_no_sense_is_refused(arguments: Any, message: str) -> None:
    with pytest.raises(fs.InvalidInput, match=message):
        Differentiable(*arguments)


def test_where_there_is_no_optimum_it_says_what_to_record() -> None:
    problem, method = network(), fs.FedAvg(step_size=0.01, local_steps=1)
    with pytest.raises(fs.InvalidInput, match=r"record=\('loss',\)"):
        fs.run(problem, method, rounds=1, engine="jax")
    many = Differentiable(huber_loss, np.zeros(2001), [(np.zeros((1, 2001)), np.ones(1))])
    with pytest.raises(fs.InvalidInput, match=r"record=\('loss',\)"):
        many.optimum()


def test_engines_that_cannot_run_it_name_the_one_that_can() -> None:
    with pytest.raises(fs.InvalidInput, match="use engine='jax'"):
        fs.run(huber(), fs.FedAvg(step_size=0.01, local_steps=1), rounds=1, engine="native")


def test_divergence_names_a_step_size_that_works() -> None:
    problem = poisson(dim=6)
    run = partial(fs.run, problem, rounds=60, batch_size=5, engine="jax")
    with pytest.raises(fs.Diverged, match="this is an estimate") as caught:
        run(fs.Scaffold(step_size=50.0, local_steps=10))
    safe = caught.value.safe_step_size
    trace = run(fs.Scaffold(step_size=safe, local_steps=10))
    assert trace.mse[0, -1] < 0.5 * trace.mse[0, 0]


def frozen(means: Array) -> Any:
    def loss(params: Any, batch: Any) -> Any:
        return jnp.mean(((batch[0] - means) @ params - batch[1]) ** 2)

    return loss


def layer_normalised(params: Any, batch: Any) -> Any:
    x = batch[0] - batch[0].mean(axis=1, keepdims=True)
    return jnp.mean((x / jnp.sqrt(jnp.mean(x**2, axis=1, keepdims=True) + 1e-3) @ params - batch[1]) ** 2)


@pytest.mark.parametrize("loss", [frozen(np.ones(4)), pytest.param(layer_normalised, marks=pytest.mark.slow)])
def test_normalisation_that_mixes_no_records_runs(loss: Any) -> None:
    problem = Differentiable(loss, np.zeros(4), list(zip(*tables("ridge", SIZES, 4), strict=True)), l2=0.1)
    method = fs.Scaffold(step_size=0.02, local_steps=5)
    fast, slow = (fs.run(problem, method, rounds=3, batch_size=3, engine=name) for name in ("jax", "reference"))
    np.testing.assert_allclose(fast.theta, slow.theta, rtol=0, atol=1e-12)
