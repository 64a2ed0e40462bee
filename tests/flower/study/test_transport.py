"""Studies over the network: the model of one process, whoever comes, goes or lies."""

import json
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedscaffold.core.errors import InvalidInput
from fedscaffold.federation.messages import Payload
from fedscaffold.federation.refusals import RefusalCode
from fedscaffold.federation.study.roster import Roster, check_signature, new_key, public_line, sign
from fedscaffold.federation.study.site import DOCUMENT, KIND, refusal_in
from fedscaffold.federation.study.transport import SiteProblems
from fedscaffold.flower.study import fleet
from fedscaffold.flower.study.fleet import FleetConnection, FlowerTransport, Unreachable, answer_flower
from fedscaffold.flower.study.study_file import JoinedSite, StudyFolder
from tests.flower.study.studies import SITES, Deployment, of_one_process, visits


@pytest.mark.parametrize("trainer", ["newton", "scaffold"])
def test_the_model_is_that_of_one_process(tmp_path: Path, trainer: str) -> None:
    deployed = Deployment(tmp_path, trainer=trainer, tolerance=0.1)
    with deployed.answering():
        found = deployed.conduct()
    np.testing.assert_array_equal(found.theta, of_one_process(trainer=trainer, tolerance=0.1).theta)
    assert all(joined.over == "the study is over" for joined in deployed.joined.values())


def test_a_table_that_does_not_fit_stops_the_study_and_its_people_know_why(tmp_path: Path) -> None:
    deployed = Deployment(tmp_path)
    visits(1).drop(columns="dose").to_csv(tmp_path / "graz" / "visits.csv", index=False)
    with deployed.answering(), pytest.raises(SiteProblems) as stopped:
        deployed.conduct()
    assert stopped.value.codes == {"graz": RefusalCode.NOT_ACCEPTED}
    assert "dose" not in str(stopped.value)
    log = (tmp_path / "graz" / "site" / "audit.jsonl").read_text()
    assert "no column 'dose'" in log
    for joined in deployed.joined.values():  # the others do not wait for ever
        assert joined.stopped
        assert "the study has stopped: site graz" in joined.over


def test_a_site_that_comes_late_and_leaves_on_the_way_is_waited_for(tmp_path: Path) -> None:
    deployed, left = Deployment(tmp_path, absent="wait"), list[str]()

    def meddle(site: str, reply: Payload) -> Payload:
        if site == "lyon" and "words" in reply.arrays and len(left) < 2:
            left.append(site)
            raise ConnectionError("cut")  # after the site has computed, logged and kept its answer
        return reply

    usual = FleetConnection.reply

    def reply(self: Any, received: Any, payload: Payload) -> None:
        try:
            usual(self, received, meddle("lyon", payload) if self is lyon[0] else payload)
        except ConnectionError:
            raise Unreachable("a reply was lost; connecting again") from None

    lyon: list[Any] = [None]
    joined = deployed.joined["lyon"]

    def late() -> None:
        time.sleep(1.0)
        site = joined.open()
        lyon[0] = FleetConnection(address=joined.invite.address, authority=joined.invite.authority, key=site.key)
        answer_flower(
            lyon[0], answer=lambda request: joined.answer(site, request), done=lambda: bool(joined.over),
            say=deployed.said.append,
        )  # fmt: skip

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FleetConnection, "reply", reply)
        thread = threading.Thread(target=late, daemon=True)
        thread.start()
        with deployed.answering(sites=SITES[:2]):
            found = deployed.conduct()
        thread.join(20.0)
    assert len(left) == 2
    assert "site lyon is offline" in deployed.said
    np.testing.assert_array_equal(found.theta, of_one_process().theta)


def leave_before_the_result(deployed: Deployment, share: Path | None = None) -> None:
    """Conduct a study whose site lyon leaves after its last number; it has no result then."""
    joined, usual, gone = deployed.joined["lyon"], JoinedSite.answer, threading.Event()

    def answer(self: JoinedSite, site: Any, payload: Payload) -> Payload:
        if self is joined and (gone.is_set() or payload.values.get("study-message") == "result"):
            gone.set()
            raise SystemExit  # ends the site's thread
        return usual(self, site, payload)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(JoinedSite, "answer", answer)
        with pytest.raises(AssertionError), deployed.answering(share):  # a thread ended
            deployed.conduct(share)
    assert gone.is_set()
    assert not joined.over


@pytest.mark.parametrize("by_post", [False, True])
def test_a_site_that_was_offline_at_the_end_fetches_the_result(tmp_path: Path, by_post: bool) -> None:
    deployed, share = Deployment(tmp_path, linger=2.0), tmp_path / "share" if by_post else None
    leave_before_the_result(deployed, share)
    assert any("has not been fetched by lyon" in sentence for sentence in deployed.said)
    with deployed.answering(share, sites=("lyon",)):
        if not by_post:  # the coordinator's command again; by post the result lies in the folder
            deployed.conduct()
        end = time.monotonic() + 20.0
        while not deployed.joined["lyon"].over and time.monotonic() < end:
            time.sleep(0.05)
    assert deployed.joined["lyon"].over == "the study is over"
    assert (tmp_path / "lyon" / "site" / "result.json").exists()


class SilentServer:
    """A server whose site is online, and answers the third time."""

    def __init__(self) -> None:
        self.asked: list[Payload] = []

    def register(self, site: str, key: str) -> None:
        pass

    def online(self) -> Mapping[str, str]:
        return {"bonn": "since noon"}

    def ask(self, site: str, payload: Payload) -> None:
        self.asked.append(payload)

    def collect(self) -> Mapping[str, Any]:
        return {"bonn": "enough"} if len(self.asked) == 3 else {}


def test_a_site_that_is_online_and_silent_is_asked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet, "ASK_SILENT", 0.05)
    server, said = SilentServer(), list[str]()
    more: Any = {"keys": {}, "signer": new_key(), "say": said.append, "timeout": 1.0}
    transport = FlowerTransport(server, sites=["bonn"], **more)  # type: ignore[arg-type]
    with pytest.raises(SiteProblems, match="site bonn did not answer"):
        transport.exchange({"bonn": Payload({"number": 1})})
    assert len(server.asked) >= 3
    assert "site bonn has not answered for 0.05 s; asking it again" in said
    assert "site bonn has not answered for 0.1 s; asking it again" in said


# who is believed


def test_only_the_coordinator_of_the_invitation_is_answered(tmp_path: Path) -> None:
    deployed, stranger = Deployment(tmp_path / "one"), Deployment(tmp_path / "other")
    joined = deployed.joined["bonn"]
    site, own, foreign = joined.open(), StudyFolder(deployed.file).signer(), StudyFolder(stranger.file).signer()
    request = Payload({KIND: "plan", DOCUMENT: json.dumps(deployed.plan.to_json())})
    strange = {"raw": Payload({KIND: b"plan", "signature": 3}), "unsigned": request}
    for payload in (*strange.values(), sign(request, "bonn", foreign), sign(request, "graz", own)):
        assert refusal_in(joined.answer(site, payload)) is RefusalCode.BAD_REQUEST
    assert site.plan is None
    assert refusal_in(joined.answer(site, sign(request, "bonn", own))) is None


def test_a_signature_is_good_for_one_site_and_one_request() -> None:
    key = new_key()
    public = public_line(key, "coordinator")
    signed = sign(Payload({"number": 1}, {"vector": np.arange(3.0)}), "bonn", key)
    assert check_signature(signed, "bonn", public).values == {"number": 1}
    changed = (
        Payload({**signed.values, "number": 2}, signed.arrays),
        Payload(signed.values, {"vector": np.arange(3.0) + 1e-12}),
        Payload(signed.values, {"vector": np.arange(4.0)}),
        Payload(signed.values, {"other": np.arange(3.0)}),
    )
    for payload in changed:
        with pytest.raises(InvalidInput):
            check_signature(payload, "bonn", public)
    with pytest.raises(InvalidInput):
        check_signature(signed, "graz", public)


def roster_of(deployed: Deployment, keys: Mapping[str, str]) -> Payload:
    signer = StudyFolder(deployed.file).signer()
    document = json.dumps(Roster(deployed.plan.digest, dict(keys)).to_json())
    return sign(Payload({KIND: "roster", DOCUMENT: document}), "bonn", signer)


def accepted_plan(deployed: Deployment) -> tuple[JoinedSite, Any]:
    joined, signer = deployed.joined["bonn"], StudyFolder(deployed.file).signer()
    site = joined.open()
    request = Payload({KIND: "plan", DOCUMENT: json.dumps(deployed.plan.to_json())})
    assert refusal_in(joined.answer(site, sign(request, "bonn", signer))) is None
    return joined, site


def test_a_roster_with_another_key_than_people_gave_is_rejected(tmp_path: Path) -> None:
    deployed = Deployment(tmp_path)
    joined, site = accepted_plan(deployed)
    joined.peers = {"graz": Roster("", deployed.keys).fingerprints["graz"]}
    forged = {**deployed.keys, "graz": public_line(new_key(), "graz")}
    reply = joined.answer(site, roster_of(deployed, forged))
    assert refusal_in(reply) is RefusalCode.PEERS_CHANGED
    assert "--peer gives" in str(joined.why_rejected(site, reply))
    assert refusal_in(joined.answer(site, roster_of(deployed, deployed.keys))) is None
    other = {**deployed.keys, "lyon": public_line(new_key(), "lyon")}  # one roster, for ever
    assert refusal_in(joined.answer(site, roster_of(deployed, other))) is RefusalCode.PEERS_CHANGED


def test_people_are_asked_about_keys_that_they_did_not_give(tmp_path: Path) -> None:
    deployed = Deployment(tmp_path)
    joined, site = accepted_plan(deployed)
    asked = list[Roster]()

    def decline(roster: Roster) -> bool:
        asked.append(roster)
        return False

    joined.accept_roster = decline
    assert refusal_in(joined.answer(site, roster_of(deployed, deployed.keys))) is RefusalCode.NOT_ACCEPTED
    assert set(asked[0].fingerprints) == set(SITES)
    assert site.store.load_note("roster") is None


def test_a_plan_that_completes_the_invitation_is_not_accepted_first(tmp_path: Path) -> None:
    """A coordinator cannot skip the survey and say what it likes about means and levels."""
    deployed = Deployment(tmp_path)
    joined, signer = deployed.joined["bonn"], StudyFolder(deployed.file).signer()
    values = deployed.plan.model_dump()
    values["columns"]["age"] |= {"mean": 0.0, "sd": 1e-9}
    other = type(deployed.plan)(**values)
    assert other.completes(deployed.plan)
    request = Payload({KIND: "plan", DOCUMENT: json.dumps(other.to_json())})
    assert refusal_in(joined.answer(joined.open(), sign(request, "bonn", signer))) is RefusalCode.OTHER_SETTINGS


def test_a_folder_of_another_plan_is_not_used(tmp_path: Path) -> None:
    one, other = Deployment(tmp_path / "one"), Deployment(tmp_path / "other", min_cell=7)
    joined = one.joined["bonn"]
    joined.invite = other.joined["bonn"].invite
    with pytest.raises(InvalidInput, match="belongs to another plan or site"):
        joined.open()
