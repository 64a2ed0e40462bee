"""Lemma 4.1 and Theorem 4.2 by coupling, and a chain with a wrong sign that must fail."""

from typing import Any

import numpy as np
import pytest

from fedscaffold import InvalidInput, Scaffold, run
from fedscaffold.core.types import Array, ServerState
from fedscaffold.methods.base import ControlVariates
from fedscaffold.paper.coupling import ChainStart, Coupling, couple, to_stationarity
from fedscaffold.problems import Logistic, Ridge
from fedscaffold.theory import constants
from fedscaffold.theory.bounds import ScaffoldBounds
from tests import naive
from tests.samples import KINDS, Kind, make

BATCH, DIM = 2, 3


class WrongSign(Scaffold):
    """ξ_c ← ξ_c − (θ_c − θ⁺)/(γH): the control variates' sign flipped."""

    def update_clients(
        self, memory: ControlVariates, sent: Array, before: ServerState, after: ServerState
    ) -> ControlVariates:
        right = super().update_clients(memory, sent, before, after).xi
        return ControlVariates(xi=2 * memory.xi - right)


def bound(coupling: Coupling) -> Array:
    """(1 − γμ/4)^{Ht} times the mean of D_0: Theorem 4.2, an upper bound on the mean of D_t, (rounds + 1,)."""
    return coupling.mean[0] * coupling.factor.value ** np.arange(coupling.distances.shape[1])


def contracts(coupling: Coupling, *, errors: float = 4.0) -> bool:
    """Whether D_{t+1} − (1 − γμ/4)^H D_t has mean ≤ 0 in every round, up to some standard errors: Lemma 4.1."""
    D = coupling.distances
    excess = D[:, 1:] - coupling.factor.value * D[:, :-1]
    spread = excess.std(axis=0, ddof=1) / np.sqrt(len(D)) if len(D) > 1 else np.zeros(excess.shape[1])
    return bool((excess.mean(axis=0) <= errors * spread + coupling.rounding).all())


def problem_of(kind: Kind, N: int = 5) -> Ridge | Logistic:
    return make(kind, (8,) * N, DIM, l2=0.5)


def edge(problem: Ridge | Logistic, H: int, part: float = 0.99) -> float:
    """The step size at `part` of what Lemma 4.1 allows."""
    known = constants(problem, batch_size=BATCH)
    return part * min(1 / (2 * known.L), 1 / (H * (known.L + known.mu)))


def starts(problem: Ridge | Logistic, seed: int = 0) -> tuple[ChainStart, ChainStart]:
    rng = np.random.default_rng(seed)
    xi = rng.normal(size=(problem.n_clients, problem.dim))
    return ChainStart(rng.normal(size=problem.dim)), ChainStart(rng.normal(size=problem.dim), xi - xi.mean(axis=0))


def coupled(kind: Kind, H: int, part: float, rounds: int, method: type[Scaffold] = Scaffold) -> Coupling:
    problem = problem_of(kind)
    chosen = method(step_size=edge(problem, H, part), local_steps=H)
    return couple(problem, chosen, *starts(problem), rounds=rounds, batch_size=BATCH, repetitions=50)


@pytest.mark.parametrize("part", [0.99, 0.2, 0.02])
@pytest.mark.parametrize("H", [1, 2, 10])
@pytest.mark.parametrize("kind", KINDS)
def test_lemma_4_1_in_every_round(kind: Kind, H: int, part: float) -> None:
    coupling = coupled(kind, H, part, rounds=60)
    assert coupling.factor.holds
    assert coupling.factor.value < 1
    assert contracts(coupling)
    assert contracts(coupling, errors=0.0)  # the bound is loose enough for the plain means
    assert (coupling.rates <= coupling.factor.value).all()
    assert (coupling.mean <= bound(coupling) + coupling.rounding).all()
    assert coupling.rates.size > 5


@pytest.mark.slow
@pytest.mark.parametrize("sampling", ["with_replacement", "without_replacement"])
@pytest.mark.parametrize("H", [1, 5, 100])
@pytest.mark.parametrize("kind", KINDS)
def test_lemma_4_1_with_more_clients(kind: Kind, H: int, sampling: Any) -> None:
    problem = problem_of(kind, N=30)
    method = Scaffold(step_size=edge(problem, H), local_steps=H)
    for seed in range(5):
        coupling = couple(
            problem, method, *starts(problem, seed), rounds=50, batch_size=BATCH, repetitions=50, seed=seed,
            sampling=sampling,
        )  # fmt: skip
        assert contracts(coupling)
        assert (coupling.mean <= bound(coupling) + coupling.rounding).all()


@pytest.mark.parametrize("kind", KINDS)
def test_a_wrong_sign_does_not_contract(kind: Kind) -> None:
    """Control: the same check sees that control variates move away from each other."""
    coupling = coupled(kind, H=10, part=0.99, rounds=20, method=WrongSign)
    assert not contracts(coupling)
    assert coupling.mean[-1] > bound(coupling)[-1]
    assert coupling.rates.max() > 1


def test_one_round_that_expands_is_enough_to_fail() -> None:
    right = coupled("ridge", H=2, part=0.5, rounds=20)
    spoilt = right.distances.copy()
    spoilt[:, 8] = spoilt[:, 7]
    assert not contracts(Coupling(distances=spoilt, factor=right.factor, rounding=right.rounding))


@pytest.mark.parametrize("kind", KINDS)
def test_distances_are_those_of_two_runs(kind: Kind) -> None:
    """‖θ − θ'‖² + (γ²H²/N) Σ ‖ξ_c − ξ'_c‖² from two calls of `run` with the same seed."""
    problem = problem_of(kind)
    gamma, H, rounds = edge(problem, 4), 4, 6
    method = Scaffold(step_size=gamma, local_steps=H)
    common: dict[str, Any] = {"rounds": rounds, "batch_size": BATCH, "repetitions": 3, "seed": 7}
    first, second = starts(problem)
    coupling = couple(problem, method, first, second, **common)
    a, b = (
        run(problem, method, theta0=s.theta, control_variates0=s.control_variates, progress=False, **common)
        for s in (first, second)
    )
    xi = ((a.control_variates - b.control_variates) ** 2).sum(axis=(1, 2))
    expected = ((a.theta - b.theta) ** 2).sum(axis=1) + (gamma * H) ** 2 / problem.n_clients * xi
    np.testing.assert_allclose(coupling.distances[:, -1], expected, rtol=1e-9)
    assert coupling.distances.shape == (3, rounds + 1)


def test_chains_that_meet_stay_together() -> None:
    problem = problem_of("logistic")
    method = Scaffold(step_size=edge(problem, 3), local_steps=3)
    same = couple(problem, method, starts(problem)[0], starts(problem)[0], rounds=5, batch_size=BATCH)
    assert (same.distances == 0).all()
    assert contracts(same)
    assert same.rates.size == 0


@pytest.mark.parametrize("kind", KINDS)
def test_theorem_4_2_by_coupling_with_a_stationary_chain(kind: Kind) -> None:
    """Mean D_t, an upper bound on W₂² to the stationary law, is below what the theorem gives from this start."""
    problem, H = problem_of(kind), 5
    gamma = edge(problem, H, 0.5)
    start = ChainStart(np.zeros(DIM))
    coupling = to_stationarity(
        problem, Scaffold(step_size=gamma, local_steps=H), start, rounds=40, batch_size=BATCH, burn_in=200,
        repetitions=50,
    )  # fmt: skip
    assert contracts(coupling)
    assert coupling.distances[:, 0].std() > 0  # the stationary law is not a point
    known = constants(problem, batch_size=BATCH)
    setting: dict[str, Any] = {"step_size": gamma, "local_steps": H, "n_clients": problem.n_clients}
    optimum = problem.optimum()
    first = ScaffoldBounds(known, **setting).initial_distance2(squared_error=float(optimum @ optimum))
    for T in range(41):
        limit = ScaffoldBounds(known, **setting).wasserstein_from_start(rounds=T, initial_distance2=first)
        assert limit.holds
        assert coupling.mean[T] <= limit.value


def test_after_burn_in_both_chains_draw_the_rounds_that_follow() -> None:
    """Else noise would depend on where the second chain stands. The first chain is checked by plain Python."""
    problem, before, rounds = problem_of("ridge"), 4, 3
    method = Scaffold(step_size=edge(problem, 2), local_steps=2)
    coupling = to_stationarity(
        problem, method, ChainStart(np.zeros(DIM)), rounds=rounds, batch_size=BATCH, burn_in=before, seed=3
    )
    optimum = problem.optimum()
    ideal = -problem.client_gradients(optimum)
    second = run(
        problem, method, rounds=before + rounds, batch_size=BATCH, seed=3, progress=False,
        theta0=optimum, control_variates0=ideal - ideal.mean(axis=0),
    )  # fmt: skip
    X, y = problem.x.reshape(5, 8, DIM).tolist(), problem.y.reshape(5, 8).tolist()
    clients = naive.Clients("ridge", X, y, problem.l2, problem.weights.tolist())
    draw = naive.drawing(3, problem.sizes.tolist(), BATCH, "with_replacement")
    first = naive.scaffold(
        clients, lambda r, t, c, h: draw(r, t + before, c, h), gamma=method.step_size, H=2, T=rounds,
        theta=[0.0] * DIM,
    )  # fmt: skip
    xi = np.square(second.control_variates[0] - first.control_variates).sum(axis=1).mean()
    expected = np.square(second.theta[0] - first.theta).sum() + (method.step_size * 2) ** 2 * xi
    assert coupling.distances[0, -1] == pytest.approx(expected, rel=1e-8)


@pytest.mark.parametrize("kind", KINDS)
def test_chains_of_weighted_clients_contract_as_well(kind: Kind) -> None:
    """In the norm ‖θ‖² + γ²H² Σ w_c‖ξ_c‖², which is not the one of equal weights."""
    weights = (1.0, 30.0, 3.0)
    problem = make(kind, (8, 8, 8), DIM, l2=0.5, weights=weights)
    rng = np.random.default_rng(0)
    xi = rng.normal(size=(3, DIM))
    second = ChainStart(rng.normal(size=DIM), xi - problem.weights @ xi)
    method = Scaffold(step_size=edge(problem, 5), local_steps=5)
    first = ChainStart(rng.normal(size=DIM))
    coupling = couple(problem, method, first, second, rounds=40, batch_size=BATCH, repetitions=50)
    assert coupling.factor.holds
    assert contracts(coupling)
    off = np.square(xi - problem.weights @ xi).sum(axis=1) @ problem.weights
    start = np.square(first.theta - second.theta).sum()
    assert coupling.distances[0, 0] == pytest.approx(start + (5 * method.step_size) ** 2 * off)


def test_refusals() -> None:
    method = Scaffold(step_size=0.01, local_steps=2)
    here = ChainStart(np.zeros(DIM))
    problem = problem_of("ridge")
    with pytest.raises(InvalidInput, match="sum to zero"):
        couple(problem, method, here, ChainStart(np.zeros(DIM), np.ones((5, DIM))), rounds=1, batch_size=1)
    with pytest.raises(InvalidInput, match="rounds"):
        couple(problem, method, here, here, rounds=0, batch_size=1)
