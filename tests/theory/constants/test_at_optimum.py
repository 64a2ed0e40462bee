"""Constants of differentiable losses: those of ridge and logistic regression, and Poisson's by hand."""

from dataclasses import replace
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import fedscaffold as fs
from fedscaffold import InvalidInput, theory
from fedscaffold.core.random.stream import Sampling
from fedscaffold.problems import Differentiable
from tests.problems.test_differentiable import margin_pair, network
from tests.problems.test_multinomial import rows
from tests.samples import make, tables

SIZES = (4, 6, 5)
EXACT = ("zeta1", "zeta2", "noise_at_optimum", "noise_variance_at_optimum", "mu_at_optimum", "L_at_optimum")


def squares(params: Any, batch: Any) -> Any:
    return 0.5 * jnp.mean((batch[0] @ params - batch[1]) ** 2)


@pytest.mark.parametrize("sampling", ["with_replacement", "without_replacement"])
@pytest.mark.parametrize("batch_size", [None, 1, 3])
def test_ridge_has_the_constants_that_it_has_by_formula(batch_size: int | None, sampling: Sampling) -> None:
    """All of them, since its second derivatives are the same everywhere."""
    weights = [1.0, 2.0, 3.0]
    own = Differentiable(
        squares, np.zeros(3), list(zip(*tables("ridge", SIZES, 3), strict=True)), l2=0.1, weights=weights
    )
    found = vars(theory.constants(own, batch_size=batch_size, sampling=sampling))
    wanted = vars(
        theory.constants(make("ridge", SIZES, 3, weights=weights), batch_size=batch_size, sampling=sampling)
    )
    assert set(found.pop("local")) == set(found) - {"design_effect"}  # which the weights alone determine
    assert found == pytest.approx({name: wanted[name] for name in found}, rel=1e-10, abs=1e-14)


@pytest.mark.slow
def test_logistic_regression_has_its_constants_at_the_optimum_and_less_than_those_of_everywhere() -> None:
    found, wanted = (theory.constants(problem, batch_size=2) for problem in margin_pair())
    for name in EXACT:
        assert getattr(found, name) == pytest.approx(getattr(wanted, name), rel=1e-10)
    for name in ("L", "L_record", "Q", "G", "beta", "noise_lipschitz2"):
        assert 0.3 * getattr(wanted, name) < getattr(found, name) < getattr(wanted, name)
    assert found.mu == found.mu_at_optimum > wanted.mu


def poisson(params: Any, batch: Any) -> Any:
    """Mean of exp(z) − y z."""
    z = batch["x"] @ params
    return jnp.mean(jnp.exp(z) - batch["y"] * z)


def counts(d: int = 30, N: int = 10, n: int = 80) -> fs.problems.Differentiable:
    """Clients whose counts follow models of their own."""
    rng = np.random.default_rng(0)
    clients = []
    for _ in range(N):
        x = rng.normal(size=(n, d)) * rng.uniform(0.5, 1.5, size=d) / np.sqrt(d)
        clients.append({"x": x, "y": rng.poisson(np.exp(x @ (0.7 * rng.normal(size=d)))).astype(float)})
    return fs.problems.Differentiable(poisson, np.zeros(d), clients, l2=0.1)


@pytest.mark.slow
def test_poisson_regression_with_twelve_parameters_by_hand() -> None:
    """f_c'' = Xᵀ diag(e^z) X/n + l2, a record's curvature is e^z ‖x‖², its gradient (e^z − y) x."""
    problem, B = counts(d=12, N=3, n=40), 5
    found = theory.constants(problem, batch_size=B)
    theta = problem.optimum()
    hessians, slopes, variances, smooth, record = [], [], [], [], []
    for c in range(problem.n_clients):
        part = slice(problem.offsets[c], problem.offsets[c + 1])
        x, y = problem.records["x"][part], problem.records["y"][part]
        rate = np.exp(x @ theta)
        hessians.append(x.T @ (rate[:, None] * x) / len(x) + 0.1 * np.eye(12))
        gradients = (rate - y)[:, None] * x
        slopes.append(gradients.mean(axis=0) + 0.1 * theta)
        variances.append(np.trace(np.cov(gradients.T, bias=True)) / B)
        record.append((rate * (x**2).sum(axis=1)).max() + 0.1)
        smooth.append(record[-1] / B + (1 - 1 / B) * np.linalg.eigvalsh(hessians[-1])[-1])
    eigenvalues = np.linalg.eigvalsh(hessians)
    wanted = {
        "mu": eigenvalues.min(),
        "L_at_optimum": eigenvalues.max(),
        "L": max(smooth),
        "L_record": max(record),
        "zeta1": np.sqrt(np.mean(np.square(slopes).sum(axis=1))),
        "noise_variance_at_optimum": max(variances),
    }
    assert {name: getattr(found, name) for name in wanted} == pytest.approx(wanted, rel=1e-9)


def quartic(params: Any, batch: Any) -> Any:
    """With third and fourth derivatives in all directions."""
    z = batch[0] @ params
    return jnp.mean(jnp.exp(z) - batch[1] * z + 0.3 * z**4 + 0.2 * (params[0] - z) ** 4)


def test_third_and_fourth_derivatives_are_the_largest_over_all_directions() -> None:
    X, y = tables("ridge", (9, 7), 2)
    problem = Differentiable(quartic, np.zeros(2), list(zip(X, y, strict=True)), l2=0.1)
    theta, step = np.array([0.4, -0.3]), 1e-5
    third, fourth = problem.client_derivative_norms(theta)
    angles = np.linspace(0, np.pi, 721)
    units = np.stack([np.cos(angles), np.sin(angles)], axis=1)

    def twice(point: Any, u: Any) -> Any:
        return problem.client_third_derivatives(point, np.outer(u, u))

    norms = [np.linalg.norm(twice(theta, u), axis=1) for u in units]
    np.testing.assert_allclose(third, np.max(norms, axis=0), rtol=1e-4)
    changes = [(twice(theta + step * u, u) - twice(theta - step * u, u)) / (2 * step) for u in units[::4]]
    np.testing.assert_allclose(fourth, np.max(np.linalg.norm(changes, axis=2), axis=0), rtol=1e-3)


def test_hessians_of_records_come_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    problem, _ = margin_pair()
    theta = np.linspace(-1, 1, 5)
    monkeypatch.setattr("fedscaffold.problems.differentiable.NUMBERS_AT_ONCE", 7 * 25)
    pieces = list(problem.record_hessians(1, theta))
    assert [len(piece) for piece in pieces] == [7, 7, 3]
    np.testing.assert_allclose(
        np.concatenate(pieces).mean(axis=0), problem.client_hessians(theta)[1], rtol=0, atol=1e-14
    )


def test_what_is_known_at_the_optimum_proves_nothing() -> None:
    problem, known = margin_pair()
    found = theory.constants(problem, batch_size=2)
    setting: dict[str, Any] = {"target": 0.5, "n_clients": 4, "squared_error": 1.0}
    with pytest.raises(InvalidInput, match="these are about θ\\* only; if you can vouch"):
        theory.bounds.complexity(found, **setting)
    vouched = theory.bounds.complexity(replace(found, local=()), **setting)
    assert vouched.rounds <= theory.bounds.complexity(theory.constants(known, batch_size=2), **setting).rounds
    with pytest.raises(InvalidInput, match="constants that hold for all θ"):
        fs.plan(problem, target_mse=0.1, batch_size=2, mode="certified")


def test_refusals() -> None:
    with pytest.raises(InvalidInput, match="not for multinomial"):
        theory.constants(fs.problems.Multinomial(*rows(3, 2), l2=0.1), batch_size=2)
    with pytest.raises(InvalidInput, match="Newton's method found no optimum"):
        theory.constants(network(), batch_size=2)

    def saddle(params: Any, batch: Any) -> Any:
        return jnp.mean(batch * params[0] ** 2) + params[1] ** 2

    torn = Differentiable(saddle, np.ones(2), [-np.ones(4), 3.0 * np.ones(4)])
    with pytest.raises(InvalidInput, match="client 0's loss curves downwards"):
        theory.constants(torn, batch_size=2)
