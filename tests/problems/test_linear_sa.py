"""Linear stochastic approximation: where it settles, its constants, what is refused."""

from collections.abc import Callable
from itertools import permutations, product
from typing import Any

import numpy as np
import pytest

import fedscaffold as fs
from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.random.stream import Batches
from fedscaffold.core.types import Array
from fedscaffold.problems import GarnetTD, LinearSA, MarkovChains
from fedscaffold.problems.linear import matrices
from tests.samples import systems

WEIGHTS = (1.0, 5.0, 2.0)
TURN = np.array([[0.0, 1.0], [-1.0, 0.0]])  # its symmetric part is zero


def problems() -> list[LinearSA | GarnetTD]:
    return [systems((3, 5, 2), 3, weights=WEIGHTS), GarnetTD(n_clients=3, states=10, dim=3, weights=WEIGHTS)]


def test_the_optimum_solves_the_weighted_mean_system() -> None:
    problem = systems((3, 5, 2), 3, weights=WEIGHTS)
    A, b = np.zeros((3, 3)), np.zeros(3)
    for c, w in enumerate(np.array(WEIGHTS) / sum(WEIGHTS)):
        for i in range(problem.offsets[c], problem.offsets[c + 1]):
            A += w * problem.A[i] / problem.sizes[c]
            b += w * problem.b[i] / problem.sizes[c]
    assert np.abs(A - A.T).max() > 0.1
    np.testing.assert_allclose(A @ problem.optimum(), b, rtol=0, atol=1e-14)
    assert problem.loss(np.ones(3)) == pytest.approx(0.5 * np.sum((A.sum(axis=1) - b) ** 2), rel=1e-13)
    assert problem.loss(problem.optimum()) < 1e-28


@pytest.mark.parametrize("problem", problems(), ids=str)
def test_gradients_of_clients_are_means_of_their_records(problem: LinearSA | GarnetTD) -> None:
    theta = np.array([0.3, -2.0, 1.0])
    for c in range(3):
        rows = np.arange(problem.sizes[c])
        shares = problem.probabilities[c] if isinstance(problem, GarnetTD) else np.full(rows.size, 1 / rows.size)
        mean = sum(p * problem.batch_gradient(c, theta, rows[i : i + 1]) for i, p in enumerate(shares))
        np.testing.assert_allclose(problem.client_gradients(theta)[c], mean, rtol=0, atol=1e-14)
        field = problem.mean_field()
        np.testing.assert_allclose(field.batch_gradient(c, theta, np.array([0])), mean, rtol=0, atol=1e-14)
    weighted = np.array(WEIGHTS) / sum(WEIGHTS) @ problem.client_gradients(theta)
    np.testing.assert_allclose(problem.gradient(theta), weighted, rtol=0, atol=1e-14)
    np.testing.assert_allclose(problem.mean_field().optimum(), problem.optimum(), rtol=0, atol=1e-13)


def all_batches(problem: Any, c: int, batches: Batches) -> list[tuple[float, Array]]:
    """Every batch of two records, or one, or all, with its probability, as the matrix of its gradient."""
    n = int(problem.sizes[c])
    shares = problem.probabilities[c] if isinstance(problem, GarnetTD) else np.full(n, 1 / n)
    if batches.size is None:
        return [(1.0, problem.client_matrices[c])]
    if batches.sampling == "with_replacement":
        chosen = [(np.prod(shares[list(rows)]), rows) for rows in product(range(n), repeat=batches.size)]
    else:
        pairs = list(permutations(range(n), batches.size))
        chosen = [(1 / len(pairs), rows) for rows in pairs]
    zero = np.zeros(3)
    found = []
    for share, rows in chosen:
        at = np.array(rows)
        columns = [problem.batch_gradient(c, unit, at) - problem.batch_gradient(c, zero, at) for unit in np.eye(3)]
        found.append((float(share), np.stack(columns, axis=1)))
    return found


@pytest.mark.parametrize(
    ("problem", "batches"),
    [(problem, Batches(size)) for problem in problems() for size in (1, 2, None)]
    + [(problems()[0], Batches(2, "without_replacement"))],
    ids=str,
)
def test_smoothness_is_the_least_constant(problem: Any, batches: Batches) -> None:
    """E‖g(θ) − g(θ')‖² ≤ L⟨ḡ(θ) − ḡ(θ'), θ − θ'⟩, by listing all batches; for some client and θ, equal."""
    L, ratios = problem.smoothness(batches), []
    for c in range(3):
        moment = sum(p * A.T @ A for p, A in all_batches(problem, c, batches))
        mean = problem.client_matrices[c]
        symmetric = 0.5 * (mean + mean.T)
        values, vectors = np.linalg.eig(np.linalg.solve(symmetric, moment))
        u = vectors[:, values.real.argmax()].real
        ratios.append(u @ moment @ u / (u @ symmetric @ u))
    assert max(ratios) == pytest.approx(L, rel=1e-10)


def test_along_a_chain_smoothness_is_that_of_single_transitions() -> None:
    chain, alone = (GarnetTD(n_clients=3, states=10, dim=3, sampling=s) for s in ("markov", "iid"))
    assert chain.smoothness(Batches(10)) == chain.smoothness(Batches(1)) == alone.smoothness(Batches(1))
    assert alone.smoothness(Batches(10)) < 0.5 * alone.smoothness(Batches(1))
    assert chain.smoothness(Batches()) == alone.smoothness(Batches())


def test_strong_convexity_is_the_smallest_eigenvalue_of_a_symmetric_part() -> None:
    A = np.stack([np.eye(2) + 5 * TURN, np.diag([0.5, 3.0]) - TURN])[:, None]
    assert LinearSA(A, np.ones((2, 1, 2))).strong_convexity() == pytest.approx(0.5, rel=1e-14)


def test_without_a_positive_symmetric_part_no_step_size_is_vouched_for() -> None:
    """One client only turns; the mean system is sound, and small steps do converge."""
    A = np.stack([TURN, 2 * np.eye(2)])[:, None]
    problem = LinearSA(A, np.ones((2, 1, 2)))
    assert problem.smoothness(Batches(1)) == np.inf
    assert problem.strong_convexity() == 0.0
    fine = fs.run(problem, fs.ScaffLSA(step_size=0.05, local_steps=4), rounds=500)
    assert fine.mse[0, -1] < 1e-20
    with pytest.raises(fs.Diverged) as caught:
        fs.run(problem, fs.ScaffLSA(step_size=3.0, local_steps=4), rounds=500)
    assert caught.value.safe_step_size == 0.0


@pytest.mark.parametrize("name", ["Scaffold", "FedAvg"])
def test_the_safe_step_size_that_divergence_names_is_safe(name: str) -> None:
    problem = systems((3, 5, 2), 3, weights=WEIGHTS)
    kind = getattr(fs, name)
    with pytest.raises(fs.Diverged) as caught:
        fs.run(problem, kind(step_size=2.0, local_steps=5), rounds=500, batch_size=1)
    safe = caught.value.safe_step_size
    assert safe > 1e-3
    trace = fs.run(problem, kind(step_size=safe, local_steps=5), rounds=500, batch_size=1, repetitions=5)
    assert trace.mse[:, -100:].max() < 100 * trace.mse[:, 0].max()


GOOD_A, GOOD_B = np.stack([np.eye(2)] * 6).reshape(2, 3, 2, 2), np.ones((2, 3, 2))
SADDLE = np.diag([1.0, -0.5])
BAD: dict[str, tuple[Callable[[], Any], str]] = {
    "wrong sign": (lambda: LinearSA(-GOOD_A, GOOD_B), "real part -1: check the sign"),
    "one wrong direction": (lambda: LinearSA(GOOD_A @ SADDLE, GOOD_B), "real part -0.5"),
    "wrong with these weights": (
        lambda: LinearSA(np.stack([np.eye(2), -np.eye(2)])[:, None], np.ones((2, 1, 2)), weights=[1, 2]),
        "positive real parts",
    ),
    "singular": (lambda: LinearSA(GOOD_A @ np.diag([1.0, 0.0]), GOOD_B), "positive real parts"),
    "turns for ever": (lambda: LinearSA(GOOD_A @ TURN, GOOD_B), "positive real parts"),
    "A too shallow": (lambda: LinearSA(GOOD_B, GOOD_B), r"A must be \(N, n, d, d\)"),
    "b too deep": (lambda: LinearSA(GOOD_A, GOOD_A), r"b must be \(N, n, d\)"),
    "not square": (lambda: LinearSA(np.ones((2, 3, 2, 4)), GOOD_B), "client 0's matrices are 2 × 4"),
    "dimensions differ": (
        lambda: LinearSA([GOOD_A[0], np.ones((3, 3, 3))], [GOOD_B[0], np.ones((3, 3))]),
        "client 1's matrices are 3 × 3 and its vectors have 3 entries, but client 0's vectors have 2",
    ),
    "clients differ in number": (lambda: LinearSA(GOOD_A, GOOD_B[:1]), "A has 2 clients but b has 1"),
    "rows differ": (lambda: LinearSA(GOOD_A, GOOD_B[:, :2]), "client 0 has 3 rows in A but 2 in b"),
    "empty client": (
        lambda: LinearSA([GOOD_A[0], GOOD_A[1, :0]], [GOOD_B[0], GOOD_B[1, :0]]),
        "client 1 has no records",
    ),
    "no clients": (lambda: LinearSA([], []), "there are no clients: A is empty"),
    "NaN": (
        lambda: LinearSA(GOOD_A, np.where(np.arange(12).reshape(2, 3, 2) == 9, np.nan, 1.0)),
        "b holds NaN or infinity: client 1, record 1",
    ),
    "words": (lambda: LinearSA([[["a"]]], [["b"]]), "A must hold numbers"),
    "weights": (lambda: LinearSA(GOOD_A, GOOD_B, weights=[1.0, 0.0]), "weights must be positive"),
}


@pytest.mark.parametrize("name", BAD)
def test_refused(name: str) -> None:
    call, message = BAD[name]
    with pytest.raises(fs.InvalidInput, match=message):
        call()


def test_the_good_values_beside_them_are_accepted() -> None:
    assert LinearSA(GOOD_A, GOOD_B, weights=[1, 2]).dim == 2
    one_sided = LinearSA(np.stack([np.eye(2), -np.eye(2)])[:, None], np.ones((2, 1, 2)), weights=[2, 1])
    assert one_sided.optimum().tolist() == pytest.approx([3.0, 3.0])  # (2/3 − 1/3) θ = 1


def test_identity() -> None:
    problem = LinearSA(GOOD_A, GOOD_B)
    assert problem.fingerprint() == LinearSA(GOOD_A.copy(), GOOD_B).fingerprint()
    others = [LinearSA(GOOD_A, 2 * GOOD_B), LinearSA(2 * GOOD_A, GOOD_B), LinearSA(GOOD_A, GOOD_B, weights=[1, 2])]
    assert len({p.fingerprint() for p in (problem, *others)}) == 4
    assert problem.describe()["n_records"] == 6
    assert not problem.A.flags.writeable


def with_probabilities() -> tuple[LinearSA, LinearSA]:
    """Records drawn with probabilities 1/2, 1/4, 1/4, and the same as four records, the first of them twice."""
    rng = np.random.default_rng(3)
    A = np.eye(2) + 0.3 * rng.normal(size=(2, 3, 2, 2))
    b = rng.normal(size=(2, 3, 2))
    twice = [0, 0, 1, 2]
    drawn = LinearSA(A, b, probabilities=[[2.0, 1.0, 1.0], (0.5, 0.25, 0.25)])
    return drawn, LinearSA(A[:, twice], b[:, twice])


def test_records_drawn_by_probability_are_like_repeated_records() -> None:
    drawn, repeated = with_probabilities()
    np.testing.assert_allclose(drawn.optimum(), repeated.optimum(), rtol=1e-13)
    for batches in (Batches(), Batches(1), Batches(3)):
        assert drawn.smoothness(batches) == pytest.approx(repeated.smoothness(batches), rel=1e-12)
    assert drawn.fingerprint() != LinearSA(drawn.A.reshape(2, 3, 2, 2), drawn.b.reshape(2, 3, 2)).fingerprint()


def test_records_are_drawn_with_their_probabilities_by_both_engines() -> None:
    """One step of each of many rounds: the mean gradient is that of the mean system, to 4 standard errors."""
    drawn, _ = with_probabilities()
    method = fs.FedAvg(step_size=0.1, local_steps=3)
    runs = [fs.run(drawn, method, rounds=20, batch_size=2, engine=engine) for engine in ("reference", "native")]
    np.testing.assert_allclose(runs[0].theta, runs[1].theta, rtol=1e-12)
    theta, rounds = np.array([0.3, -0.7]), 4000
    with fs.engines.Reference().open(drawn, Batches(1), seed=0) as local_sgd:
        moved = np.concatenate(
            [
                local_sgd(theta[None], np.zeros((1, 1, 2)), step_size=1.0, local_steps=1, round=t)
                for t in range(rounds)
            ]
        )
    gradients = theta - moved
    error = gradients.std(axis=0) / np.sqrt(rounds)
    assert (np.abs(gradients.mean(axis=0) - drawn.client_gradients(theta)) < 4.0 * error).all()
    uniform = LinearSA(drawn.A.reshape(2, 3, 2, 2), drawn.b.reshape(2, 3, 2)).client_gradients(theta)
    assert (np.abs(gradients.mean(axis=0) - uniform) > 6.0 * error).any()


@pytest.mark.parametrize(
    ("probabilities", "words"),
    [
        ([[1.0, 1.0, 1.0]], "one row for each of the 2 clients"),
        ([[1.0, 1.0], [1.0, 1.0, 1.0]], "3 numbers for client 0"),
        ([[1.0, 1.0, 1.0], [1.0, -1.0, 1.0]], "of client 1 must be finite, not negative"),
        ([[0.0, 0.0, 0.0], [1.0, 1.0, 1.0]], "not all zero"),
        ("abc", "one row for each"),
    ],
)
def test_probabilities_that_are_none_are_refused(probabilities: Any, words: str) -> None:
    drawn, _ = with_probabilities()
    with pytest.raises(InvalidInput, match=words):
        LinearSA(drawn.A.reshape(2, 3, 2, 2), drawn.b.reshape(2, 3, 2), probabilities=probabilities)


def test_environments_from_outside_are_those_that_were_made() -> None:
    made = GarnetTD(n_clients=3, states=6, dim=2, branching=3, discount=0.7, sampling="markov")
    again = GarnetTD(environments=made.chains, discount=0.7, sampling="markov")
    assert again.fingerprint() == made.fingerprint()
    full = MarkovChains.from_transitions(matrices(made.chains), made.chains.rewards, made.chains.features)
    dense = GarnetTD(environments=full, discount=0.7, sampling="markov")
    np.testing.assert_allclose(dense.optimum(), made.optimum(), rtol=1e-10)
    np.testing.assert_allclose(dense.client_matrices, made.client_matrices, rtol=0, atol=1e-13)
    assert dense.describe()["environments"] == "given"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"kernel": np.full((2, 2, 2), 0.6)}, "sum to one"),
        ({"kernel": np.array([[[1.5, -0.5]] * 2] * 2)}, "must not be negative"),
        ({"kernel": np.tile(np.eye(2), (2, 1, 1))}, "chain of client 0 has no single stationary law"),
        ({"rewards": np.zeros((2, 3))}, r"rewards must have shape \(2, 2\), got \(2, 3\)"),
        ({"features": np.zeros((3, 1))}, "features must have 2 rows"),
        ({"successors": np.array([[0, 5], [0, 1]])}, "whole numbers from 0 to 1"),
        ({"successors": [["a", "b"]]}, "successors must be numbers"),
    ],
)
def test_environments_that_are_none_are_refused(changes: dict[str, Any], words: str) -> None:
    chains = MarkovChains.from_transitions(np.full((2, 2, 2), 0.5), np.ones((2, 2)), np.eye(2))
    with pytest.raises(InvalidInput, match=words):
        GarnetTD(environments=chains._replace(**changes))
