"""Every method, on both engines, against its paper's pseudo-code."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import fedscaffold as fs
from fedscaffold.core.protocols import Method
from tests import naive
from tests.samples import KINDS, Kind, tables

SIZES, DIM, L2, WEIGHTS = (5, 9, 3, 6, 4), 3, 0.2, (1.0, 2.0, 0.5, 3.0, 1.5)
GAMMA, H, T, SEED, BATCH, N = 0.15, 4, 6, 2**40 + 17, 3, len(SIZES)
THETA0 = [0.3, -1.0, 2.0]
UNEQUAL = (4, 1, 7, 2, 5)
P = 0.3

Oracle = Callable[..., naive.Result]


def scallion(
    compression: str, alpha: float, cohort: int | None = None, server_levels: int | None = None
) -> tuple[Method, Oracle]:
    kind, _, setting = compression.partition(":")
    return (
        fs.Scallion(
            step_size=GAMMA, local_steps=H, compression=compression, cohort=cohort, server_levels=server_levels
        ),
        lambda c, d, r: naive.scallion(
            c, d, gamma=GAMMA, H=H, alpha=alpha, compress=naive.compressing(SEED, kind, float(setting or 0)),
            cohorts=ALL if cohort is None else some(r, cohort), theta=THETA0, repetition=r,
            server_levels=server_levels,
        ),
    )  # fmt: skip


def tamuna(owners: int, cohort: int) -> tuple[Method, Oracle]:
    def oracle(c: Any, d: Any, r: int) -> naive.Result:
        who = ALL if cohort == N else some(r, cohort)
        return naive.tamuna(
            c, d, gamma=GAMMA, p=P, s=owners, lengths=[naive.length(SEED, r, t, P) for t in range(T)], cohorts=who,
            owners=lambda t, j: naive.owners_of(SEED, r, t, who[t], owners, j), theta=THETA0, repetition=r,
        )  # fmt: skip

    method = fs.Tamuna(step_size=GAMMA, communication_probability=P, owners=owners, cohort=cohort)
    return method, oracle


def some(r: int, count: int) -> list[list[int]]:
    return [naive.cohort(SEED, r, t, count, N) for t in range(T)]


ALL = [list(range(N))] * T
CASES: dict[str, tuple[Method, Oracle]] = {
    "all": (
        fs.Scaffold(step_size=GAMMA, local_steps=H),
        lambda c, d, r: naive.scaffold(c, d, gamma=GAMMA, H=H, T=T, theta=THETA0, repetition=r),
    ),
    "cohort": (
        fs.Scaffold(step_size=GAMMA, local_steps=H, cohort=2),
        lambda c, d, r: naive.scaffold_in_cohorts(
            c, d, gamma=GAMMA, H=[H] * N, cohorts=some(r, 2), theta=THETA0, repetition=r
        ),
    ),
    "share": (
        fs.Scaffold(step_size=GAMMA, local_steps=H, participation=0.6),
        lambda c, d, r: naive.scaffold_in_cohorts(
            c, d, gamma=GAMMA, H=[H] * N, cohorts=some(r, 3), theta=THETA0, repetition=r
        ),
    ),
    "unequal steps": (
        fs.Scaffold(step_size=GAMMA, local_steps=UNEQUAL),
        lambda c, d, r: naive.scaffold_in_cohorts(
            c, d, gamma=GAMMA, H=UNEQUAL, cohorts=ALL, theta=THETA0, repetition=r
        ),
    ),
    "unequal steps in cohorts": (
        fs.Scaffold(step_size=GAMMA, local_steps=np.array(UNEQUAL).tolist(), cohort=3),
        lambda c, d, r: naive.scaffold_in_cohorts(
            c, d, gamma=GAMMA, H=UNEQUAL, cohorts=some(r, 3), theta=THETA0, repetition=r
        ),
    ),
    "two-sided": (
        fs.TwoSidedScaffold(step_size=GAMMA, local_steps=H, server_step_size=0.7),
        lambda c, d, r: naive.two_sided(
            c, d, gamma=GAMMA, H=H, eta=0.7, cohorts=ALL, theta=THETA0, repetition=r
        ),
    ),
    "two-sided in cohorts": (
        fs.TwoSidedScaffold(step_size=GAMMA, local_steps=H, server_step_size=1.3, cohort=2),
        lambda c, d, r: naive.two_sided(
            c, d, gamma=GAMMA, H=H, eta=1.3, cohorts=some(r, 2), theta=THETA0, repetition=r
        ),
    ),
    "proxskip": (
        fs.ProxSkip(step_size=GAMMA, communication_probability=P),
        lambda c, d, r: naive.proxskip(
            c, d, gamma=GAMMA, p=P, lengths=[naive.length(SEED, r, t, P) for t in range(T)], theta=THETA0,
            repetition=r,
        ),
    ),
    "fedlin, full": (
        fs.FedLin(step_size=GAMMA, local_steps=H),
        lambda c, d, r: naive.fedlin(c, d, gamma=GAMMA, H=H, T=T, full=True, theta=THETA0, repetition=r),
    ),
    "fedlin, minibatch": (
        fs.FedLin(step_size=GAMMA, local_steps=H, correction_gradients="minibatch"),
        lambda c, d, r: naive.fedlin(c, d, gamma=GAMMA, H=H, T=T, full=False, theta=THETA0, repetition=r),
    ),
    "fedprox": (
        fs.FedProx(step_size=GAMMA, local_steps=H, proximal_weight=0.6),
        lambda c, d, r: naive.fedprox(c, d, gamma=GAMMA, mu=0.6, H=H, cohorts=ALL, theta=THETA0, repetition=r),
    ),
    "fedprox in cohorts": (
        fs.FedProx(step_size=GAMMA, local_steps=H, proximal_weight=0.6, cohort=2),
        lambda c, d, r: naive.fedprox(
            c, d, gamma=GAMMA, mu=0.6, H=H, cohorts=some(r, 2), theta=THETA0, repetition=r
        ),
    ),
    "fedsplit": (
        fs.FedSplit(step_size=GAMMA, local_steps=H, proximal_weight=0.8),
        lambda c, d, r: naive.fedsplit(c, d, gamma=GAMMA, s=1 / 0.8, H=H, T=T, theta=THETA0, repetition=r),
    ),
    "scallion, random coordinates": scallion("random_k:0.5", 0.5),
    "scallion, random coordinates, in cohorts": scallion("random_k:0.3", 0.3, cohort=2),
    "scallion, powers of two": scallion("natural", 8 / 9),
    "scallion, levels": scallion("quantised:10", 1 / (1 + 64 / 100), cohort=3),
    "scallion, largest coordinates": scallion("top_k:0.6", 1.0),
    "scallion, both directions": scallion("quantised:10", 1 / (1 + 64 / 100), server_levels=9),
    "amplified scaffold": (
        fs.AmplifiedScaffold(step_size=GAMMA, local_steps=H, window=3, amplification=1.4, cohort=2),
        lambda c, d, r: naive.amplified_scaffold(
            c, d, eta=GAMMA, K=H, P=3, a=1.4, cohorts=some(r, 2), theta=THETA0, repetition=r
        ),
    ),
    "local svrg": (
        fs.LocalSvrg(step_size=GAMMA, local_steps=H),
        lambda c, d, r: naive.local_svrg(c, d, gamma=GAMMA, H=H, T=T, theta=THETA0, repetition=r),
    ),
    "proxskip with variance reduction": (
        fs.VRProxSkip(step_size=GAMMA, communication_probability=P),
        lambda c, d, r: naive.vr_proxskip(
            c, d, gamma=GAMMA, p=P, lengths=[naive.length(SEED, r, t, P) for t in range(T)], theta=THETA0,
            repetition=r,
        ),
    ),
    "randprox": (
        fs.RandProx(step_size=GAMMA, communication_probability=P, share=0.5),
        lambda c, d, r: naive.randprox(
            c, d, gamma=GAMMA, p=P, lengths=[naive.length(SEED, r, t, P) for t in range(T)],
            sent=lambda t: naive.shared_coordinates(SEED, r, t, 2, DIM), theta=THETA0, repetition=r,
        ),
    ),
    "apda": (
        fs.Apda(step_size=GAMMA, local_steps=H, smoothness=3.0, strong_convexity=0.2),
        lambda c, d, r: naive.apda(
            c, d, gamma=GAMMA, L=3.0, mu=0.2, H=H, T=T, theta=THETA0, repetition=r
        ),
    ),
    "tamuna": tamuna(2, N),
    "tamuna, three owners": tamuna(3, N),
    "tamuna in cohorts": tamuna(2, 4),
    "tamuna in cohorts, not compressed": tamuna(3, 3),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("engine", ["reference", "native"])
@pytest.mark.parametrize(("batch_size", "sampling"), [(BATCH, "with_replacement"), (BATCH, "without_replacement")])
def test_run_is_the_pseudo_code(case: str, kind: Kind, engine: str, batch_size: int, sampling: Any) -> None:
    X, y = tables(kind, SIZES, DIM, seed=3)
    share = [w / sum(WEIGHTS) for w in WEIGHTS]
    clients = naive.Clients(kind, [x.tolist() for x in X], [t.tolist() for t in y], L2, share)
    draw = naive.drawing(SEED, SIZES, batch_size, sampling)
    problem = (fs.problems.Ridge if kind == "ridge" else fs.problems.Logistic)(X, y, l2=L2, weights=WEIGHTS)
    method, oracle = CASES[case]
    trace = fs.run(
        problem, method, rounds=T, batch_size=batch_size, sampling=sampling, seed=SEED, repetitions=3,
        engine=engine, theta0=THETA0,
    )  # fmt: skip
    for r in range(3):
        expected = oracle(clients, draw, r)
        np.testing.assert_allclose(trace.theta[r], expected.theta, rtol=0, atol=1e-13)
        np.testing.assert_allclose(trace.control_variates[r], expected.control_variates, rtol=0, atol=1e-12)
        mse = [float(np.sum((np.array(theta) - problem.optimum()) ** 2)) for theta in expected.iterates]
        np.testing.assert_allclose(trace.mse[r], mse, rtol=1e-11, atol=0)
