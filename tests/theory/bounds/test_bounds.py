"""The bounds' formulas against numbers worked out here, their conditions, and Corollary 4.10 plugged back."""

import dataclasses
import math
from typing import Any

import numpy as np
import pytest

from fedscaffold import InvalidInput
from fedscaffold.problems import Logistic, paper
from fedscaffold.theory import Constants, constants
from fedscaffold.theory.bounds import Bound, ScaffoldBounds, complexity
from tests.samples import KINDS, Kind, make
from tests.theory.dense_algebra import lyapunov

KNOWN = Constants(
    mu=0.5,
    L=2.0,
    L_record=4.0,
    Q=0.25,
    G=1.0,
    zeta1=3.0,
    zeta2=0.1,
    sigma_star2=3.0,
    beta=0.02,
    noise_at_optimum=1.5,
    noise_variance_at_optimum=1.0,
    noise_lipschitz2=0.01,
    mu_at_optimum=0.5,
    L_at_optimum=2.0,
)
SETTING: dict[str, Any] = {"step_size": 1e-4, "local_steps": 20, "n_clients": 8}
RATE = (1 - 1e-4 * 0.5 / 4) ** 20
# β ≤ L/(4γ) = 5000 and β ≤ μ/(19γ) = 5000/19: A5's σ*² is 1.5 (1 + a) with (1 + 1/a) 0.01 = that
SIGMA_LOCAL = 1.5 * (1 + 1 / (5000 / 0.01 - 1))
SIGMA_SPEED = 1.5 * (1 + 1 / (5000 / 19 / 0.01 - 1))
SIGMA_SHARP = 1.5 * (1 + 1 / (5000 / 20 / 0.01 - 1))
UNIT = 1e-4 * SIGMA_SHARP / 0.5  # γσ*²/μ
SHARP = (math.sqrt(0.7 * UNIT / 8) + 3.4 * 0.25 * UNIT / 0.5) ** 2

VALUES: list[tuple[str, dict[str, Any], float]] = [
    ("contraction", {}, RATE),
    ("wasserstein_decay", {"rounds": 7, "initial_wasserstein2": 3.0}, RATE**7 * 3),
    (
        "wasserstein_from_start",
        {"rounds": 7, "initial_distance2": 4.0},
        RATE**7 * (2 + math.sqrt(8 * 1e-4 / 0.5)) ** 2,
    ),
    ("drift", {"distance2": 4.0}, RATE * 4 + 2 * 1e-8 * 20 * 1.0),
    ("crude_mse", {"rounds": 7, "initial_distance2": 4.0}, RATE**7 * 4 + 0.0016),
    ("stationary_mse", {}, 0.0016),
    ("local_iterates", {}, 28 * 2e-4 * SIGMA_LOCAL),
    ("control_variates", {}, 54 * 2 * SIGMA_LOCAL / 10),
    ("mean_local_iterates", {}, 16.62 * 2e-4),
    ("stationary_moment", {"order": 4}, 2.5 * UNIT),
    ("local_moment", {"order": 6}, 15 * UNIT),
    ("stationary_covariance", {}, SHARP),
    (
        "finite_time_mse",
        {"rounds": 7, "initial_distance2": 4.0},
        ((1 - 1.75 * 1e-4 * 0.5) ** 70 * (2 + math.sqrt(0.6 * UNIT)) + math.sqrt(SHARP)) ** 2,
    ),
    (
        "stationary_covariance",
        {"proof": "paper"},
        10 * 1e-4 * SIGMA_SPEED / 4
        + 90480 * 1e-6 * 0.25 * SIGMA_SPEED**1.5 / 0.5**2.5
        + 17280000 * 1e-12 * 20 * 0.0625 * SIGMA_SPEED**2 / 0.125,
    ),
    (
        "finite_time_mse",
        {"rounds": 7, "initial_distance2": 4.0, "proof": "paper"},
        RATE**7 * (16 + 64 * 1e-4 * SIGMA_SPEED / 0.5)
        + 20 * 1e-4 * SIGMA_SPEED / 4
        + 180960 * 1e-6 * 0.25 * SIGMA_SPEED**1.5 / 0.5**2.5
        + 34560000 * 1e-12 * 20 * 0.0625 * SIGMA_SPEED**2 / 0.125,
    ),
]
IDS = [f"{name}{'-paper' if 'proof' in more else ''}" for name, more, _ in VALUES]


def bound(name: str, known: Constants, setting: dict[str, Any]) -> Bound:
    """Return the bound of a method of `ScaffoldBounds` from all settings together."""
    own = {key: setting.pop(key) for key in [*SETTING, "proof"] if key in setting}
    found = getattr(ScaffoldBounds(known, **own), name)(**setting)
    assert isinstance(found, Bound)
    return found


@pytest.mark.parametrize(("name", "more", "value"), VALUES, ids=IDS)
def test_values_by_hand(name: str, more: dict[str, Any], value: float) -> None:
    found = bound(name, KNOWN, {**SETTING, **more})
    assert found.value == pytest.approx(value, rel=1e-7)
    assert found.holds
    assert all(condition.missed_by <= 1.0 for condition in found.conditions)
    assert found.statement in (getattr(ScaffoldBounds, name).__doc__ or "")


def test_initial_distance_by_hand() -> None:
    """‖θ⁰ − θ*‖² = 5 and γHζ₁ = 0.006."""
    assert ScaffoldBounds(KNOWN, **SETTING).initial_distance2(squared_error=5.0) == pytest.approx(
        5.000036, rel=1e-12
    )


CONDITIONS: list[tuple[str, dict[str, float]]] = [
    ("contraction", {"γ ≤ 1/(2L)": 0.25, "γH(L + μ) ≤ 1": 1.0}),
    ("drift", {"γ ≤ 1/(4L)": 0.125, "γH(L + μ) ≤ 1": 1.0}),
    ("local_iterates", {"γH(L + μ) ≤ 1/12": 1 / 12, "γβ ≤ L/4": 0.5}),
    (
        "finite_time_mse",
        {"γHLζ₂ ≤ μ/4": 0.125, "γH(L + μ) ≤ 1/24": 1 / 24, "γβ ≤ μ/20": 0.5 / 20},
    ),
]


@pytest.mark.parametrize(("name", "limits"), CONDITIONS, ids=[name for name, _ in CONDITIONS])
def test_limits_by_hand(name: str, limits: dict[str, float]) -> None:
    more = next(more for other, more, _ in VALUES if other == name)
    found = bound(name, KNOWN, {**SETTING, **more})
    assert {condition.name: condition.limit for condition in found.conditions} == pytest.approx(limits)
    values = {condition.name: condition.value for condition in found.conditions if "β" not in condition.name}
    by_hand = {"γ ": 1e-4, "γH(L +": 0.005, "γHLζ₂": 4e-4, "γH(L_record": 0.009}
    for name, value in values.items():
        assert value == pytest.approx(next(v for start, v in by_hand.items() if name.startswith(start)))


def test_the_papers_limits_by_hand() -> None:
    """With Q > 0 its sixth moments need smoothness of every record."""
    found = ScaffoldBounds(KNOWN, **SETTING, proof="paper").stationary_covariance()
    limits = {condition.name: condition.limit for condition in found.conditions}
    assert limits == pytest.approx(
        {"γHLζ₂ ≤ μ/10": 0.05, "γH(L_record + μ) ≤ 1/48": 1 / 48, "γβ ≤ μ/19": 0.5 / 19}
    )
    assert found.conditions[1].value == pytest.approx(0.009)


def test_ridge_needs_no_smoothness_of_records() -> None:
    """Where Q = 0 the paper's sixth moments, which need L_record, are not used."""
    flat = dataclasses.replace(KNOWN, Q=0.0)
    found = ScaffoldBounds(flat, **SETTING, proof="paper").stationary_covariance()
    assert "γH(L + μ) ≤ 1/48" in {condition.name for condition in found.conditions}
    assert found.value == pytest.approx(2.5e-4 * SIGMA_SPEED)
    assert ScaffoldBounds(flat, **SETTING).stationary_covariance().value == pytest.approx(0.7 * UNIT / 8)


def test_the_sharp_bound_never_exceeds_the_second_moment() -> None:
    """With a large third derivative Theorem 4.8 is worse than what does not fall with N."""
    curved = dataclasses.replace(KNOWN, Q=1e6)
    assert ScaffoldBounds(curved, **SETTING).stationary_covariance().value == pytest.approx(0.6 * UNIT)
    assert ScaffoldBounds(curved, **SETTING).stationary_moment(order=2).value == pytest.approx(0.6 * UNIT)


@pytest.mark.parametrize("Q", [0.0, 1e-3, 0.25, 100.0])
@pytest.mark.parametrize("n_clients", [1, 8, 1000])
@pytest.mark.parametrize("step_size", [1e-6, 1e-4, 8e-4])
def test_the_sharp_bound_is_far_below_the_papers(Q: float, n_clients: int, step_size: float) -> None:
    """At most a fourteenth, as 0.7 is of 10; where Q decides thousands of times smaller."""
    known, setting = dataclasses.replace(KNOWN, Q=Q), {**SETTING, "n_clients": n_clients, "step_size": step_size}
    sharp = ScaffoldBounds(known, **setting).stationary_covariance()
    paper = ScaffoldBounds(known, **setting, proof="paper").stationary_covariance()
    assert sharp.holds
    assert sharp.value <= paper.value / 14.0


def test_an_unknown_proof_or_order_is_refused() -> None:
    with pytest.raises(InvalidInput, match="proof must be one of"):
        ScaffoldBounds(KNOWN, **SETTING, proof="hope").stationary_covariance()  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="order must be 2, 4 or 6"):
        ScaffoldBounds(KNOWN, **SETTING).stationary_moment(order=3)  # type: ignore[arg-type]


@pytest.mark.parametrize(("name", "more", "value"), VALUES, ids=IDS)
def test_missed_conditions_are_said(name: str, more: dict[str, Any], value: float) -> None:
    """γ a million times too large: every condition is missed, by as much as it should be, and nothing crashes."""
    inside = bound(name, KNOWN, {**SETTING, **more})
    outside = bound(name, KNOWN, {**SETTING, "step_size": 100.0, **more})
    assert not outside.holds
    for near, far in zip(inside.conditions, outside.conditions, strict=True):
        assert not far.satisfied
        assert far.missed_by == pytest.approx(far.value / far.limit)
        if "β" not in far.name:
            assert far.missed_by == pytest.approx(1e6 * near.missed_by)


def test_noise_pair_is_the_best_that_a_condition_allows() -> None:
    """Any other slack that satisfies γβ ≤ μ/20 gives a larger Theorem 4.8."""
    gamma = 2.0  # γβ = 0.04 > μ/20 with the fields, so a slack of more than 1 is needed
    flat = dataclasses.replace(KNOWN, Q=0.0)
    found = ScaffoldBounds(flat, step_size=gamma, local_steps=1, n_clients=8).stationary_covariance()
    assert found.conditions[2].satisfied
    used = found.value * 8 * 0.5 / (0.7 * gamma)
    for slack in np.geomspace(0.01, 100, 81):
        sigma2, beta = KNOWN.noise_bound(float(slack))
        assert gamma * beta > 0.5 / 20 or sigma2 >= used * (1 - 1e-6)


@pytest.mark.parametrize(("name", "more", "value"), VALUES, ids=IDS)
def test_monotone(name: str, more: dict[str, Any], value: float) -> None:
    """More noise, a larger third derivative or start, fewer clients: never a smaller bound."""

    def of(known: Constants, **changes: Any) -> float:
        return bound(name, known, {**SETTING, **more, **changes}).value

    noisy = dataclasses.replace(KNOWN, noise_variance_at_optimum=1.3, noise_at_optimum=1.6, sigma_star2=3.2)
    assert of(noisy) >= value * (1 - 1e-7)
    assert of(dataclasses.replace(KNOWN, Q=0.3)) >= value * (1 - 1e-7)
    assert of(KNOWN, n_clients=4) >= value * (1 - 1e-7)
    for key, amount in more.items():
        if key in ("proof", "order"):
            continue
        more_of_it = of(KNOWN, **{key: amount + 1})
        assert (more_of_it < value) if key == "rounds" else (more_of_it > value)


def test_n_clients_divides_the_first_term_only() -> None:
    one, many = (
        ScaffoldBounds(KNOWN, **{**SETTING, "n_clients": n, "proof": "paper"}).stationary_covariance().value
        for n in (1, 10**9)
    )
    assert one - many == pytest.approx(10 * 1e-4 * SIGMA_SPEED / 0.5, rel=1e-6)
    sharp = ScaffoldBounds(KNOWN, **{**SETTING, "n_clients": 10**18}).stationary_covariance().value
    assert sharp == pytest.approx((3.4 * 0.25 * UNIT / 0.5) ** 2, rel=1e-3)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"step_size": 0.0}, "step_size"),
        ({"local_steps": 0}, "local_steps"),
        ({"n_clients": 2.5}, "n_clients"),
        ({"rounds": -1}, "rounds"),
        ({"initial_distance2": -1.0}, "initial_distance2"),
    ],
)
def test_refusals(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        bound("finite_time_mse", KNOWN, {**SETTING, "rounds": 3, "initial_distance2": 1.0, **changes})


def test_no_strong_convexity_is_rejected_with_advice() -> None:
    """A penalty alone is not enough if it leaves out the intercept, as here."""
    x = np.random.default_rng(0).normal(size=(2, 9, 2))
    x[..., -1] = 1.0
    problem = Logistic(x, np.where(x[..., 0] + x.sum(axis=2) > 0.3, 1.0, -1.0), l2=0.1, n_unpenalised=1)
    flat = constants(problem, batch_size=2)
    assert flat.mu == 0.0
    advice = r"penalise every coefficient, the intercept too \(l2 > 0 and n_unpenalised=0\)"
    with pytest.raises(InvalidInput, match=advice):
        ScaffoldBounds(flat, **SETTING)
    with pytest.raises(InvalidInput, match=advice):
        complexity(flat, target=0.1, n_clients=2, squared_error=1.0)


@pytest.mark.parametrize("kind", ["regression", "classification"])
def test_the_papers_own_experiment_is_outside_its_theorems(kind: Any) -> None:
    """γ = 0.05, H = 100, B = 10, N = 10: γH(L + μ) is hundreds of times larger than 1/48."""
    known = constants(paper(kind, n_clients=10), batch_size=10)
    figure: dict[str, Any] = {"step_size": 0.05, "local_steps": 100, "n_clients": 10}
    for function, more, _ in VALUES:
        found = bound(function, known, {**figure, **more})
        assert not found.holds
        missed = {condition.name: condition.missed_by for condition in found.conditions if not condition.satisfied}
        assert missed
        assert min(missed.values()) > 1
        (round_length,) = (factor for name, factor in missed.items() if name.startswith("γH(L"))
        assert round_length > 3
    covariance = ScaffoldBounds(known, **figure).stationary_covariance()
    assert all(condition.missed_by > 10 for condition in covariance.conditions)


# Corollary 4.10


@pytest.mark.parametrize("n_clients", [1, 10, 1000, 10**6])
@pytest.mark.parametrize("target", [1e-1, 1e-4, 1e-8])
@pytest.mark.parametrize("kind", KINDS)
def test_complexity_plugged_back(kind: Kind, target: float, n_clients: int) -> None:
    """Theorem 4.9 at the plan's γ, H, T is at most the target, with all its conditions."""
    problem = make(kind, (12,) * 10, l2=0.5)
    known = constants(problem, batch_size=4)
    error = float(problem.optimum() @ problem.optimum())
    plan = complexity(known, target=target, n_clients=n_clients, squared_error=error)
    setting: dict[str, Any] = {
        "step_size": plan.step_size,
        "local_steps": plan.local_steps,
        "n_clients": n_clients,
    }
    start = ScaffoldBounds(known, **setting).initial_distance2(squared_error=error)
    back = ScaffoldBounds(known, **setting).finite_time_mse(rounds=plan.rounds, initial_distance2=start)
    assert back == plan.bound
    assert back.holds, back.conditions
    assert back.value <= target
    assert plan.gradients_per_client == plan.local_steps * plan.rounds


def test_complexity_is_not_wasteful() -> None:
    """Half of the rounds, or a step size ten times larger, and the target is not proved any more."""
    plan = complexity(KNOWN, target=1e-6, n_clients=2, squared_error=5.0)
    setting: dict[str, Any] = {"local_steps": plan.local_steps, "n_clients": 2}
    proved = ScaffoldBounds(KNOWN, step_size=plan.step_size, **setting)
    start = proved.initial_distance2(squared_error=5.0)
    half = proved.finite_time_mse(rounds=plan.rounds // 2, initial_distance2=start)
    assert half.value > 1e-6
    large = ScaffoldBounds(KNOWN, step_size=10 * plan.step_size, **setting).stationary_covariance()
    assert 2 * large.value > 1e-6


@pytest.mark.parametrize(
    ("known", "proof", "within"),
    [
        (KNOWN, "sharp", 0.21),
        (KNOWN, "paper", 0.02),
        (dataclasses.replace(KNOWN, Q=0.0), "sharp", 0.6),
        (dataclasses.replace(KNOWN, Q=0.0), "paper", 0.6),
    ],
    ids=["Q > 0", "Q > 0, paper", "Q = 0", "Q = 0, paper"],
)
def test_linear_speed_up_up_to_the_largest_n(known: Constants, proof: Any, within: float) -> None:
    """Gradients per client fall as 1/N up to that N, to a fifth or to the rounding of H, and no further."""

    def gradients(n_clients: int, target: float) -> int:
        return complexity(
            known, target=target, n_clients=n_clients, squared_error=5.0, proof=proof
        ).gradients_per_client

    target = 1e-13
    largest = complexity(known, target=target, n_clients=1, squared_error=5.0, proof=proof).largest_n_clients
    assert largest >= 8
    two = gradients(2, target)  # of one client alone the second moment is the better bound
    for n_clients in (4, largest):
        assert 2 * two / gradients(n_clients, target) == pytest.approx(n_clients, rel=within)
    assert gradients(10_000 * largest, target) > 0.05 * gradients(largest, target)
    assert gradients(10_000 * largest, target) > 0.9 * gradients(1_000 * largest, target)


@pytest.mark.parametrize(("proof", "power"), [("sharp", 1.0), ("paper", 2.0 / 3.0)])
def test_largest_n_as_the_corollary_says(proof: Any, power: float) -> None:
    """Where Q decides, it grows as (μ/(Qε))^{2/3} in the paper, as μ/(Qε) by fourth moments; the target is ε²."""

    def largest(target: float, Q: float) -> int:
        known = dataclasses.replace(KNOWN, Q=Q)
        return complexity(known, target=target, n_clients=1, squared_error=1.0, proof=proof).largest_n_clients

    assert largest(1e-18, 0.25) / largest(1e-15, 0.25) == pytest.approx(1000 ** (power / 2), rel=0.02)
    assert largest(1e-18, 0.25) / largest(1e-18, 2.0) == pytest.approx(8**power, rel=0.02)


def test_gradients_per_client_do_not_depend_on_heterogeneity() -> None:
    """Corollary 4.10 prints a factor min(1, μ/ζ₂); HTγμ depends on ζ₂ through the rounding of H and T alone."""

    def steps(zeta2: float, proof: Any) -> float:
        known = dataclasses.replace(KNOWN, zeta2=zeta2)
        plan = complexity(known, target=1e-9, n_clients=4, squared_error=5.0, proof=proof)
        return plan.gradients_per_client * plan.step_size * known.mu

    for proof in ("sharp", "paper"):
        assert steps(29 * 0.5, proof) == pytest.approx(steps(0.9 * 0.5, proof), rel=0.01)


@pytest.mark.parametrize("kind", KINDS)
def test_certified_settings_cost_far_less_than_the_papers(kind: Kind) -> None:
    """Fifty times fewer gradients at least, and the rounds do not grow."""
    problem = make(kind, (12,) * 10, l2=0.5)
    known = constants(problem, batch_size=4)
    sharp, paper = (
        complexity(known, target=1e-3, n_clients=10, squared_error=1.0, proof=proof)
        for proof in ("sharp", "paper")
    )
    assert sharp.gradients_per_client < paper.gradients_per_client / 50
    assert sharp.rounds < paper.rounds / 8


def test_without_noise_there_is_nothing_to_speed_up() -> None:
    quiet = dataclasses.replace(
        KNOWN, sigma_star2=0.0, beta=0.0, noise_at_optimum=0.0, noise_variance_at_optimum=0.0, noise_lipschitz2=0.0
    )
    plan = complexity(quiet, target=1e-6, n_clients=10, squared_error=1.0)
    assert plan.largest_n_clients == 0
    assert plan.bound.holds
    assert plan.bound.value <= 1e-6


def test_covariances_bound_each_other_with_these_constants() -> None:
    """Lemma 4.7 at γ = 0.01, H = 3, N = 8, L = 2, μ = 0.5, ζ₂ = 0.1, worked out by hand."""
    quadratic = dataclasses.replace(KNOWN, Q=0.0)
    proved = ScaffoldBounds(quadratic, step_size=0.01, local_steps=3, n_clients=8)
    found = proved.covariance_system(theta=5.0, theta_xi=7.0, xi=11.0, round_noise=16.0)
    left = 1 - 0.995**3
    assert found.theta.value == pytest.approx((1.2e-3 * 7 + 3.6e-7 * 11 + 2e-4) / left)
    assert found.theta_xi.value == pytest.approx(1.0 + 1.92e-4 * 11 + 0.08 / 3)
    assert found.xi.value == pytest.approx(0.1 + 0.016 * 7 + 2.0)
    assert found.theta.holds
    assert found.theta.conditions[0].value == pytest.approx(0.075)
    with pytest.raises(InvalidInput, match="quadratic"):
        ScaffoldBounds(KNOWN, **SETTING).covariance_system(theta=1.0, theta_xi=1.0, xi=1.0, round_noise=1.0)


@pytest.mark.parametrize("H", [1, 2, 7])
def test_covariances_of_the_stationary_law_bound_each_other(H: int) -> None:
    """Lemma 4.7 against the stationary law of the linear recursion, without simulation."""
    problem = make("ridge", (30, 30, 30), 2)
    known = constants(problem, batch_size=2)
    gamma = 1 / (12.5 * H * (known.L + known.mu))
    hessians = problem.client_hessians(problem.optimum())
    noise = problem.client_noise_covariances(problem.optimum(), batch_size=2)
    powers = [np.linalg.matrix_power(np.eye(2) - gamma * hessians, h) for h in range(H)]
    Q = np.asarray(sum(power @ noise @ power for power in powers))
    full = lyapunov(hessians, problem.weights, gamma, H, Q).reshape(4, 2, 4, 2).swapaxes(1, 2)
    norms = np.linalg.norm(full, 2, axis=(2, 3))
    a, b, c = float(norms[0, 0]), float(norms[0, 1:].mean()), float(norms[1:, 1:].mean())
    round_noise = float(np.linalg.norm(Q, 2, axis=(1, 2)).mean())
    proved = ScaffoldBounds(known, step_size=gamma, local_steps=H, n_clients=3)
    found = proved.covariance_system(theta=a, theta_xi=b, xi=c, round_noise=round_noise)
    assert found.theta.holds
    assert a <= found.theta.value < 20 * a
    assert b <= found.theta_xi.value < 20 * b
    assert c <= found.xi.value < 20 * c
