"""Without noise and with clients that differ: which methods reach the optimum, and what stays zero on the way."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fedscaffold as fs
from benchmarks.method_figures import accelerated_scaling
from fedscaffold.core.protocols import Method
from fedscaffold.problems import Ridge
from tests.samples import KINDS, Kind, make

SIZES, DIM = (12, 20, 9, 15), 3
WEIGHTS = (1.0, 4.0, 0.5, 2.0)
CLOSE = 1e-10
GAMMA, H = 0.2, 8

REACH: dict[str, Method] = {
    "Scaffold": fs.Scaffold(step_size=GAMMA, local_steps=H),
    "TwoSidedScaffold, η = 1": fs.TwoSidedScaffold(step_size=GAMMA, local_steps=H, server_step_size=1.0),
    "TwoSidedScaffold, η = 1.5": fs.TwoSidedScaffold(step_size=GAMMA / 2, local_steps=H, server_step_size=1.5),
    "ProxSkip": fs.ProxSkip(step_size=GAMMA, communication_probability=1 / H),
    "FedLin": fs.FedLin(step_size=GAMMA, local_steps=H),
    "FedSplit": fs.FedSplit(step_size=GAMMA, local_steps=H, proximal_weight=0.5),
    "Scallion, random coordinates": fs.Scallion(step_size=0.05, local_steps=H, compression="random_k:0.4"),
    "Scallion, largest coordinates": fs.Scallion(step_size=0.05, local_steps=H, compression="top_k:0.4"),
    "Scallion, powers of two": fs.Scallion(step_size=GAMMA, local_steps=H, compression="natural"),
    "Scallion, levels": fs.Scallion(step_size=0.1, local_steps=H, compression="quantised:8"),
    "Scallion, both directions": fs.Scallion(
        step_size=0.1, local_steps=H, compression="quantised:8", server_levels=8
    ),
    "Apda": fs.Apda(step_size=GAMMA, local_steps=H, smoothness=3.0, strong_convexity=0.1),
    "RandProx": fs.RandProx(step_size=GAMMA, communication_probability=0.5, share=0.4),
    "LocalSvrg": fs.LocalSvrg(step_size=0.05, local_steps=H),
    "VRProxSkip": fs.VRProxSkip(step_size=GAMMA, communication_probability=1 / H),
    "AmplifiedScaffold": fs.AmplifiedScaffold(step_size=0.05, local_steps=H, window=2),
    "Tamuna": fs.Tamuna(step_size=GAMMA, communication_probability=1 / H, owners=2),
    "FedSplit, one step": fs.FedSplit(step_size=GAMMA, local_steps=1, proximal_weight=0.5),
}


def distance(problem: Ridge | fs.problems.Logistic, method: Method, rounds: int) -> float:
    trace = fs.run(problem, method, rounds=rounds, progress=False)
    return float(np.linalg.norm(trace.theta[0] - problem.optimum()))


@pytest.mark.parametrize("name", REACH)
def test_they_reach_the_optimum(name: str) -> None:
    problem = make("ridge", SIZES, DIM, weights=WEIGHTS)
    assert np.abs(problem.client_gradients(problem.optimum())).max() > 0.1  # clients disagree at the optimum
    assert distance(problem, REACH[name], 600) <= CLOSE


def test_fedavg_does_not() -> None:
    problem = make("ridge", SIZES, DIM, weights=WEIGHTS)
    method = fs.FedAvg(step_size=GAMMA, local_steps=H)
    early, late = (distance(problem, method, rounds) for rounds in (600, 700))
    assert early > 1e-2
    assert early == pytest.approx(late, rel=1e-6)  # and it has stopped moving


VARIANCE_REDUCED: list[Method] = [
    fs.LocalSvrg(step_size=0.02, local_steps=H), fs.VRProxSkip(step_size=0.05, communication_probability=1 / H)
]  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("method", VARIANCE_REDUCED, ids=lambda method: method.kind)
def test_variance_reduction_reaches_the_optimum_with_single_records(kind: Kind, method: Method) -> None:
    problem = make(kind, SIZES, DIM, weights=WEIGHTS)
    trace = fs.run(problem, method, rounds=2500, batch_size=1, progress=False)
    assert np.sqrt(trace.mse[0, -1]) <= CLOSE
    plain = fs.run(problem, fs.Scaffold(step_size=0.02, local_steps=H), rounds=300, batch_size=1, progress=False)
    assert np.sqrt(plain.mse[0, -100:].mean()) > 1e-2


def test_communications_grow_like_the_root_of_the_condition_number() -> None:
    slopes = {each.name: each.fit.slope for each in accelerated_scaling((10.0, 100.0, 1000.0))}
    assert set(slopes) == {"Tamuna", "RandProx", "FedSplit", "Apda"}
    assert slopes == pytest.approx(dict.fromkeys(slopes, 0.5), abs=0.15)


def test_clients_that_take_turns() -> None:
    """Scaffold's cohorts agree among themselves alone, and stay away; windows see all of them together."""
    problem = make("ridge", (8,) * 12, DIM)
    turns = fs.simulation.Periodic(groups=4)
    method = fs.AmplifiedScaffold(step_size=0.05, local_steps=4, window=4)
    near, far = (
        fs.run(problem, each, rounds=2000, availability=turns, progress=False)
        for each in (method, fs.Scaffold(step_size=0.05, local_steps=4))
    )
    assert np.sqrt(near.mse[0, -1]) <= CLOSE
    assert np.sqrt(far.mse[0, -5:].min()) > 1e-2
    slopes = problem.client_gradients(problem.optimum())
    np.testing.assert_allclose(near.control_variates[0], -slopes, rtol=0, atol=1e-9)


@pytest.mark.parametrize("availability", [
    pytest.param(fs.simulation.Markov(leave=0.3, enter=0.4, seed=1), marks=pytest.mark.slow),
    fs.simulation.AvailabilityTable(np.eye(12, dtype=bool)[[0, 3, 5, 1, 2, 4, 7, 6, 9, 8, 11, 10]]),
])  # fmt: skip
def test_clients_that_come_and_go(availability: Any) -> None:
    problem = make("ridge", (8,) * 12, DIM)
    method = fs.AmplifiedScaffold(step_size=0.02, local_steps=4, window=12)
    trace = fs.run(problem, method, rounds=6_000, availability=availability, progress=False)
    assert np.sqrt(trace.mse[0, -1]) <= CLOSE


def test_fedprox_stops_where_its_clients_pulls_cancel() -> None:
    """Without noise θ_c − θ = (I − (I − γ(A_c + λ))^H)(A_c + λ)⁻¹ (b_c − A_c θ), whose mean vanishes there."""
    problem, weight = make("ridge", SIZES, DIM, weights=WEIGHTS), 0.4
    left, right = np.zeros((DIM, DIM)), np.zeros(DIM)
    for c, w in enumerate(problem.weights):
        x, y = problem.x[slice(*problem.offsets[c : c + 2])], problem.y[slice(*problem.offsets[c : c + 2])]
        A, b = x.T @ x / len(x) + problem.l2 * np.eye(DIM), x.T @ y / len(x)
        pulled = A + weight * np.eye(DIM)
        shares = np.eye(DIM) - np.linalg.matrix_power(np.eye(DIM) - GAMMA * pulled, H)
        move = w * shares @ np.linalg.inv(pulled)
        left, right = left + move @ A, right + move @ b
    fixed = np.linalg.solve(left, right)
    method = fs.FedProx(step_size=GAMMA, local_steps=H, proximal_weight=weight)
    found = fs.run(problem, method, rounds=600, progress=False).theta[0]
    np.testing.assert_allclose(found, fixed, rtol=0, atol=CLOSE)
    assert np.linalg.norm(fixed - problem.optimum()) > 1e-2


def test_a_stronger_pull_leaves_a_smaller_bias() -> None:
    problem = make("ridge", SIZES, DIM, weights=WEIGHTS)
    ends = [
        distance(problem, fs.FedProx(step_size=0.05, local_steps=50, proximal_weight=weight), 3000)
        for weight in (0.0, 0.3, 3.0)
    ]
    assert ends[0] > ends[1] > 2.0 * ends[2]


N, COHORT = 50, 5
UNEQUAL = tuple(1 + c % 6 for c in range(N))
SPREAD = tuple(1.0 + 3.0 * (c % 4) for c in range(N))


@pytest.mark.parametrize(
    ("method", "weights", "rounds"),
    [
        (fs.Scaffold(step_size=0.15, local_steps=4, cohort=COHORT), None, 1500),
        (fs.Scaffold(step_size=0.15, local_steps=4, participation=0.1), None, 1500),
        (fs.Scaffold(step_size=0.15, local_steps=UNEQUAL), None, 600),
        (fs.Scaffold(step_size=0.15, local_steps=4), SPREAD, 600),
        (fs.Scaffold(step_size=0.1, local_steps=UNEQUAL, cohort=COHORT), SPREAD, 4000),
        (fs.TwoSidedScaffold(step_size=0.1, local_steps=4, server_step_size=1.0, cohort=COHORT), None, 3000),
        (fs.TwoSidedScaffold(step_size=0.1, local_steps=4, server_step_size=0.7, cohort=COHORT), SPREAD, 4000),
        pytest.param(
            fs.Scallion(step_size=0.05, local_steps=4, compression="random_k:0.4", cohort=COHORT),
            SPREAD,
            6000,
            marks=pytest.mark.slow,
        ),
        pytest.param(
            fs.Tamuna(step_size=0.15, communication_probability=0.25, owners=4, cohort=COHORT),
            SPREAD,
            6000,
            marks=pytest.mark.slow,
        ),
    ],
    ids=[
        "cohort",
        "share",
        "steps",
        "weights",
        "all at once",
        "two-sided cohort",
        "two-sided cohort, weights",
        "Scallion",
        "Tamuna",
    ],
)
def test_some_clients_unequal_steps_and_weights(
    method: Method, weights: tuple[float, ...] | None, rounds: int
) -> None:
    problem = make("ridge", (8,) * N, DIM, weights=weights)
    assert distance(problem, method, rounds) <= CLOSE


def test_fedavg_in_cohorts_stays_away() -> None:
    problem = make("ridge", (8,) * N, DIM)
    assert distance(problem, fs.FedAvg(step_size=0.15, local_steps=4, cohort=COHORT), 1500) > 1e-2


@st.composite
def situations(draw: st.DrawFn) -> tuple[Ridge | fs.problems.Logistic, Method, int | None]:
    n = draw(st.integers(1, 9))
    sizes = draw(st.lists(st.integers(2, 12), min_size=n, max_size=n))
    weights = draw(st.lists(st.floats(0.1, 10), min_size=n, max_size=n))
    kind = draw(st.sampled_from(KINDS))
    problem = make(kind, sizes, draw(st.integers(1, 6)), weights=weights)
    cohort = draw(st.integers(min(2, n), n))
    gamma, steps = 0.05, draw(st.integers(1, 12))
    which = draw(st.sampled_from(("scaffold", "unequal", "two-sided", "proxskip", "scallion", "tamuna")))
    method: Method
    if which == "scaffold":
        method = fs.Scaffold(step_size=gamma, local_steps=steps, cohort=cohort)
    elif which == "unequal":
        each = draw(st.lists(st.integers(1, 12), min_size=n, max_size=n))
        method = fs.Scaffold(step_size=gamma, local_steps=each, cohort=cohort)
    elif which == "two-sided":
        eta = draw(st.floats(0.1, 2.0))
        method = fs.TwoSidedScaffold(step_size=gamma, local_steps=steps, server_step_size=eta, cohort=cohort)
    elif which == "scallion":
        kind = draw(st.sampled_from(("random_k:0.3", "top_k:0.5", "natural", "quantised:3")))
        method = fs.Scallion(step_size=gamma, local_steps=steps, compression=kind, cohort=cohort)
    elif which == "tamuna":
        method = fs.Tamuna(step_size=gamma, communication_probability=1.0 / steps, owners=2, cohort=cohort)
    else:
        method = fs.ProxSkip(step_size=gamma, communication_probability=1.0 / steps)
    return problem, method, draw(st.none() | st.integers(1, 2))


@given(situation=situations())
@settings(max_examples=50)
def test_corrections_sum_to_zero(situation: tuple[Ridge | fs.problems.Logistic, Method, int | None]) -> None:
    """Σ w_c ξ_c = 0 through cohorts, unequal steps, weights and noise; for two-sided, ξ_c = c − c_c."""
    problem, method, batch_size = situation
    trace = fs.run(problem, method, rounds=5, batch_size=batch_size, repetitions=2, engine="reference")
    xi = trace.control_variates
    assert problem.n_clients == 1 or method.participants(problem.n_clients) == 1 or np.abs(xi).max() > 1e-6
    drift = np.abs(np.einsum("c,rcj->rj", problem.weights, xi)).max()
    assert drift <= 1e-12 * max(1.0, np.abs(xi).max())
