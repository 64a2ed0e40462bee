"""Kernels for one shape of small steps, with clients side by side, give the bits of the general kernel."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

import fedscaffold as fs
from fedscaffold.core.random.stream import Batches, Sampling
from fedscaffold.core.types import Array
from fedscaffold.engines.numba_.losses import RIDGE, table_loss
from fedscaffold.engines.numba_.machine_code.choose import LARGEST_BATCH, team_size
from fedscaffold.engines.numba_.small.steps import group_sizes
from fedscaffold.privacy import RecordLevel
from tests.samples import make, weighted

SIZES = (20, 31, 17, 25, 40, 18, 22)  # records of seven clients: the last team has places left
REPETITIONS, DIM = 3, 7
PRIVACY = RecordLevel(clip=0.5, noise_multiplier=0.8)
UNEQUAL = np.array([[5, 5, 5, 6, 0, 0, 9], [5, 5, 5, 5, 5, 5, 5], [1, 2, 3, 3, 3, 3, 3]])
SHAPES: dict[
    str, tuple[Callable[[], Any], int]
] = {  # of each size of a team one shape, with its problem and batch
    "four together": (partial(make, "logistic", SIZES, DIM), 1),
    "two together": (partial(make, "ridge", SIZES, DIM, n_unpenalised=2), 3),
    "one alone": (partial(make, "ridge", SIZES, DIM, n_unpenalised=1), 15),
    "two that wait for slopes": (partial(make, "logistic", SIZES, DIM, n_unpenalised=1), 10),
    "with weights": (partial(weighted, "poisson", SIZES, DIM), 2),
}
EVERY_BATCH: dict[str, tuple[Callable[[], Any], int]] = {
    f"{kind}, batches of {batch}": (partial(make, kind, SIZES, 20, n_unpenalised=batch % 3), batch)
    for kind in ("ridge", "logistic")
    for batch in range(1, LARGEST_BATCH + 1)
}


def models(problem: Any, batch: int, *, specialise: bool, sampling: Sampling, **options: Any) -> Array:
    """The clients' models after local steps from random θ and ξ."""
    rng = np.random.default_rng(0)
    cohorts = options.get("clients")
    shape = (REPETITIONS, len(SIZES) if cohorts is None else cohorts.shape[1], problem.dim)
    start, xi = 0.3 * rng.normal(size=shape), 0.3 * rng.normal(size=shape)
    theta = start if options.pop("own_starts", False) else start[:, 0]
    engine = fs.engines.Numba(
        threads=options.pop("threads", 1), specialise=specialise, dtype=options.pop("dtype", "float64")
    )
    privacy = options.pop("privacy", None)
    with engine.open(problem, Batches(batch, sampling), seed=5, first_client=2, privacy=privacy) as local_sgd:
        return local_sgd(theta, xi, step_size=0.1, round=4, **{"local_steps": 9, **options})


def assert_same(problem: Any, batch: int, *, sampling: Sampling = "with_replacement", **options: Any) -> None:
    special, general = (
        models(problem, batch, specialise=specialise, sampling=sampling, **options) for specialise in (True, False)
    )
    assert special.tobytes() == general.tobytes()


@pytest.mark.parametrize("name", [*SHAPES, *(pytest.param(name, marks=pytest.mark.slow) for name in EVERY_BATCH)])
def test_the_bits_are_those_of_the_general_kernel(name: str) -> None:
    make_problem, batch = {**SHAPES, **EVERY_BATCH}[name]
    problem = make_problem()
    assert_same(problem, batch)
    assert_same(problem, batch, sampling="without_replacement")
    assert_same(problem, batch, first_step=3, pull=0.8, own_starts=True)
    assert_same(problem, batch, local_steps=UNEQUAL)
    assert_same(problem, batch, clients=np.array([[5, 0, 3], [1, 1, 2], [6, 5, 4]]))
    assert_same(problem, batch, clients=np.array([[4]]), local_steps=1500)  # more draws than are made at once


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name == "two together" else pytest.mark.slow) for name in SHAPES]
)
def test_with_clipped_records_and_noise_the_bits_are_the_same_too(name: str) -> None:
    make_problem, batch = SHAPES[name]
    problem, plain = make_problem(), models(make_problem(), batch, specialise=False, sampling="with_replacement")
    private = models(problem, batch, specialise=True, sampling="with_replacement", privacy=PRIVACY)
    assert np.abs(private - plain).min() > 0.0
    for sampling in ("with_replacement", "without_replacement"):
        assert_same(problem, batch, sampling=sampling, privacy=PRIVACY, first_step=3, pull=0.8)
    assert_same(problem, batch, privacy=PRIVACY, local_steps=UNEQUAL)
    assert_same(problem, batch, privacy=PRIVACY, clients=np.array([[5, 0, 3], [1, 1, 2], [6, 5, 4]]))
    assert_same(problem, batch, privacy=PRIVACY, clients=np.array([[4]]), local_steps=1500)


@pytest.mark.slow
@pytest.mark.parametrize("dim", [1, 20, 32, 64, 100, 131])
def test_noise_of_any_number_of_features_has_the_same_bits(dim: int) -> None:
    assert_same(make("ridge", SIZES, dim), 5, privacy=PRIVACY, first_step=5, local_steps=77)


@pytest.mark.parametrize("specialise", [True, False])
def test_a_margin_that_is_no_number_is_not_clipped_to_one(specialise: bool) -> None:
    problem, start = make("ridge", SIZES, DIM, n_unpenalised=2), np.zeros((1, DIM))
    start[0, 0] = np.nan
    with fs.engines.Numba(specialise=specialise).open(problem, Batches(3), seed=5, privacy=PRIVACY) as local_sgd:
        found = local_sgd(start, np.zeros((1, len(SIZES), DIM)), step_size=0.1, local_steps=1, round=0)
    assert np.isnan(found).all()


def test_single_precision_gives_the_bits_of_its_general_kernel() -> None:
    assert_same(make("ridge", SIZES, DIM), 1, dtype="float32")


def test_the_shapes_above_have_every_size_of_a_team() -> None:
    sizes = [team_size(DIM, batch, table_loss(problem()) or 0) for problem, batch in SHAPES.values()]
    assert sizes == [4, 2, 1, 2, 2]
    assert team_size(1000, 1, RIDGE) == 2


def test_batches_are_divided_as_in_the_general_kernel() -> None:
    assert [group_sizes(batch) for batch in (1, 3, 7, 8, 10, 23)] == [
        [1], [2, 1], [4, 2, 1], [8], [8, 2], [8, 8, 4, 2, 1],
    ]  # fmt: skip
