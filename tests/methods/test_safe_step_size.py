"""The step sizes that users are told are safe, against what methods do on a quadratic whose clients disagree."""

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

import fedscaffold as fs
from fedscaffold.core.protocols import Method
from fedscaffold.core.types import Array

L, MU = 4.0, 0.02
# Each client is steep where the other one is flat.
PROBLEM = fs.problems.LinearSA(
    np.array([[np.diag([L, MU])], [np.diag([MU, L])]]), np.array([[[1.0, 2.0]], [[-3.0, 1.0]]])
)
H = 20

MAKE: dict[str, Callable[[float], Method]] = {
    "scaffold": lambda gamma: fs.Scaffold(step_size=gamma, local_steps=H),
    "fedlin": lambda gamma: fs.FedLin(step_size=gamma, local_steps=H),
    "two-sided": lambda gamma: fs.TwoSidedScaffold(step_size=gamma, local_steps=H, server_step_size=3.0),
    "proxskip": lambda gamma: fs.ProxSkip(step_size=gamma, communication_probability=1 / H),
    "fedavg": lambda gamma: fs.FedAvg(step_size=gamma, local_steps=H),
    "fedprox": lambda gamma: fs.FedProx(step_size=gamma, local_steps=H, proximal_weight=0.5),
    "fedsplit": lambda gamma: fs.FedSplit(step_size=gamma, local_steps=H, proximal_weight=0.5),
    "svrg": lambda gamma: fs.LocalSvrg(step_size=gamma, local_steps=H),
    "vr-proxskip": lambda gamma: fs.VRProxSkip(step_size=gamma, communication_probability=1 / H),
    "randprox": lambda gamma: fs.RandProx(step_size=gamma, communication_probability=0.5, share=0.5),
    "amplified": lambda gamma: fs.AmplifiedScaffold(
        step_size=gamma, local_steps=H, window=2, amplification=1.5, cohort=1
    ),
    "tamuna": lambda gamma: fs.Tamuna(step_size=gamma, communication_probability=1 / H, owners=2),
}


def safe(name: str) -> float:
    return MAKE[name](1.0).safe_step_size(L, MU)


def distances(method: Method, rounds: int = 60) -> list[float]:
    """‖θ_t − θ*‖ from θ = 0, with full gradients."""
    anchored = isinstance(method, fs.LocalSvrg | fs.VRProxSkip)  # not for linear systems in the compiled loop
    engine = "reference" if anchored else "native"
    return np.sqrt(fs.run(PROBLEM, method, rounds=rounds, engine=engine).mse[0]).tolist()


def falls_always(values: list[float]) -> bool:
    return all(after <= before for before, after in pairwise(values) if before > 1e-12)


def largest(fits: Callable[[float], bool]) -> float:
    """The largest γ that fits, by bisection."""
    low, high = 0.0, 10.0
    for _ in range(200):
        gamma = 0.5 * (low + high)
        low, high = (gamma, high) if fits(gamma) else (low, gamma)
    return low


@pytest.mark.parametrize(("steps", "longest"), [(1, 1), (3, 3), (50, 50), ((2, 7, 5), 7)])
@pytest.mark.parametrize("mu", [0.0, 0.5, 4.0])
def test_scaffold_takes_the_largest_step_size_of_lemma_4_1(
    steps: int | tuple[int, ...], longest: int, mu: float
) -> None:
    found = fs.Scaffold(step_size=1.0, local_steps=steps).safe_step_size(L, mu)
    wanted = largest(lambda gamma: 2 * gamma * L <= 1 and gamma * longest * (L + mu) <= 1)
    assert found == pytest.approx(wanted, rel=1e-12)


@pytest.mark.parametrize("steps", [1, 20])
def test_fedlin_takes_the_largest_step_size_of_its_theorem(steps: int) -> None:
    """10γLH ≤ 1 in Mitra et al."""
    found = fs.FedLin(step_size=1.0, local_steps=steps).safe_step_size(L, MU)
    assert found == pytest.approx(largest(lambda gamma: 10 * gamma * L * steps <= 1), rel=1e-12)


@pytest.mark.parametrize("steps", [1, 20])
@pytest.mark.parametrize(("eta", "at_least_one"), [(0.5, 1.0), (1.0, 1.0), (3.0, 3.0)])
def test_two_sided_scaffold_takes_the_largest_step_size_of_its_theorem(
    steps: int, eta: float, at_least_one: float
) -> None:
    """81γηLH ≤ 1 with η ≥ 1 in Karimireddy et al."""
    found = fs.TwoSidedScaffold(step_size=1.0, local_steps=steps, server_step_size=eta).safe_step_size(L, MU)
    wanted = largest(lambda gamma: 81 * gamma * at_least_one * L * steps <= 1)
    assert found == pytest.approx(wanted, rel=1e-12)


@pytest.mark.parametrize("name", ["scaffold", "fedlin", "two-sided", "svrg"])
def test_every_round_brings_the_model_closer(name: str) -> None:
    found = distances(MAKE[name](safe(name)))
    assert falls_always(found)
    assert found[-1] < 0.7 * found[0]


@pytest.mark.parametrize(
    ("compression", "server_levels"),
    [
        *((name, None) for name in ("random_k:0.5", "top_k:0.5", "natural", "quantised:4", "quantised:100")),
        ("quantised:4", 8),
    ],
)
@pytest.mark.parametrize("steps", [1, 20])
def test_scallion_converges_with_every_compressor(compression: str, server_levels: int | None, steps: int) -> None:
    def method(gamma: float) -> Method:
        return fs.Scallion(
            step_size=gamma, local_steps=steps, compression=compression, server_levels=server_levels
        )

    found = distances(method(method(1.0).safe_step_size(L, MU)), rounds=1500)
    assert found[-1] < 0.05 * found[0]
    assert max(found) < 1.2 * found[0]


@pytest.mark.parametrize("name", ["proxskip", "tamuna", "vr-proxskip"])
def test_converges_with_its_random_numbers_of_steps(name: str) -> None:
    found = distances(MAKE[name](safe(name)), rounds=150)
    assert found[-1] < 1e-6 * found[0]


@pytest.mark.parametrize("steps", [1, 5, 200])
def test_apda_converges_however_exact_its_proximal_steps(steps: int) -> None:
    method = fs.Apda(step_size=1.0, local_steps=steps, smoothness=L, strong_convexity=MU)
    method = replace(method, step_size=method.safe_step_size(L, MU))
    found = distances(method, rounds=3000)
    assert found[-1] < 1e-3 * found[0]
    with pytest.raises(fs.Diverged):
        distances(replace(method, step_size=4.2 * method.step_size, local_steps=20))


@pytest.mark.parametrize("steps", [1, 3, 200])
@pytest.mark.parametrize("weight", [0.01, 0.5, 20.0])
def test_fedsplit_converges_however_exact_its_proximal_steps(steps: int, weight: float) -> None:
    method = fs.FedSplit(step_size=1.0 / (L + weight), local_steps=steps, proximal_weight=weight)
    assert method.step_size == method.safe_step_size(L, MU)
    found = distances(method, rounds=1500)
    assert found[-1] < 0.05 * found[0]


@pytest.mark.parametrize(("name", "rounds"), [("randprox", 1500), ("amplified", 6000)])
def test_converges_with_its_safe_step_size(name: str, rounds: int) -> None:
    found = distances(MAKE[name](safe(name)), rounds=rounds)
    assert found[-1] < 0.1 * found[0]


@pytest.mark.parametrize("name", ["fedavg", "fedprox"])
def test_biased_methods_forget_where_they_started(name: str) -> None:
    """They are biased, so not the distance to θ* shrinks but the one between two runs."""
    method = MAKE[name](safe(name))

    def after(rounds: int, start: Array) -> Array:
        return fs.run(PROBLEM, method, rounds=rounds, theta0=start, engine="reference").theta[0]

    apart = [float(np.linalg.norm(after(t, np.zeros(2)) - after(t, np.ones(2)))) for t in (1, 5, 20)]
    assert np.sqrt(2.0) > apart[0] > apart[1] > apart[2]
    assert apart[2] < 0.1


def test_scaffold_with_four_times_as_much_does_not_always_get_closer() -> None:
    """So the rule's 1/H is no more than four times too careful."""
    assert not falls_always(distances(MAKE["scaffold"](4.2 * safe("scaffold"))))


@pytest.mark.parametrize("name", ["fedavg", "fedprox", "fedsplit", "proxskip", "tamuna", "randprox"])
def test_four_times_as_much_diverges(name: str) -> None:
    with pytest.raises(fs.Diverged):
        distances(MAKE[name](4.2 * safe(name)))


@pytest.mark.parametrize("name", ["fedlin", "two-sided"])
def test_a_rule_without_local_steps_would_be_wrong(name: str) -> None:
    """At 0.4/L, four times FedLin's rule for H = 1, many local steps carry the model away."""
    far: dict[str, Method] = {"fedlin": fs.FedLin(step_size=0.4 / L, local_steps=400),
           "two-sided": fs.TwoSidedScaffold(step_size=0.4 / L, local_steps=400, server_step_size=3.0)}  # fmt: skip
    with pytest.raises(fs.Diverged):
        distances(far[name], rounds=300)
