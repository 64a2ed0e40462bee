"""What every problem does alike: θ* is found once, and problems are shown, compared and copied without harm."""

import copy
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import fedscaffold as fs
from fedscaffold.core.types import Array
from fedscaffold.problems import (
    Differentiable,
    GarnetTD,
    LinearSA,
    Logistic,
    LogisticStream,
    Multinomial,
    Ridge,
    RidgeStream,
)

RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(4, 9, 2)), RNG.normal(size=(4, 9))


def square_loss(params: Any, batch: Any) -> Any:
    import jax.numpy as jnp

    x, y = batch
    return jnp.mean((x @ params - y) ** 2)


MAKE: dict[str, Callable[[], Any]] = {
    "Ridge(n_clients=4, dim=2, n_records=36, l2=0.1)": lambda: Ridge(X, Y, l2=0.1),
    "Logistic(n_clients=4, dim=2, n_records=36, l2=0.1)": lambda: Logistic(X, np.sign(Y), l2=0.1),
    "Multinomial(n_clients=4, dim=6, n_records=36, l2=0.1)": lambda: Multinomial(
        X, RNG.integers(0, 3, size=Y.shape), n_classes=3, l2=0.1
    ),
    "RidgeStream(n_clients=4, dim=2, l2=0.1, seed=3)": lambda: RidgeStream(n_clients=4, dim=2, l2=0.1, seed=3),
    "LogisticStream(n_clients=4, dim=2, l2=0.01, seed=0)": lambda: LogisticStream(n_clients=4, dim=2),
    "LinearSA(n_clients=4, dim=2, n_records=4)": lambda: LinearSA(
        np.broadcast_to(np.eye(2), (4, 1, 2, 2)), RNG.normal(size=(4, 1, 2))
    ),
    "GarnetTD(n_clients=4, dim=2, n_records=40)": lambda: GarnetTD(n_clients=4, states=5, dim=2),
    "Differentiable(n_clients=4, dim=2, n_records=36, l2=0.1)": lambda: Differentiable(
        square_loss, np.zeros(2), list(zip(X, Y, strict=True)), l2=0.1
    ),
}


@pytest.fixture(params=MAKE)
def shown(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_repr_is_one_line(shown: str) -> None:
    assert repr(MAKE[shown]()) == shown


def test_html_is_a_table_of_what_describes_the_problem(shown: str) -> None:
    problem = MAKE[shown]()
    text = problem._repr_html_()
    assert text.startswith("<table>")
    assert text.endswith("</table>")
    for name, value in problem.describe().items():
        assert f'<th scope="row">{name}</th>' in text
        assert isinstance(value, str | list) or f"<td>{value}</td>" in text


def test_equality_is_identity_and_never_fails(shown: str) -> None:
    problem = MAKE[shown]()
    assert problem == problem
    assert problem != MAKE[shown]()
    assert problem != "ridge"


def test_optimum_is_kept_and_read_only(shown: str) -> None:
    problem = MAKE[shown]()
    theta = problem.optimum()
    assert problem.optimum() is theta
    with pytest.raises(ValueError, match="read-only"):
        theta[0] = 1.0


def test_copies_find_their_own_optimum(shown: str) -> None:
    problem = MAKE[shown]()
    theta = problem.optimum()
    for other in (copy.copy(problem), pickle.loads(pickle.dumps(problem))):
        assert other.optimum() is not theta
        np.testing.assert_array_equal(other.optimum(), theta)


@pytest.mark.parametrize("shown", [name for name in MAKE if not name.startswith(("LinearSA", "GarnetTD"))])
def test_a_subset_has_its_own_optimum(shown: str) -> None:
    problem = MAKE[shown]()
    whole, part = problem.optimum(), problem.subset([1, 2])
    assert np.abs(part.gradient(part.optimum())).max() < 1e-9
    assert np.abs(part.optimum() - whole).max() > 1e-3


def test_many_runs_solve_for_the_optimum_once() -> None:
    calls = []

    class Counting(Ridge):
        def hessian(self, theta: Array) -> Array:
            calls.append(theta)
            return super().hessian(theta)

    problem = Counting(X, Y, l2=0.1)
    method = fs.Scaffold(step_size=0.1, local_steps=2)
    fs.run(problem, method, rounds=1, engine="reference")
    first = len(calls)
    assert first > 0
    fs.run(problem, method, rounds=1, engine="reference")
    assert len(calls) == first
    problem.subset([0, 1]).optimum()
    assert len(calls) > first
