"""Temporal differences on Garnet environments: the environments, their means, what is refused."""

from typing import Any

import numpy as np
import pytest

import fedscaffold as fs
from fedscaffold.core.random.draws import positions
from fedscaffold.core.random.stream import Stream
from fedscaffold.problems import GarnetTD
from fedscaffold.problems.linear import matrices, stationary
from tests import naive

SMALL: dict[str, Any] = {"n_clients": 4, "states": 9, "branching": 3, "dim": 4}


@pytest.mark.parametrize("shape", [(1, 1), (5, 1), (9, 3), (6, 6), (40, 2)])
@pytest.mark.parametrize("seed", range(3))
def test_environments(shape: tuple[int, int], seed: int) -> None:
    states, branching = shape
    chains = GarnetTD(n_clients=3, states=states, branching=branching, dim=1, seed=seed).chains
    for row in chains.successors:
        assert len(set(row.tolist())) == branching
    full = matrices(chains)
    np.testing.assert_allclose(full.sum(axis=2), 1.0, rtol=1e-14)
    assert (chains.kernel > 0).all()
    reach = np.linalg.matrix_power(np.eye(states) + (full[0] > 0), states)
    assert (reach > 0).all()  # every state from every state
    assert (chains.rewards >= 0).all()
    assert (chains.rewards <= 1).all()
    np.testing.assert_allclose(np.linalg.norm(chains.features, axis=1), 1.0, rtol=1e-14)


@pytest.mark.parametrize("branching", [1, 2, 5])
def test_stationary_laws(branching: int) -> None:
    chains = GarnetTD(n_clients=3, states=9, branching=branching, dim=2, heterogeneity=1.0).chains
    law = stationary(chains)
    np.testing.assert_allclose(np.einsum("cs,cst->ct", law, matrices(chains)), law, rtol=0, atol=1e-15)
    for c in range(3):
        environment = naive.Environment(
            chains.successors.tolist(), chains.kernel[c].tolist(), chains.rewards[c].tolist()
        )
        np.testing.assert_allclose(law[c], naive.stationary_law(environment), rtol=0, atol=1e-14)


def test_the_optimum_is_the_value_function_where_features_can_hold_it() -> None:
    """With as many features as states and clients alike, Φθ* = (I − λP)⁻¹ r exactly."""
    problem = GarnetTD(n_clients=2, states=7, dim=7, discount=0.8, heterogeneity=0.0)
    chains = problem.chains
    value = np.linalg.solve(np.eye(7) - 0.8 * matrices(chains)[0], chains.rewards[0])
    np.testing.assert_allclose(chains.features @ problem.optimum(), value, rtol=1e-10)


def test_means_are_the_formulas_of_projected_temporal_differences() -> None:
    """Ā_c = Φᵀ D_c (I − λP_c) Φ and b̄_c = Φᵀ D_c r_c."""
    problem = GarnetTD(**SMALL, discount=0.7, weights=[1, 2, 3, 4])
    phi, full = problem.chains.features, matrices(problem.chains)
    for c in range(4):
        D = np.diag(problem.stationary[c])
        A, b = phi.T @ D @ (np.eye(9) - 0.7 * full[c]) @ phi, phi.T @ D @ problem.chains.rewards[c]
        np.testing.assert_allclose(problem.client_matrices[c], A, rtol=0, atol=1e-15)
        np.testing.assert_allclose(problem.client_vectors[c], b, rtol=0, atol=1e-15)
        assert np.linalg.eigvalsh(A + A.T)[0] > 0


def test_heterogeneity_is_the_clients_own_part() -> None:
    alike, half, own = (GarnetTD(**SMALL, heterogeneity=e).chains for e in (0.0, 0.5, 1.0))
    assert (alike.kernel == alike.kernel[0]).all()
    assert (alike.rewards == alike.rewards[0]).all()
    np.testing.assert_allclose(half.kernel, 0.5 * (alike.kernel + own.kernel), rtol=0, atol=1e-15)
    np.testing.assert_allclose(half.rewards, 0.5 * (alike.rewards + own.rewards), rtol=0, atol=1e-15)
    assert np.abs(own.kernel[0] - own.kernel[1]).max() > 0.1


def test_the_first_clients_are_the_same_for_any_number_of_them() -> None:
    few, many = GarnetTD(**SMALL).chains, GarnetTD(**{**SMALL, "n_clients": 7}).chains
    np.testing.assert_array_equal(few.successors, many.successors)
    np.testing.assert_array_equal(few.features, many.features)
    np.testing.assert_array_equal(few.kernel, many.kernel[:4])
    np.testing.assert_array_equal(few.rewards, many.rewards[:4])
    assert np.abs(GarnetTD(**SMALL, seed=1).chains.kernel - few.kernel).max() > 0.1


def test_environments_shared_by_clients() -> None:
    few, many = (GarnetTD(**{**SMALL, "n_clients": n, "environments": 2}) for n in (2, 6))
    np.testing.assert_array_equal(many.chains.kernel, np.tile(few.chains.kernel, (3, 1, 1)))
    np.testing.assert_array_equal(many.chains.rewards, np.tile(few.chains.rewards, (3, 1)))
    np.testing.assert_allclose(many.optimum(), few.optimum(), rtol=1e-12)
    assert np.abs(few.chains.kernel[0] - few.chains.kernel[1]).max() > 0.1


@pytest.mark.parametrize("sampling", ["iid", "markov"])
def test_drawn_gradients_have_the_mean_field_as_their_mean(sampling: Any) -> None:
    """Over rounds, at any position; 5 standard errors, false alarms 6e-7 per coordinate."""
    problem = GarnetTD(**SMALL, sampling=sampling)
    theta, client, rounds = np.array([1.0, -2.0, 0.5, 3.0]), 2, 4000
    part = slice(int(problem.offsets[client]), int(problem.offsets[client + 1]))
    drawn = np.stack([positions(problem.draws, Stream(3, 0, t, client), 0, 6, part) for t in range(rounds)])
    for position in (0, 5):
        gradients = np.stack(
            [problem.batch_gradient(client, theta, drawn[t, position : position + 1]) for t in range(rounds)]
        )
        error = gradients.std(axis=0) / np.sqrt(rounds)
        assert (np.abs(gradients.mean(axis=0) - problem.client_gradients(theta)[client]) < 5 * error).all()
    states = drawn // 3
    follows = problem.chains.successors.reshape(-1)[drawn[:, :-1]] == states[:, 1:]
    assert follows.all() if sampling == "markov" else not follows.all()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"n_clients": 0}, "n_clients must be a whole number of at least 1"),
        ({"states": 2.5}, "states must be a whole number"),
        ({"branching": 10}, "branching=10 and dim=4 can be at most states=9"),
        ({"dim": 10}, "dim=10 can be at most states=9"),
        ({"dim": 0}, "dim must be"),
        ({"discount": 1.0}, "discount must be below 1"),
        ({"discount": -0.1}, "discount must be"),
        ({"heterogeneity": 1.5}, "heterogeneity must be at most 1"),
        ({"environments": 0}, "environments must be"),
        ({"environments": 5}, "environments=5 can be at most n_clients=4"),
        ({"sampling": "shuffled"}, "sampling must be one of"),
        ({"seed": -1}, "seed must be"),
        ({"weights": [1.0]}, "weights must be 4 numbers"),
    ],
)
def test_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(fs.InvalidInput, match=message):
        GarnetTD(**{**SMALL, **changes})


def test_identity() -> None:
    changes: list[dict[str, Any]] = [
        {},
        {"sampling": "markov"},
        {"discount": 0.5},
        {"seed": 1},
        {"heterogeneity": 0.1},
        {"weights": [1, 2, 1, 1]},
    ]
    assert len({GarnetTD(**SMALL, **change).fingerprint() for change in changes}) == len(changes)
    assert GarnetTD(**SMALL).fingerprint() == GarnetTD(**SMALL).fingerprint()
    assert GarnetTD(**SMALL).describe()["sampling"] == "iid"


def test_predictions_are_exact_unless_records_follow_a_chain() -> None:
    method = fs.Scaffold(step_size=0.1, local_steps=2)
    problems = {"exact": GarnetTD(**SMALL), "measured": GarnetTD(**SMALL, sampling="markov")}
    for how, problem in problems.items():
        assert fs.theory.predict(problem, method, batch_size=2, accuracy=0.2).how == how
        with pytest.raises(fs.InvalidInput, match="client_third_derivatives, which td lacks"):
            fs.theory.expansion(problem, method, batch_size=2)
