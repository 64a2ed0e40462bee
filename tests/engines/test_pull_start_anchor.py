"""Local steps that pull to their start, begin at the clients' own models, or subtract gradients at an anchor."""

from typing import Any

import numpy as np
import pytest

import fedscaffold as fs
from fedscaffold.core.random.stream import Batches
from fedscaffold.core.types import Array
from tests.samples import make, systems, weighted

DIM, GAMMA, H, PULL = 3, 0.1, 7, 0.8
PROBLEMS: dict[str, Any] = {
    "ridge": lambda: make("ridge", (8, 11, 5), DIM, n_unpenalised=1),
    "logistic": lambda: make("logistic", (8, 11, 5), DIM, n_unpenalised=2),
    "poisson": lambda: weighted("poisson", (8, 11, 5), DIM, n_unpenalised=1),
    "multinomial": lambda: weighted("multinomial", (8, 11, 5), DIM),
    "linear systems": lambda: systems((8, 11, 5), DIM),
    "stream": lambda: fs.problems.RidgeStream(n_clients=3, dim=DIM, l2=0.1),
}
ENGINES = {"ridge": ("native", "jax"), "logistic": ("native", "jax"), "multinomial": ("native", "jax")}
ANCHORED = ("ridge", "logistic", "poisson")  # by the native engine


def local_models(problem: Any, engine: str, batch_size: int | None = 3, **options: Any) -> Array:
    rng = np.random.default_rng(0)
    theta = options.pop("theta", 0.3 * rng.normal(size=(2, problem.dim)))
    xi = 0.3 * rng.normal(size=(2, 3, problem.dim))
    with fs.engines.choose_engine(engine).open(problem, Batches(batch_size), seed=5) as local_sgd:
        return local_sgd(theta, xi, step_size=GAMMA, local_steps=H, round=4, **options)


@pytest.mark.parametrize("name", PROBLEMS)
def test_engines_agree_on_pull_and_own_starts(name: str) -> None:
    problem = PROBLEMS[name]()
    start = 0.3 * np.random.default_rng(1).normal(size=(2, 3, problem.dim))
    wanted = local_models(problem, "reference", theta=start, pull=PULL)
    for engine in ENGINES.get(name, ("native",)):
        np.testing.assert_allclose(
            local_models(problem, engine, theta=start, pull=PULL), wanted, rtol=0, atol=1e-13
        )


@pytest.mark.parametrize("name", ANCHORED)
@pytest.mark.parametrize("batch_size", [3, None])
def test_engines_agree_on_anchors(name: str, batch_size: int | None) -> None:
    problem = PROBLEMS[name]()
    anchor = 0.3 * np.random.default_rng(2).normal(size=(2, problem.dim))
    wanted = local_models(problem, "reference", batch_size, anchor=anchor, pull=PULL)
    for engine in ENGINES.get(name, ("native",)):
        found = local_models(problem, engine, batch_size, anchor=anchor, pull=PULL)
        np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-13)


def test_by_hand() -> None:
    """θ_c − γ(g_c(θ_c) − g_c(a) + ξ_c + λ(θ_c − start)), written out for one client without noise."""
    problem = make("logistic", (8,), DIM)
    rng = np.random.default_rng(3)
    start, anchor, xi = (rng.normal(size=DIM) for _ in range(3))
    local = start.copy()
    for _ in range(4):
        gradients = [problem.client_gradients(theta)[0] for theta in (local, anchor)]
        local = local - GAMMA * (gradients[0] - gradients[1] + xi + PULL * (local - start))
    with fs.engines.Reference().open(problem, Batches(), seed=0) as local_sgd:
        found = local_sgd(
            start[None], xi[None, None], step_size=GAMMA, local_steps=4, round=0, pull=PULL, anchor=anchor[None]
        )
    np.testing.assert_allclose(found[0, 0], local, rtol=0, atol=1e-14)


@pytest.mark.parametrize("name", ["multinomial", "linear systems", "stream"])
def test_native_says_where_it_takes_no_anchor(name: str) -> None:
    problem = PROBLEMS[name]()
    with pytest.raises(fs.InvalidInput, match="anchor"):
        local_models(problem, "native", anchor=np.zeros((2, problem.dim)))


@pytest.mark.parametrize("name", ["multinomial", "linear systems"])
@pytest.mark.parametrize(
    "method",
    [
        fs.LocalSvrg(step_size=GAMMA, local_steps=2),
        fs.VRProxSkip(step_size=GAMMA, communication_probability=0.5),
        fs.ServerOptimizer(
            method=fs.LocalSvrg(step_size=GAMMA, local_steps=2), optimizer="sgd", learning_rate=0.5
        ),
    ],
    ids=lambda method: method.kind,
)
def test_auto_takes_an_engine_that_takes_the_anchor(name: str, method: Any) -> None:
    problem = PROBLEMS[name]()
    found, wanted = (
        fs.run(problem, method, rounds=2, batch_size=3, engine=engine, theta0=np.ones(problem.dim)).theta
        for engine in ("auto", "reference")
    )
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("name", PROBLEMS)
def test_auto_keeps_native_where_it_can(name: str) -> None:
    problem = PROBLEMS[name]()
    assert fs.engines.choose_engine("auto", problem).name == "native-float64"
    anchored = fs.engines.choose_engine("auto", problem, anchored=True).name
    assert anchored == ("native-float64" if name in ANCHORED else "reference")
