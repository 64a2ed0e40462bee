"""Studies by files in a shared folder: the model of one process, whatever happens to the files."""

import errno
import shutil
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedscaffold.core import npz
from fedscaffold.core.errors import InvalidInput
from fedscaffold.federation import study_status
from fedscaffold.federation.messages import Payload
from fedscaffold.federation.refusals import RefusalCode
from fedscaffold.federation.study import transport as remote
from fedscaffold.federation.study.site import REFUSED
from fedscaffold.federation.study.transport import SiteProblems
from fedscaffold.flower.study.study_file import StudyFolder
from tests.flower.study.studies import SITES, Deployment, of_one_process


@pytest.mark.parametrize("sums", ["open", "secure"])
def test_the_model_is_that_of_one_process(tmp_path: Path, sums: str) -> None:
    deployed, share = Deployment(tmp_path, sums=sums, evaluate=0.0), tmp_path / "share"
    with deployed.answering(share):
        found = deployed.conduct(share)
    assert found.reached
    np.testing.assert_array_equal(found.theta, of_one_process(sums=sums).theta)
    left = [path for path in share.rglob("*.npz") if path.name.startswith(remote.REPLY)]
    assert len(left) == len(SITES)  # of the last exchange; the share is no archive
    assert {one.state for one in study_status(deployed.out).sites.values()} == {"online"}


def test_pieces_copies_and_strange_files_are_not_taken_for_messages(tmp_path: Path) -> None:
    deployed, share = Deployment(tmp_path), tmp_path / "share"
    stop, seen = threading.Event(), set[Path]()

    def meddle() -> None:
        """Do what synchronised folders do: pieces of files, copies under other names, and strange files."""
        while not stop.is_set():
            for path in list(share.rglob("re*.npz")):
                if path in seen or "conflict" in path.name:
                    continue
                seen.add(path)
                try:
                    data = path.read_bytes()
                    path.with_name(f"{path.stem} (conflict).npz").write_bytes(data)
                    path.with_name(remote.REPLY + "0" * 64 + ".npz").write_bytes(data)
                    strange = path.with_name(remote.REQUEST + "1" * 64 + ".npz")
                    npz.write(strange, {"a": np.array(["text"])}, {"values": {}})
                    path.write_bytes(data[: len(data) // 2])
                    stop.wait(0.02)
                    path.write_bytes(data)
                except OSError:
                    continue
            stop.wait(0.002)

    thread = threading.Thread(target=meddle, daemon=True)
    thread.start()
    try:
        with deployed.answering(share):
            assert deployed.conduct(share).reached
    finally:
        stop.set()
        thread.join()
    assert len(seen) > 2 * len(SITES)


def test_a_forged_reply_is_removed_and_the_site_asked_again(tmp_path: Path) -> None:
    deployed, share = Deployment(tmp_path), tmp_path / "share"
    transport, replies = deployed.post(share, timeout=None), list[Any]()
    own = share / "pilot" / "bonn"

    def ask() -> None:
        try:
            transport.exchange({"bonn": Payload({"study": "x"})})
        except SiteProblems as error:
            replies.append(error)

    first = threading.Thread(target=ask, daemon=True)
    first.start()
    while not (requests := list(own.glob(f"{remote.REQUEST}*.npz"))):
        first.join(0.002)
    name = requests[0].name.replace(remote.REQUEST, remote.REPLY)
    npz.write(own / name, {}, {"values": {"accepted": "all", "signature": "00"}})
    while (own / name).exists():
        first.join(0.002)
    with deployed.answering(share, sites=("bonn",)):
        first.join(20.0)
    assert any("not signed by the key" in line for line in deployed.said)
    assert replies[0].codes == {"bonn": RefusalCode.BAD_REQUEST}  # of the site itself


def test_a_request_that_the_coordinator_did_not_sign_gets_a_code(tmp_path: Path) -> None:
    deployed, share = Deployment(tmp_path / "one"), tmp_path / "share"
    stranger = Deployment(tmp_path / "stranger")
    transport = deployed.post(share, signer=StudyFolder(stranger.file).signer())
    with deployed.answering(share), pytest.raises(SiteProblems, match="site bonn: the request is damaged"):
        transport.exchange({"bonn": Payload({"study": "x"})})


def test_a_silent_site_is_named(tmp_path: Path) -> None:
    deployed, share = Deployment(tmp_path), tmp_path / "share"
    with deployed.answering(share, sites=SITES[:2]), pytest.raises(SiteProblems, match="site lyon did not answer"):
        deployed.conduct_over(deployed.post(share, timeout=1.0))


def test_a_failure_that_passes_is_waited_for(tmp_path: Path) -> None:
    """A site whose disk is full for a moment is asked again, since asking again changes nothing."""
    deployed, share = Deployment(tmp_path, absent="wait"), tmp_path / "share"
    failed = list[str]()
    usual = deployed.joined["graz"].answer

    def answer(site: Any, payload: Payload) -> Payload:
        if len(failed) < 2:
            failed.append("once")
            full = Payload({REFUSED: str(RefusalCode.CANNOT_WRITE)})
            return deployed.joined["graz"]._signed(site, full, payload)
        return usual(site, payload)

    deployed.joined["graz"].answer = answer  # type: ignore[method-assign]
    with deployed.answering(share):
        assert deployed.conduct(share).reached
    assert sum("is its disk full" in line for line in deployed.said) == 2


def test_a_coordinator_that_was_killed_goes_on_with_the_same_bits(tmp_path: Path) -> None:
    deployed, share = Deployment(tmp_path), tmp_path / "share"

    class Killed(Exception):
        pass

    transport, count = deployed.post(share), [0]
    usual = transport.exchange

    def exchange(requests: Any) -> Any:
        count[0] += 1
        if count[0] == 6:
            raise Killed
        return usual(requests)

    transport.exchange = exchange  # type: ignore[method-assign]
    with deployed.answering(share):
        with pytest.raises(Killed):
            deployed.conduct_over(transport)
        shutil.rmtree(share / "pilot" / "graz", ignore_errors=True)  # while the site may be writing to it
        (share / "pilot" / "graz").mkdir(exist_ok=True)
        found = deployed.conduct(share)
    np.testing.assert_array_equal(found.theta, of_one_process().theta)


def test_a_full_share_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deployed = Deployment(tmp_path)

    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    transport = deployed.post(tmp_path / "share")
    monkeypatch.setattr(npz, "write", full)
    with pytest.raises(InvalidInput, match=r"cannot write .*request-.*: No space left on device"):
        transport.exchange({"bonn": Payload({"study": "x"})})
