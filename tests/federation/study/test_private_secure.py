"""Secure sums together with a privacy budget: nobody sees a single noisy model, and repeats cost nothing."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fedscaffold.federation.secure_sum import SumFailed, conduct_sum
from fedscaffold.federation.study.attempts import CannotBeginAgain
from fedscaffold.federation.study.messages import SECURE_STEP, Address, StudyMessage, pack, with_address
from fedscaffold.federation.study.private.at_site import with_budget
from fedscaffold.federation.study.private.result import PrivateStudyResult
from fedscaffold.federation.study.secure import conduct, steps
from fedscaffold.federation.study.secure.blocks import SumBlock
from fedscaffold.federation.study.secure.peers import identity_in_hexadecimal
from fedscaffold.models.private.planned import public_plan

import fedscaffold as fs
from fedscaffold.federation import Refusal, RefusalCode, SitePolicy
from fedscaffold.federation.client.files import SiteFolder
from fedscaffold.federation.client.rules import SiteRules
from fedscaffold.federation.study.site import StudySite
from fedscaffold.federation.study.study import SECURE_STEPS
from fedscaffold.privacy.settings import PrivacySettings
from tests.federation.study.secure import Watched
from tests.federation.study.secure import conduct as conduct_watched
from tests.federation.study.test_private import steps_of, study, tables

ROUNDS, LOCAL = 3, 4
OPENING = 3  # exchanges before the first sum: greet, peers, agree
SETTINGS = study(secure=True, delta=1e-4).settings


@pytest.fixture(autouse=True)
def short_plans(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three rounds of four steps, whatever the budget: the search for the best has tests of its own."""
    given = PrivacySettings(epsilon=3.0, delta=1e-4, clip=1.0, step_size=0.3, local_steps=LOCAL, rounds=ROUNDS)
    monkeypatch.setattr(
        "fedscaffold.federation.study.private.conduct.public_plan",
        lambda kind, levels, sizes, budget, **more: public_plan(kind, levels, sizes, given, **more),
    )


def sites(folder: Path) -> dict[str, StudySite]:
    return {
        name: StudySite(
            name=name, table=table, store=SiteFolder(folder / name), engine="reference", secure=True,
            policy=with_budget(SitePolicy(), SETTINGS), rules=SiteRules(by_the_clock=False),
            secure_threshold=SETTINGS.threshold,
        )
        for name, table in tables().items()
    }  # fmt: skip


def paid(folder: Path) -> set[int]:
    return {steps_of(folder, site) for site in tables()}


def test_without_noise_it_is_the_study_without_secure_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedscaffold.engines.reference.secret_normals", np.zeros)
    plain = study().run(tables(), engine="reference")
    secure = study(secure=True).run(tables(), engine="reference")
    assert isinstance(secure, PrivateStudyResult)
    np.testing.assert_allclose(secure.theta, plain.theta, rtol=1e-9)
    assert secure.n_rows == plain.n_rows


def test_local_models_leave_sites_masked_alone(tmp_path: Path) -> None:
    transport = Watched(sites(tmp_path))
    found: Any = conduct_watched(transport, SETTINGS)
    assert len(transport.masked()) == 3 * ROUNDS
    assert all(set(payload.arrays) <= {"masked"} for _, payload in transport.received)
    for site in transport.members.values():
        by_phase = {entry["phase"]: entry for entry in site.log}
        assert set(by_phase) == {"greet", "peers", "agree", "train", "finish"}
        assert "secure" in by_phase["train"]["values"]
        assert set(by_phase["greet"]["values"]["body"]) == {
            "columns", "identity", "max_hessian_dim", "n_rows", "protocol",
        }  # fmt: skip
    assert "learned only their sum over all sites" in found.explain()
    assert paid(tmp_path) == {ROUNDS * LOCAL}


@pytest.mark.parametrize("after_work", [False, True])
@pytest.mark.parametrize("step", range(SECURE_STEPS))
def test_a_site_that_is_killed_at_any_step_pays_once(tmp_path: Path, step: int, after_work: bool) -> None:
    """What it computed is on its disk before anything leaves: the sum that is repeated has the same noise."""
    at = OPENING + SECURE_STEPS + step + 1  # in the second round
    transport = Watched(sites(tmp_path), silent={at: {"graz"}}, after_work=after_work)
    assert isinstance(conduct_watched(transport, SETTINGS), PrivateStudyResult)
    assert transport.asked > OPENING + SECURE_STEPS * ROUNDS - 1
    assert paid(tmp_path) == {ROUNDS * LOCAL}


def test_a_range_that_is_too_narrow_is_widened_and_nothing_is_paid_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedscaffold.federation.study.secure.numbers.SPARE", 1e-6)
    transport = Watched(sites(tmp_path))
    conduct_watched(transport, SETTINGS)
    assert transport.asked > OPENING + SECURE_STEPS * ROUNDS
    assert paid(tmp_path) == {ROUNDS * LOCAL}


class Stops(Watched):
    """A transport to a coordinator that is killed at some exchange."""

    def exchange(self, requests: Any, *, enough: int | None = None) -> Any:
        if self.asked == OPENING + SECURE_STEPS + 3:
            raise KeyboardInterrupt
        return super().exchange(requests, enough=enough)


def test_a_coordinator_that_is_killed_within_a_sum_goes_on(tmp_path: Path) -> None:
    own, members = tmp_path / "coordinator", sites(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        conduct_watched(Stops(members), SETTINGS, own)
    before = members["bonn"].log
    assert isinstance(conduct_watched(Watched(members), SETTINGS, own), PrivateStudyResult)
    assert paid(tmp_path) == {ROUNDS * LOCAL}
    digests = [entry["sha256"] for entry in members["bonn"].store.audit.read() if entry["event"] == "answered"]
    assert len(before) < len(members["bonn"].log)
    assert len(digests) == ROUNDS + 1  # the second round twice ...
    assert len(set(digests)) == ROUNDS  # ... with the same vector, of which a second sum tells nothing new


def test_sums_that_keep_failing_leave_the_folder_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Started again, the study goes on with what sites have paid for; it never begins anew."""
    own, members = tmp_path / "coordinator", sites(tmp_path)

    def fails(*_: Any) -> Any:
        raise SumFailed("too few sites")

    with monkeypatch.context() as patched:
        calls: list[int] = []

        def second_fails(*arguments: Any) -> Any:
            calls.append(1)
            return conduct_sum(*arguments) if len(calls) == 1 else fails()

        patched.setattr(conduct, "conduct_sum", second_fails)
        with pytest.raises(CannotBeginAgain, match="failed 20 times"):
            conduct_watched(Watched(members), SETTINGS, own, absent="leave out")
    assert isinstance(conduct_watched(Watched(members), SETTINGS, own), PrivateStudyResult)
    assert paid(tmp_path) == {ROUNDS * LOCAL}


def test_a_lost_state_costs_every_site_the_round_again(tmp_path: Path) -> None:
    """All begin anew with fresh noise, which is paid for; the plan's spare round covers it once."""
    members = sites(tmp_path)

    class Forgets(Watched):
        def exchange(self, requests: Any, *, enough: int | None = None) -> Any:
            if self.asked == OPENING + SECURE_STEPS:
                for file in (tmp_path / "kiel").rglob("*.state"):
                    file.unlink()
            return super().exchange(requests, enough=enough)

    found: Any = conduct_watched(Forgets(members), SETTINGS)
    assert steps_of(tmp_path, "kiel") == ROUNDS * LOCAL  # its state was gone before it had paid
    assert steps_of(tmp_path, "bonn") == (ROUNDS + 1) * LOCAL
    noise = found.training.plan.privacy.noise_multiplier
    assert fs.privacy.epsilon(noise_multiplier=noise, delta=1e-4, steps=(ROUNDS + 1) * LOCAL) <= 3.0


@pytest.mark.parametrize("phase", ["prepare", "measure", "sums", "evaluate"])
def test_no_other_sum_is_answered_under_a_budget(phase: Any, tmp_path: Path) -> None:
    members = sites(tmp_path)
    keys = {name: identity_in_hexadecimal(site.store) for name, site in members.items()}
    address = Address("0" * 32, "study")
    members["bonn"].answer(with_address(pack(StudyMessage("peers", {"identities": keys})), address))
    question = with_address(pack(StudyMessage(phase, {})), address)
    asked = steps.pack_step(
        steps.FIRST, "one", None, question, sites=list(members), threshold=2, blocks=[list(SumBlock("table", 3))]
    )
    with pytest.raises(Refusal, match="privacy budget, which does not cover") as refused:
        members["bonn"].answer(asked)
    assert refused.value.code is RefusalCode.ONLY_PRIVATE
    assert SECURE_STEP not in json.dumps([entry["values"] for entry in members["bonn"].log])


def test_a_site_of_a_secure_study_sends_no_noisy_model_openly(tmp_path: Path) -> None:
    members = sites(tmp_path)
    for site in members.values():
        site.policy = replace(site.policy, epsilon=9.0)
    with pytest.raises(fs.InvalidInput, match=r"only-secure|secure sums"):
        conduct_watched(Watched(members), replace(SETTINGS, secure=False))
    assert not (tmp_path / "bonn" / "privacy-budget.json").exists()
