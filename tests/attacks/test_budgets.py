"""Requests that try to get more out of a site than its policy and its privacy budget allow."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedscaffold as fs
from fedscaffold.federation import (
    ProblemTask,
    Refusal,
    RefusalCode,
    RunConfig,
    SitePolicy,
    handle_request,
    initial_ledger,
    train_request,
)
from fedscaffold.federation.client.store import SiteFolder
from fedscaffold.federation.study.private import private_plan
from fedscaffold.federation.study.questions import PHASES
from fedscaffold.federation.study.rows import SiteRows
from fedscaffold.federation.study.transport import SiteProblems
from fedscaffold.privacy import ClientLevel, RecordLevel
from fedscaffold.privacy.grid import clipped_sum
from tests.attacks.test_studies import begun, plan, visits

PARTS = ClientLevel(clip=1.0, noise_multiplier=30.0, summed=True)
SITE: dict[str, Any] = {"protect": "site", "tell_rows": False, "tell_state": False}


def private_request(**more: Any) -> Any:
    config = RunConfig(**{
        "name": "demo", "method": fs.Scaffold(step_size=0.1, local_steps=5), "n_clients": 1, "dim": 2,
        "privacy": RecordLevel(clip=1.0, noise_multiplier=30.0), **more,
    })  # fmt: skip
    return train_request(config, initial_ledger(config, np.zeros(2)), client=0)


def task() -> ProblemTask:
    rng = np.random.default_rng(0)
    return ProblemTask(fs.problems.Ridge([rng.normal(size=(50, 2))], [rng.normal(size=50)], l2=0.1))


def steps(count: int) -> fs.Scaffold:
    return fs.Scaffold(step_size=0.1, local_steps=count)


def steps_of(folder: Path) -> int:
    lines = (folder / "privacy-budget.json").read_text().splitlines()[1:]
    return sum(json.loads(line)["steps"] for line in lines)


def test_a_run_cannot_begin_to_count_anew_by_another_configuration(tmp_path: Path) -> None:
    """Answers are counted by run: neither another seed nor other settings make a site forget them."""
    policy = SitePolicy(max_rounds=3)
    first = private_request(privacy=None)
    for seed in range(3):
        config: RunConfig = replace(first.config, seed=seed)
        handle_request(replace(first, config=config), task(), tmp_path, policy)
    with pytest.raises(Refusal, match="the policy allows 3") as refused:
        handle_request(replace(first, config=replace(first.config, seed=3)), task(), tmp_path, policy)
    assert refused.value.code is RefusalCode.POLICY_ROUNDS


@pytest.mark.parametrize("change", ["other θ", "other clip", "other noise", "other state", "other seed"])
def test_another_question_in_the_same_round_gets_new_noise_and_is_paid_for(change: str, tmp_path: Path) -> None:
    """Twice the same noise would cancel in the difference of two answers."""
    policy, asked = SitePolicy(epsilon=5.0, delta=1e-3), private_request()
    config = asked.config
    other: Any = {
        "other θ": replace(asked, server=type(asked.server)(np.full((1, 2), 1e-9))),
        "other clip": replace(asked, config=replace(config, privacy=RecordLevel(clip=2.0, noise_multiplier=30.0))),
        "other noise": replace(
            asked, config=replace(config, privacy=RecordLevel(clip=1.0, noise_multiplier=60.0))
        ),
        "other state": replace(asked, client_state=type(config.initial_client_state)(np.full((1, 1, 2), 1e-9))),
        "other seed": replace(asked, config=replace(config, seed=1)),
    }[change]
    first, second = (handle_request(one, task(), tmp_path, policy) for one in (asked, other))
    assert isinstance(first, fs.federation.ClientUpdate)
    assert isinstance(second, fs.federation.ClientUpdate)
    assert np.abs(first.vector - second.vector).min() > 1e-6
    assert steps_of(tmp_path) == 10


def test_the_same_request_again_is_answered_from_disk_and_costs_nothing(tmp_path: Path) -> None:
    policy, request = SitePolicy(epsilon=1.0, delta=1e-3), private_request()
    first: Any = handle_request(request, task(), tmp_path, policy)
    again: Any = handle_request(request, task(), tmp_path, policy)
    np.testing.assert_array_equal(first.vector, again.vector)
    assert steps_of(tmp_path) == 5


@pytest.mark.parametrize(
    ("asked", "policy", "code", "words"),
    [
        ({"privacy": None}, {}, "only-private", "steps without noise"),
        ({"privacy": RecordLevel(clip=1.0, noise_multiplier=0.0)}, {}, "privacy-budget", "would spend ε = inf"),
        ({"privacy": RecordLevel(clip=1.0, noise_multiplier=3.0)}, {}, "privacy-budget", "of a budget of 1"),
        ({"privacy": RecordLevel(clip=1e-323, noise_multiplier=30.0)}, {}, "policy-method", "clip must be"),
        ({"privacy": RecordLevel(clip=1e308, noise_multiplier=30.0)}, {}, "policy-method", "clip must be"),
        ({"privacy": RecordLevel(clip=1.0, noise_multiplier=1e300)}, {}, "policy-method", "noise below"),
        ({"privacy": RecordLevel(clip=1.0, noise_multiplier=1e-300)}, {}, "privacy-budget", "would spend ε = inf"),
        (
            {"method": steps(5000)},
            {},
            "privacy-budget",
            "5,000 more steps would spend",
        ),
        (
            {"method": steps(20_000)},
            {},
            "policy-local-steps",
            "20000 local steps are asked for",
        ),
        (
            {"method": fs.FedAvg(step_size=0.1, local_steps=5), "privacy": PARTS},
            SITE,
            "only-secure",
            "secure sums",
        ),
        ({"privacy": ClientLevel(clip=1.0, noise_multiplier=30.0)}, {}, "only-private", "protects something else"),
    ],
)
def test_requests_beyond_a_budget(asked: Any, policy: Any, code: str, words: str, tmp_path: Path) -> None:
    own = SitePolicy(**{"epsilon": 1.0, "delta": 1e-3, **policy})
    with pytest.raises(Refusal, match=words) as refused:
        handle_request(private_request(**asked), task(), tmp_path, own)
    assert refused.value.code == code
    assert not (tmp_path / "privacy-budget.json").exists() or steps_of(tmp_path) == 0


def test_a_message_that_protects_the_site_costs_one_step(tmp_path: Path) -> None:
    privacy = ClientLevel(clip=1.0, noise_multiplier=30.0)
    handle_request(private_request(privacy=privacy), task(), tmp_path, SitePolicy(epsilon=1.0, delta=1e-3, **SITE))
    assert steps_of(tmp_path) == 1


def test_the_budget_of_a_policy_is_for_all_runs_together(tmp_path: Path) -> None:
    """Each run has a folder; what was spent is kept beside them, and two stores may share the file."""
    stores = [SiteFolder(tmp_path / name, budget_file=tmp_path / "budget.json") for name in ("first", "second")]
    own = SitePolicy(epsilon=1.0, delta=1e-3)
    enough = fs.privacy.noise_for(epsilon=0.9, delta=1e-3, steps=5)
    asked = private_request(privacy=RecordLevel(clip=1.0, noise_multiplier=enough))
    handle_request(asked, task(), stores[0], own)
    with pytest.raises(Refusal, match="of a budget of 1"):
        handle_request(replace(asked, run="1" * 32), task(), stores[1], own)
    assert not (tmp_path / "first" / "privacy-budget.json").exists()


PRIVATE: dict[str, Any] = {"epsilon": 3.0, "delta": 1e-3, "rows": 300, "sums": "open"}


def test_questions_out_of_order_or_at_another_model_get_no_second_noise() -> None:
    """A question is answered once: with another model or number it is rejected, and nothing is paid."""
    coordinator, attacker = begun(plan(**PRIVATE))
    site = attacker.members["bonn"]
    coordinator.ask("noisy", np.zeros(4))
    paid = site.store.budget_file.read_text()
    for number, theta in ((0, np.full(4, 1e-9)), (2, np.zeros(4))):
        coordinator.number = number
        with pytest.raises(SiteProblems):
            coordinator.ask("noisy", theta)
    coordinator.number = 0
    coordinator.ask("noisy", np.zeros(4))  # from what was kept
    assert site.store.budget_file.read_text() == paid


@pytest.mark.parametrize("phase", [name for name in PHASES if name not in ("levels", "noisy")])
def test_a_plan_with_a_budget_answers_nothing_else(phase: str) -> None:
    coordinator, attacker = begun(plan(**PRIVATE))
    with pytest.raises(SiteProblems):
        coordinator.ask(phase, np.zeros(4))
    assert not attacker.members["bonn"].store.budget_file.exists()


def test_a_coordinator_that_goes_on_asking_is_stopped_by_the_budget() -> None:
    made = plan(**PRIVATE)
    coordinator, attacker = begun(made)
    found = private_plan(made)
    for _ in range(found.releases):
        coordinator.ask("noisy", np.zeros(4))
    with pytest.raises(SiteProblems, match="budget"):
        coordinator.ask("noisy", np.zeros(4))
    log = [entry for entry in attacker.members["bonn"].store.audit.read() if entry["event"] == "rejected"]
    assert "would spend" in log[-1]["text"]


@pytest.mark.parametrize("seed", range(40))
def test_no_message_of_a_study_excludes_a_table(seed: int) -> None:
    """The message that left is whole numbers; noise of usual size turns any other table into the same message."""
    made = plan(**PRIVATE)
    coordinator, _ = begun(made)
    coordinator.ask("noisy", np.full(4, 0.1))
    sent = coordinator.by_site["bonn"]["change"]
    found = private_plan(made)
    other = SiteRows(visits(80, 100 + seed), made, b"").problem
    noise = sent - clipped_sum(other, np.full(4, 0.1), np.arange(80), found.clip)
    assert (noise == np.rint(noise)).all()
    assert np.abs(noise).max() < 8 * found.noise
