"""Studies through Flower's messages to sites' folders: the model of one process, refusals, offline sites."""

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from flwr.app import Message

from fedscaffold.core.errors import InvalidInput
from fedscaffold.federation import Study
from fedscaffold.federation.client.rules import SiteRules
from fedscaffold.federation.payloads import Payload
from fedscaffold.federation.refusals import Refusal
from fedscaffold.federation.signing import Signer, check_signature
from fedscaffold.flower.study import app as app_module
from fedscaffold.flower.study import transport as transport_module
from tests.federation.conftest import no_waiting_for_disks
from tests.flower.grid import Node
from tests.flower.study.studies import SITES, Deployment, visits

__all__ = ["no_waiting_for_disks"]


@pytest.mark.parametrize("trainer", ["newton", pytest.param("scaffold", marks=pytest.mark.slow)])
def test_the_model_is_that_of_sites_in_one_process(tmp_path: Path, trainer: Any) -> None:
    deployment = Deployment(tmp_path, trainer=trainer)
    result = deployment.conduct()
    assert result.reached
    rules = SiteRules(by_the_clock=False)
    here = Study(target="ill", trainer=trainer).run({site: visits(k) for k, site in enumerate(SITES)}, rules=rules)
    np.testing.assert_allclose(result.theta, here.theta, rtol=0, atol=1e-7)
    for site in SITES:
        assert (deployment.joined[site].folder / "result.json").exists()
    # a coordinator that is started again asks nobody: everything is in its folder
    asked = len(deployment.grid.seen)
    again = deployment.conduct()
    np.testing.assert_array_equal(again.theta, result.theta)
    assert len(deployment.grid.seen) == asked + len(SITES)  # the result is offered again


def refused_site(deployment: Deployment, table: pd.DataFrame) -> str:
    """The sentence with which a study that leaves sites out goes on without lyon."""
    deployment.join("lyon", table)
    result = deployment.conduct()
    assert sorted(result.measured) == ["bonn", "graz"]
    sentence = result.training.notes[0]
    assert sentence.startswith("Site lyon was left out: ")
    return sentence


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"dose": None}, "the table of site lyon has no column 'dose', which site bonn has"),
        ({"ill": 1}, ""),
        ({"ill": [0, 1] * 30}, "the target 'ill' is '0', '1' at site lyon and 'no', 'yes' at other sites"),
        ({"dose": ["3", "many"] * 30}, "column 'dose' is a category at site lyon and a number at other sites"),
        ({"dose": [1.0, None] * 30}, "column 'dose' has missing values at site lyon"),
    ],
)
def test_a_table_that_does_not_fit_is_left_out_with_a_sentence(
    tmp_path: Path, change: dict[str, Any], words: str
) -> None:
    table = visits(2)
    for name, values in change.items():
        table = table.drop(columns=name) if values is None else table.assign(**{name: values})
    deployment = Deployment(tmp_path, missing_sites="leave out", evaluate=0.0, trainer="newton")
    if not words:  # one class only, which nobody else has: a third class
        deployment.join("lyon", table)
        assert deployment.conduct().agreement.encoding.classes == ("1", "no", "yes")
        return
    assert words in refused_site(deployment, table)


def test_codes_of_a_site_are_sentences_at_the_coordinator_and_texts_stay(tmp_path: Path) -> None:
    deployment = Deployment(
        tmp_path, missing_sites="leave out", evaluate=0.0, trainer="newton", classes=["no", "yes"]
    )
    told = refused_site(deployment, visits(2).assign(ill=["secret-7", "no"] * 30))
    assert "site lyon refuses: the target has other values at the site" in told
    out = deployment.file.parent / "out"
    for file in out.rglob("*"):
        assert not file.is_file() or b"secret-7" not in file.read_bytes()
    assert "secret-7" in (deployment.joined["lyon"].folder / "audit.jsonl").read_text()


def test_one_class_at_a_site_is_no_problem(tmp_path: Path) -> None:
    deployment = Deployment(tmp_path, evaluate=0.0, trainer="newton")
    deployment.join("lyon", visits(2).assign(ill="yes"))
    assert deployment.conduct().reached


def test_no_rows_and_an_old_protocol(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deployment = Deployment(tmp_path, missing_sites="leave out", evaluate=0.0, trainer="newton")
    assert "site lyon refuses: the site's table has no rows" in refused_site(deployment, visits(2).head(0))
    run_app = deployment.grid.run_app

    def other_version(node: Node, message: Message) -> Message | None:
        with monkeypatch.context() as patch:
            if node.config["site"] == "lyon":
                patch.setattr("fedscaffold.federation.study.site.PROTOCOL", 0)
            return run_app(node, message)

    (tmp_path / "second").mkdir()
    deployment = Deployment(tmp_path / "second", missing_sites="leave out", evaluate=0.0, trainer="newton")
    run_app, deployment.grid.handle = deployment.grid.run_app, other_version
    result = deployment.conduct()
    assert "site lyon refuses: the site speaks another version of the protocol" in result.training.notes[0]


def test_others_wait_for_a_site_that_mends_its_table(tmp_path: Path) -> None:
    deployment = Deployment(tmp_path, evaluate=0.0, trainer="newton")
    deployment.join("lyon", visits(2).head(0))
    refusals: list[Message | None] = []
    run_app = deployment.grid.run_app

    def mended(node: Node, message: Message) -> Message | None:
        reply = run_app(node, message)
        if node.config["site"] == "lyon" and not refusals:
            refusals.append(reply)
            deployment.join("lyon", visits(2))
        return reply

    deployment.grid.handle = mended
    result = deployment.conduct()
    assert sorted(result.measured) == ["bonn", "graz", "lyon"]
    assert any(
        "site lyon refuses: the site's table has no rows; asking it again" in line for line in deployment.told
    )


def test_others_wait_for_a_column_that_was_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deployment = Deployment(tmp_path, evaluate=0.0, trainer="newton")
    deployment.join("lyon", visits(2).drop(columns="dose"))
    slept = time.sleep

    def mend(seconds: float) -> None:
        if seconds == 0.0:  # the pause before all sites are asked again
            deployment.join("lyon", visits(2))
        slept(0)

    monkeypatch.setattr("fedscaffold.federation.study.attempts.time.sleep", mend)
    assert sorted(deployment.conduct().measured) == ["bonn", "graz", "lyon"]


def test_an_offline_site_is_waited_for_or_left_out(tmp_path: Path) -> None:
    deployment = Deployment(tmp_path, missing_sites="leave out", timeout=1.0, evaluate=0.0, trainer="newton")
    deployment.nodes[2].online = False
    notes = deployment.conduct().training.notes
    assert "site lyon did not answer within 1 seconds (offline)" in notes[0]

    (tmp_path / "second").mkdir()
    deployment = Deployment(tmp_path / "second", evaluate=0.0, trainer="newton")
    lyon, run_app, answered = deployment.nodes[2], deployment.grid.run_app, []
    lyon.online = False

    def late(node: Node, message: Message) -> Message | None:
        answered.append(node)
        lyon.online = lyon.online or len(answered) == 2
        return run_app(node, message)

    deployment.grid.handle = late
    assert sorted(deployment.conduct().measured) == ["bonn", "graz", "lyon"]


@pytest.mark.parametrize("lost", ["request", "reply"])
def test_a_site_that_is_online_and_silent_is_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lost: str
) -> None:
    monkeypatch.setattr(transport_module, "ASK_SILENT", 0.3)
    deployment = Deployment(tmp_path, missing_sites="error", timeout=60.0, evaluate=0.0, trainer="newton")
    lyon, run_app = deployment.nodes[2], deployment.grid.run_app
    gone: list[Message] = []

    def some_are_lost(node: Node, message: Message) -> Message | None:
        if node is lyon and len(gone) < 3 and not any(message is one for one in gone):
            gone.append(message)
            if lost == "reply":
                run_app(node, message)
        return None if any(message is one for one in gone) else run_app(node, message)

    deployment.grid.handle = some_are_lost
    found = deployment.conduct()
    assert len(gone) == 3
    assert [line for line in deployment.told if "not answered" in line] == [
        f"site lyon has not answered for {seconds:g} s; asking it again" for seconds in (0.3, 0.6, 1.2)
    ]
    (tmp_path / "quiet").mkdir()
    quiet = Deployment(tmp_path / "quiet", evaluate=0.0, trainer="newton").conduct()
    np.testing.assert_array_equal(found.theta, quiet.theta)


def test_a_node_with_a_key_that_was_not_accepted_is_no_site(tmp_path: Path) -> None:
    deployment = Deployment(tmp_path, missing_sites="leave out", timeout=1.0, evaluate=0.0, trainer="newton")
    deployment.nodes[2].key = b"another key"
    assert "site lyon did not answer" in deployment.conduct().training.notes[0]


def test_only_the_coordinator_of_the_invitation_is_answered(tmp_path: Path) -> None:
    deployment = Deployment(tmp_path, missing_sites="leave out", evaluate=0.0, trainer="newton")
    (tmp_path / "stranger").mkdir()
    stranger = Deployment(tmp_path / "stranger")
    stranger.study = deployment.study
    stranger.grid = deployment.grid
    for site in SITES:
        key = (deployment.joined[site].folder / f"{site}.pub").read_text()
        (stranger.file.parent / "pilot.keys" / "accepted" / f"{site}.pub").write_text(key)
    with pytest.raises(InvalidInput, match="site bonn refuses: the request is damaged"):
        stranger.conduct()
    log = (deployment.joined["bonn"].folder / "audit.jsonl").read_text()
    assert "not signed by the coordinator of the invitation" in log
    assert '"phase": "greet"' not in log


def test_a_signature_is_good_for_one_site_and_one_request(tmp_path: Path) -> None:
    deployment = Deployment(tmp_path)
    signer = Signer(deployment.file.parent / "pilot.keys" / "coordinator.key")
    signed = signer.sign(Payload({"a": 1}, {"theta": np.ones(3)}), "bonn")
    assert check_signature(signed, "bonn", signer.public).values == {"a": 1}
    for payload, site in [
        (signed, "graz"),
        (Payload({**signed.values, "a": 2}, signed.arrays), "bonn"),
        (Payload(signed.values, {"theta": np.zeros(3)}), "bonn"),
        (Payload({"a": 1}, signed.arrays), "bonn"),
    ]:
        with pytest.raises(Refusal, match="not signed"):
            check_signature(payload, site, signer.public)


def test_a_study_of_another_name_is_refused(tmp_path: Path) -> None:
    deployment = Deployment(tmp_path, missing_sites="leave out")
    with pytest.raises(InvalidInput, match="the site was invited to another study"):
        deployment.conduct(name="other")


@pytest.mark.parametrize("trainer", ["newton", pytest.param("scaffold", marks=pytest.mark.slow)])
def test_secure_sums_through_flower_lead_to_the_same_model(tmp_path: Path, trainer: Any) -> None:
    deployment = Deployment(tmp_path, trainer=trainer, secure=True, evaluate=0.0)
    result = deployment.conduct()
    tables = {site: visits(k) for k, site in enumerate(SITES)}
    here = Study(target="ill", trainer=trainer, evaluate=0.0).run(tables)
    np.testing.assert_allclose(result.theta, here.theta, rtol=0, atol=1e-9)
    asked = len(deployment.grid.seen)
    again = deployment.conduct()
    np.testing.assert_array_equal(again.theta, result.theta)
    assert len(deployment.grid.seen) == asked + len(SITES)
    assert again.traffic == result.traffic


def test_secure_sums_of_noisy_models_through_flower(tmp_path: Path) -> None:
    """Under a privacy budget vectors leave sites masked, and each site has paid for its steps once."""
    bounds = {"age": (0, 100), "dose": (0, 20), "ward": ("north", "south"), "ill": ("no", "yes")}
    deployment = Deployment(tmp_path, secure=True, evaluate=0.0, epsilon=8.0, bounds=bounds)
    result: Any = deployment.conduct()
    for joined in deployment.joined.values():
        site = joined.site()
        assert all(entry["values"]["secure"] == "mask" for entry in site.log if entry["vectors"])
        spent = json.loads(site.store.budget_file.read_text())
        assert [part["steps"] for part in spent["spent"]] == [result.training.plan.steps]


def test_a_secure_site_that_is_started_again_in_the_middle_of_a_sum(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its keys are gone with its process: the sum ends without it or is repeated, and the model is the same."""
    monkeypatch.setattr(transport_module, "SPARE_SECONDS", 0.0)
    deployment = Deployment(tmp_path, trainer="newton", secure=True, evaluate=0.0)
    handled = 0

    def handle(node: Node, message: Message) -> Message | None:
        nonlocal handled
        handled += node.config["site"] == "graz"  # of its own: the order of others depends on the load
        if node.config["site"] == "graz" and handled % 7 == 0:
            app_module._secure_sites.pop(str(node.config["folder"]), None)
        return deployment.grid.run_app(node, message)

    deployment.grid.handle = handle
    result = deployment.conduct()
    tables = {site: visits(k) for k, site in enumerate(SITES)}
    here = Study(target="ill", trainer="newton", evaluate=0.0).run(tables)
    np.testing.assert_allclose(result.theta, here.theta, rtol=0, atol=1e-9)
    codes = [entry["code"] for entry in deployment.joined["graz"].site().store.audit.read() if "code" in entry]
    assert codes
    assert set(codes) == {"sum-lost"}
