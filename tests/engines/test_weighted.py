"""Every family with offsets and sample weights: engines against the oracle and against each other."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import expit

import fedscaffold as fs
from fedscaffold.core.random.stream import Batches, Sampling
from fedscaffold.engines import Jax, Native, Reference
from tests import naive
from tests.engines.test_agreement import assert_close, both
from tests.samples import WEIGHTED_KINDS, weighted

SIZES, DIM, L2, WEIGHTS = (5, 9, 3, 6), 3, 0.2, (1.0, 2.0, 0.5, 3.0)
GAMMA, H, T, SEED = 0.1, 4, 4, 2**40 + 17


def oracle_of(problem: Any) -> naive.Clients:
    """The problem as the oracle reads it."""
    parts = [slice(*ends) for ends in zip(problem.offsets[:-1], problem.offsets[1:], strict=True)]
    y = [problem.y[part] for part in parts]
    return naive.Clients(
        problem.kind,
        [problem.x[part].tolist() for part in parts],
        [own[:, 0].tolist() for own in y],
        L2,
        problem.weights.tolist(),
        [[(float(o), float(s)) for o, s in own[:, 1:]] for own in y],
    )


ENGINES: dict[str, Any] = {"reference": Reference(), "native": Native(), "jax": Jax()}
BATCHES: list[tuple[int | None, Sampling]] = [
    (3, "with_replacement"), (3, "without_replacement"), (None, "with_replacement")
]  # fmt: skip


def compiles(engine: str, kind: str, number: int) -> bool:
    """Whether JAX compiles a second program for a loss that another case has: how batches are drawn is common."""
    return engine == "jax" and number > 0 and kind != "poisson"


@pytest.mark.parametrize(
    ("engine", "kind", "batch_size", "sampling"),
    [
        pytest.param(engine, kind, *batches, marks=[pytest.mark.slow] if compiles(engine, kind, number) else [])
        for engine in ENGINES
        for kind in WEIGHTED_KINDS
        for number, batches in enumerate(BATCHES)
    ],
)
def test_run_is_the_pseudo_code(engine: str, kind: str, batch_size: int | None, sampling: Sampling) -> None:
    problem = weighted(kind, SIZES, DIM, l2=L2, weights=WEIGHTS, seed=3)
    theta0 = np.random.default_rng(5).normal(size=problem.dim) / 2
    draw = naive.drawing(SEED, SIZES, batch_size, sampling)
    wanted = naive.scaffold(oracle_of(problem), draw, gamma=GAMMA, H=H, T=T, theta=theta0.tolist(), repetition=0)
    trace = fs.run(
        problem, fs.Scaffold(step_size=GAMMA, local_steps=H), rounds=T, batch_size=batch_size, sampling=sampling,
        seed=SEED, engine=ENGINES[engine], theta0=theta0,
    )  # fmt: skip
    np.testing.assert_allclose(trace.theta[0], wanted.theta, rtol=0, atol=1e-12)
    np.testing.assert_allclose(trace.control_variates[0], wanted.control_variates, rtol=0, atol=1e-11)


@given(
    kind=st.sampled_from(WEIGHTED_KINDS),
    sizes=st.lists(st.integers(1, 30), min_size=1, max_size=6),
    dim=st.sampled_from((1, 2, 7, 20)),
    batch_size=st.none() | st.integers(1, 40),
    local_steps=st.integers(1, 12),
    n_unpenalised=st.integers(0, 2),
    seed=st.integers(0, 2**64 - 1),
)
@settings(max_examples=20)
def test_any_shape(
    kind: str, sizes: list[int], dim: int, batch_size: int | None, local_steps: int, n_unpenalised: int, seed: int
) -> None:
    problem = weighted(
        kind, sizes, dim, weights=range(1, len(sizes) + 1), n_unpenalised=min(dim, n_unpenalised), seed=seed % 1000
    )
    fast, slow = both(
        problem, local_steps=local_steps, batch_size=batch_size, repetitions=2, seed=seed, record=("loss",)
    )
    assert_close(fast, slow, 1e-11)


@pytest.mark.parametrize("kind", [kind for kind in WEIGHTED_KINDS if kind != "multinomial"])
def test_long_vectors(kind: str) -> None:
    fast, slow = both(weighted(kind, (7, 3, 5), 5003), batch_size=3, record=("loss",))
    np.testing.assert_allclose(fast.theta, slow.theta, rtol=0, atol=1e-11 * np.abs(slow.theta).max())


@pytest.mark.parametrize(
    "kind", [k if k == "poisson" else pytest.param(k, marks=pytest.mark.slow) for k in WEIGHTED_KINDS]
)
def test_single_precision_to_its_own_accuracy(kind: str) -> None:
    fast, slow = both(weighted(kind, (20, 31, 40), 7), dtype="float32", local_steps=10, batch_size=10)
    gap = np.abs(fast.theta - slow.theta).max() / np.abs(slow.theta).max()
    assert 0 < gap < 4e-6


DERIVATIVES = {
    "ridge": lambda z, y: z - y,
    "logistic": lambda z, y: -y * expit(-y * z),
    "poisson": lambda z, y: np.exp(z) - y,
    "gamma": lambda z, y: 1.0 - y * np.exp(-z),
}


@pytest.mark.parametrize("kind", DERIVATIVES)
def test_derivatives_at_many_margins(kind: str) -> None:
    """ℓ' of single records x = (z, 1) at θ = (1, 0): the second coordinate of θ − γg is −γ s ℓ'(z + o)."""
    rng = np.random.default_rng(0)
    z = np.concatenate([np.linspace(-30, 30, 301), rng.normal(size=300)])
    o, s, y = rng.normal(size=z.size), rng.uniform(0, 3, size=z.size), rng.integers(1, 9, size=z.size) * 1.0
    y = np.sign(y - 4.5) if kind == "logistic" else y
    maker: Any = {
        "ridge": fs.problems.Ridge,
        "logistic": fs.problems.Logistic,
        "poisson": fs.problems.Poisson,
        "gamma": fs.problems.Gamma,
    }[kind]
    x = np.stack([z, np.ones_like(z)], axis=-1)[:, None, :]
    problem = maker(x, y[:, None], offset=o[:, None], sample_weight=s[:, None])
    with Native().open(problem, Batches(), seed=0) as local_sgd:
        local = local_sgd(np.array([[1.0, 0.0]]), np.zeros((1, 1, 2)), step_size=1.0, local_steps=1, round=0)
    wanted = s * DERIVATIVES[kind](z + o, y)
    np.testing.assert_allclose(-local[0, :, 1], wanted, rtol=1e-13, atol=1e-13 * np.abs(y).max())


def test_weights_of_one_and_offsets_of_zero_change_nothing() -> None:
    X, y = np.random.default_rng(0).normal(size=(3, 8, 4)), np.random.default_rng(1).normal(size=(3, 8))
    plain = fs.problems.Ridge(X, y, l2=0.1)
    other = fs.problems.Ridge(X, y, l2=0.1, sample_weight=np.ones((3, 8)), offset=np.zeros((3, 8)))
    method = fs.Scaffold(step_size=0.1, local_steps=5)
    first, second = (fs.run(p, method, rounds=4, batch_size=3) for p in (plain, other))
    np.testing.assert_allclose(second.theta, first.theta, rtol=0, atol=1e-14)
