"""Requests that try to get more out of a site than its policy and its privacy budget allow."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fedscaffold.federation.study.messages import Address, StudyMessage, pack, with_address
from fedscaffold.federation.study.private.at_site import public_agreement, with_budget
from fedscaffold.flower.study.invite import Invite

import fedscaffold as fs
from fedscaffold.federation import Refusal, RefusalCode, RunConfig, SitePolicy, handle_request
from fedscaffold.federation.study.site import StudySite
from fedscaffold.flower.study.site_folder import JoinedSite
from fedscaffold.privacy import RecordLevel
from tests.federation.study.test_private import private_request, study, tables, task

ADDRESS = Address("0" * 32, "study")


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
    spent = json.loads((tmp_path / "privacy-budget.json").read_text())["spent"]
    assert sum(part["steps"] for part in spent) == 10


@pytest.mark.parametrize("invited", [True, False])
def test_a_site_with_a_budget_accepts_no_coding_that_tells_which_values_occur(invited: bool) -> None:
    settings = study().settings
    name, table = next(iter(tables().items()))
    site = StudySite(
        name=name, table=table, policy=with_budget(SitePolicy(min_rows=1), settings),
        settings=settings if invited else None, engine="reference",
    )  # fmt: skip

    def answer(agreement: Any) -> Any:
        body = {"agreement": agreement.to_json()}
        return site.answer_or_code(lambda: with_address(pack(StudyMessage("agree", body)), ADDRESS)).values

    public = public_agreement(settings, 1000)
    assert '"accepted": true' in answer(public)["body"]
    strict = replace(public, limit=None)  # refuses values that it does not know
    part = replace(public, evaluate=0.5)
    other = replace(public, encoding=replace(public.encoding, classes=("no", "perhaps")))
    for hostile in (strict, part, other) if invited else (strict, part):
        assert answer(hostile)["study-refused"] == RefusalCode.ONLY_PRIVATE


def test_the_budget_of_a_policy_is_for_all_studies_together(tmp_path: Path) -> None:
    """Each study has a folder of its own; what was spent is kept beside the policy, and not in one of them."""
    policy = tmp_path / "policy.toml"
    policy.write_text("epsilon = 1.0\ndelta = 1e-3\n")
    stores = []
    for name in ("first", "second"):
        invite = Invite(
            study=name, site="bonn", address="localhost:1", authority="", coordinator="", settings=study().settings
        )
        joined = JoinedSite(folder=tmp_path / name, invite=invite, data=tmp_path / "bonn.csv", policy=policy)
        stores.append(joined.site().store)
    own = SitePolicy.load(policy)
    enough = fs.privacy.noise_for(epsilon=0.9, delta=1e-3, steps=5)
    asked = private_request(privacy=RecordLevel(clip=1.0, noise_multiplier=enough))
    handle_request(asked, task(), stores[0], own)
    with pytest.raises(Refusal, match="of a budget of 1"):
        handle_request(replace(asked, run="1" * 32), task(), stores[1], own)
    assert not (tmp_path / "first" / "privacy-budget.json").exists()
