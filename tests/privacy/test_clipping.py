"""What one record can change: never more than twice the clip, whatever the record, the model and the engine."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fedscaffold as fs
from fedscaffold.core.random.stream import Batches
from fedscaffold.engines import Reference, choose_engine

N, D, CLASSES = 8, 3, 3
KINDS = ("ridge", "logistic", "poisson", "gamma", "multinomial")
SIZES = (0.0, 1e-300, 1e-170, 1e-3, 1.0, 50.0, 1e3, 1e160, 1e200)
EXTREME = [-1e308, -1e200, -800.0, -1.0, 0.0, 1e-320, 1.0, 800.0, 1e200, 1e308]


def problem(kind: str, x: Any, y: Any, l2: float, **columns: Any) -> Any:
    """A problem of one client with an intercept that is not penalised."""
    x = np.asarray(x, float)
    y = np.abs(y) + (kind == "gamma") * 0.1 if kind in ("poisson", "gamma") else np.asarray(y, float)
    options = {"l2": l2, "n_unpenalised": 1, **columns}
    if kind == "multinomial":
        return fs.problems.Multinomial([x], [np.abs(y).astype(int) % CLASSES], n_classes=CLASSES, **options)
    if kind == "logistic":
        y = np.where(y > 0, 1.0, -1.0)
    makers: dict[str, Any] = {
        "ridge": fs.problems.Ridge, "logistic": fs.problems.Logistic, "poisson": fs.problems.Poisson,
        "gamma": fs.problems.Gamma,
    }  # fmt: skip
    return makers[kind]([x], [y], **options)


def numbers(*values: float) -> Any:
    return st.sampled_from(values) | st.floats(-3.0, 3.0, allow_subnormal=False)  # which some libraries switch off


@st.composite
def neighbours(draw: Any) -> tuple[Any, Any, Any, float]:
    """Two problems of which one record differs, a model, and a clip."""
    kind = draw(st.sampled_from(KINDS))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    x, y = rng.normal(size=(N, D)), rng.integers(-3, 4, size=N).astype(float)
    columns = [{}, {"sample_weight": [rng.uniform(0.1, 9.0, N)], "offset": [rng.normal(size=N)]}]
    chosen: dict[str, Any] = dict(draw(st.sampled_from(columns)))
    if kind == "multinomial":
        chosen.pop("offset", None)
    pair = []
    for _ in range(2):
        x, y = x.copy(), y.copy()
        x[3] = draw(st.sampled_from(SIZES)) * np.array(
            draw(st.lists(st.floats(-1, 1, allow_subnormal=False), min_size=D, max_size=D))
        )
        y[3] = draw(st.sampled_from([-1e150, -2.0, 0.0, 1.0, 2.0, 1e150])) if kind != "multinomial" else y[3]
        pair.append(problem(kind, x, y, 0.1, **chosen))
        chosen = {name: [value[0].copy()] for name, value in chosen.items()}
        for value in chosen.values():
            value[0][3] = draw(st.sampled_from([0.5, 3.0, 100.0]))
    theta = np.array(draw(st.lists(numbers(*EXTREME), min_size=pair[0].dim, max_size=pair[0].dim)))
    return pair[0], pair[1], theta, draw(st.sampled_from([1e-3, 1.0, 40.0]))


@given(neighbours())
@settings(deadline=None, max_examples=400)
def test_one_record_changes_the_sum_of_clipped_gradients_by_twice_the_clip_at_most(case: Any) -> None:
    one, other, theta, clip = case
    rows = np.arange(N)
    with np.errstate(over="ignore", invalid="ignore"):
        sums = [N * (p.clipped_gradient(0, theta, rows, clip) - p.penalty * theta) for p in (one, other)]
    if np.abs(one.penalty * theta).max() > 1e3 * clip:  # rounds the gradient away
        still = [p.clipped_gradient(0, theta, rows, clip) for p in (one, other)]
        assert np.isfinite(still).all()
        return
    assert np.isfinite(sums).all()
    rounding = 1e-12 * np.abs(one.penalty * theta).max()
    assert np.linalg.norm(sums[0] - sums[1]) <= 2.0 * clip * (1.0 + 1e-12) + rounding


@pytest.mark.parametrize("engine", ["reference", "native", "jax"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [1e-170, 1.0, 1e3, 1e200])
def test_a_record_of_any_size_in_every_engine(kind: str, size: float, engine: str) -> None:
    """A step of size 1 on all records, without noise and penalty, tells the mean of clipped gradients."""
    if engine == "jax":
        pytest.importorskip("jax")
    rng = np.random.default_rng(1)
    found = []
    for seed in (1, 2):
        x, y = np.random.default_rng(0).normal(size=(N, D)), np.arange(N) % 3 - 1.0
        rng = np.random.default_rng(seed)
        x[3], y[3] = size * rng.normal(size=D), rng.integers(0, 3)
        found.append(problem(kind, x, y, 0.0))
    privacy = fs.privacy.RecordLevel(clip=0.5, noise_multiplier=0.0)
    moved = []
    for one in found:
        theta = np.full((1, one.dim), 0.25)
        with choose_engine(engine).open(one, Batches(), seed=0, privacy=privacy) as local_sgd:
            after = local_sgd(theta, np.zeros((1, 1, one.dim)), step_size=1.0, local_steps=1, round=0)
        moved.append(N * (after[0, 0] - theta[0]))
    assert np.isfinite(moved).all()
    assert np.linalg.norm(moved[0] - moved[1]) <= 2.0 * 0.5 * (1.0 + 1e-12) + 1e-14


@pytest.mark.parametrize("kind", ["ridge", "logistic"])
@pytest.mark.parametrize("where", ["penalty", "correction"])
def test_no_large_number_swallows_the_noise(kind: str, where: str) -> None:
    """A server chooses θ and control variates: beside huge ones gradients round, and must round with their noise.

    The mean of clipped gradients is 0.45, the noise has standard deviation 0.1, and what is added to both is a
    multiple of 1 of which nothing smaller can be seen: without noise 0.45 would always round to 0.
    """
    x, y = np.ones((N, 1)), np.full(N, -1.0)
    make = fs.problems.Ridge if kind == "ridge" else fs.problems.Logistic
    one = make([x], [y], l2=0.5)
    privacy = fs.privacy.RecordLevel(clip=0.45, noise_multiplier=0.1 * N / 0.45)
    theta = np.full((1, 1), 2.0**53 if where == "penalty" else 0.0)
    correction = np.full((1, 1, 1), 2.0**52 if where == "correction" else 0.0)
    with Reference(secret_noise=True).open(one, Batches(), seed=0, privacy=privacy) as local_sgd:
        seen = {
            float(local_sgd(theta, correction, step_size=64.0, local_steps=1, round=0)[0, 0, 0])
            for _ in range(100)
        }
    assert len(seen) > 1


@pytest.mark.parametrize("kind", KINDS)
def test_parts_of_a_problem_are_clipped_by_their_own_records(kind: str) -> None:
    """Norms of records are kept with a problem, and must not be those of another one."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(3, N, D)) * [[[1.0]], [[10.0]], [[0.1]]], rng.normal(size=(3, N))
    whole = problem(kind, x[0], y[0], 0.1)
    parts = [problem(kind, one, target, 0.1) for one, target in zip(x, y, strict=True)]
    together = whole.with_records(
        x=np.concatenate([one.x for one in parts]), y=np.concatenate([one.y for one in parts]),
        offsets=N * np.arange(4), weights=np.ones(3),
    )  # fmt: skip
    theta, rows = rng.normal(size=whole.dim), np.arange(N)
    assert whole.clipped_gradient(0, theta, rows, 0.2).shape == theta.shape
    for c, part in enumerate(parts):
        expected = part.clipped_gradient(0, theta, rows, 0.2)
        for found in (
            together.clipped_gradient(c, theta, rows, 0.2),
            together.clipped_gradient(c, theta, rows[::-1].copy(), 0.2),
            together.subset([c]).clipped_gradient(0, theta, rows, 0.2),
            together.take_rows(np.arange(3 * N)).clipped_gradient(c, theta, rows, 0.2),
        ):
            np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-15)
