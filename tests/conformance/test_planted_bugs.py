"""Each planted bug fails exactly the checks that it should, and its hint points at it."""

from functools import lru_cache, partial

import numpy as np
import pytest

from fedscaffold.conformance import Report, check
from tests.conformance.implementations import Array, Bug, Implementation, OneVariate, TwoSided

OPTIMUM, FEDAVG = "reaches the optimum", "differs from FedAvg"
SUM, OWN, GRADIENT = (
    "control variates sum to zero",
    "control variates are each client's own",
    "control variates are mean gradients",
)
PARTIAL, STEPS, WEIGHTS = "partial participation", "unequal local steps", "unequal weights"
WEIGHTED_COHORTS, CHANGING = "unequal weights in cohorts", "settings that change between rounds"
LOST, RESTART, SERVER = "lost replies", "restart of a client", "restart of the server"
PATH = "follows Scaffold's path"
REACHES = {OPTIMUM, PARTIAL, STEPS, WEIGHTS, WEIGHTED_COHORTS, CHANGING, LOST, PATH}
SEEDS = [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 6))]
BOTH = (OneVariate, TwoSided)
ONE_STEP_MORE = Bug(divide=lambda gamma, steps: gamma * (steps + 1))
ONE_STEP_LESS = Bug(divide=lambda gamma, steps: gamma * (steps - 1))
NO_STEPS = Bug(divide=lambda gamma, steps: gamma)

PLANTED: list[tuple[str, tuple[type[Implementation], ...], Bug, set[str]]] = [
    ("wrong sign", BOTH, Bug(sign=-1.0), REACHES | {GRADIENT}),
    ("wrong sign, unseen in the corrections", BOTH, Bug(sign=-1.0, shows_state=True), REACHES | {GRADIENT}),
    ("never applied", BOTH, Bug(sign=0.0, shows_state=True), REACHES | {FEDAVG, GRADIENT}),
    ("starts at the model", BOTH, Bug(starts_at_model=True), REACHES | {SUM}),
    (
        "starts at the server's",
        (TwoSided,),
        Bug(starts_at_server=True),
        {SUM, OWN, PARTIAL, PATH, WEIGHTED_COHORTS, LOST},
    ),
    ("|S|/N missing", (TwoSided,), Bug(server_share="1"), {SUM, PATH, WEIGHTED_COHORTS, LOST}),
    (
        "c is the cohort's mean",
        (TwoSided,),
        Bug(server_share="cohort"),
        {SUM, PARTIAL, PATH, WEIGHTED_COHORTS, LOST},
    ),
    ("aliased", (OneVariate,), Bug(aliased=True), REACHES | {FEDAVG, SUM, OWN, GRADIENT, RESTART}),
    ("aliased", (TwoSided,), Bug(aliased=True), REACHES | {SUM, OWN, GRADIENT, RESTART}),
    ("γ(H + 1)", BOTH, ONE_STEP_MORE, {GRADIENT, PATH, CHANGING}),
    ("γ(H − 1)", BOTH, ONE_STEP_LESS, {GRADIENT, STEPS, PATH, CHANGING}),  # 1/0 if H = 1
    ("γ", BOTH, NO_STEPS, REACHES | {GRADIENT}),
    ("H without γ", BOTH, Bug(divide=lambda gamma, steps: steps), REACHES | {FEDAVG, GRADIENT}),
    ("state lost at restart", BOTH, Bug(loses_state=True), {RESTART}),
    ("old server variate after restart", (TwoSided,), Bug(stale_server_variate=True), {RESTART}),
    ("cohort ignored", BOTH, Bug(ignores_cohort=True), {OWN, RESTART, PATH}),
    ("weights ignored", BOTH, Bug(ignores_weights=True), {SUM, WEIGHTS, WEIGHTED_COHORTS}),
    ("mean over the clients seen", (TwoSided,), Bug(server_share="seen"), {SUM, PATH}),
    ("weights within the cohort", (TwoSided,), Bug(server_share="weights"), {SUM, WEIGHTED_COHORTS}),
    ("H of the first round", BOTH, Bug(keeps_first_steps=True), {CHANGING}),
    ("lost reply counted by its client", BOTH, Bug(counts_lost=True), {LOST}),
    ("saved state goes on changing", BOTH, Bug(saves_a_view=True), {RESTART}),
    ("server variate lost at restart", (TwoSided,), Bug(server_forgets=True), {SERVER}),
    ("models averaged, steps unequal", (OneVariate,), Bug(averages_models=True), {SUM, STEPS}),
]
CASES = [  # a bug that both implementations can have is planted in the other one by `make test-slow`
    pytest.param(
        implementation, bug, failing, id=f"{name}-{implementation.__name__}",
        marks=pytest.mark.slow if implementation is not implementations[-1] else (),
    )
    for name, implementations, bug, failing in PLANTED
    for implementation in implementations
]  # fmt: skip


@lru_cache
def report_of(implementation: type[Implementation], bug: Bug, seed: int) -> Report:
    """The report on an implementation with a bug, which several tests look at."""
    return check(partial(implementation, bug=bug), seed=seed)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("implementation", "bug", "failing"), CASES)
def test_exactly_these_checks_fail(
    implementation: type[Implementation], bug: Bug, failing: set[str], seed: int
) -> None:
    report = report_of(implementation, bug, seed)  # type: ignore[arg-type]  # mypy: classes are hashable
    assert set(report.failures) == failing
    assert not report.passed


HINTS = [
    (Bug(sign=-1.0), OPTIMUM, "diverges: is the correction's sign right?"),
    (Bug(sign=-1.0), GRADIENT, "control variates are -1 times what they should be: the sign is wrong"),
    (Bug(sign=0.0, shows_state=True), OPTIMUM, "FedAvg's fixed point: is the correction applied at all?"),
    (Bug(sign=0.0, shows_state=True), FEDAVG, "goes FedAvg's way"),
    (
        Bug(starts_at_model=True),
        OPTIMUM,
        "settled at a wrong point: does each client's control variate start at zero?",
    ),
    (Bug(starts_at_server=True), SUM, "starts at the server's in its first round"),
    (Bug(server_share="1"), SUM, "is |S|/N missing?"),
    (Bug(server_share="seen"), SUM, "mean over the clients seen so far"),
    (Bug(server_share="weights"), SUM, "weights that are normalised within the cohort"),
    (Bug(starts_at_model=True), SUM, "must start at zero"),
    (Bug(keeps_first_steps=True), CHANGING, "is one kept from an earlier round?"),
    (Bug(counts_lost=True), LOST, "whose reply was lost"),
    (Bug(saves_a_view=True), RESTART, "it must be a copy"),
    (Bug(server_forgets=True), SERVER, "server variate"),
    (Bug(aliased=True), OWN, "do clients share one buffer"),
    (ONE_STEP_MORE, GRADIENT, "γ(H + 1) instead of γH"),
    (ONE_STEP_LESS, GRADIENT, "γ(H − 1) instead of γH"),
    (NO_STEPS, GRADIENT, "divided by γ instead of γH"),
    (Bug(loses_state=True), RESTART, "does save() hold all of its state"),
    (Bug(ignores_weights=True), WEIGHTS, "sits at the optimum of equal weights"),
]


@pytest.mark.parametrize(("bug", "name", "words"), HINTS)
def test_hints_point_at_the_cause(bug: Bug, name: str, words: str) -> None:
    entry = next(entry for entry in report_of(TwoSided, bug, 0).entries if entry.name == name)
    assert entry.verdict == "failed"
    assert words in entry.hint


def test_the_share_of_clients_that_mix_is_counted_by_hand() -> None:
    """One buffer for all: every pair that took part mixes, no absent pair does.

    Looked at are three rounds of 5, 3 and 8 clients who all take part, of 3 out of 8 and of 2 out of 6.
    """
    entry = next(entry for entry in report_of(TwoSided, Bug(aliased=True), 0).entries if entry.name == OWN)
    present = 10 + 3 + 28 + 3 + 1
    assert entry.measured == pytest.approx(present / (present + 10 + 6))


class FedAvg(OneVariate):
    """A federation that keeps no control variates."""

    def asked_for(self, client: int) -> Array:
        return np.zeros_like(self.theta)


@pytest.mark.parametrize("seed", SEEDS)
def test_fedavg_fails(seed: int) -> None:
    assert set(check(FedAvg, seed=seed).failures) == REACHES | {FEDAVG, OWN, GRADIENT}


@pytest.mark.slow
@pytest.mark.parametrize(("implementation", "bug", "failing"), CASES)
def test_the_tolerance_for_float32_still_catches_them(
    implementation: type[Implementation], bug: Bug, failing: set[str]
) -> None:
    """Where a bug only slows the way to the optimum, the last rounds may be within this tolerance all the same."""
    found = set(check(partial(implementation, bug=bug), tolerance=1e-4).failures)
    assert failing - {"lost replies", "unequal weights in cohorts"} <= found <= failing
    assert found
