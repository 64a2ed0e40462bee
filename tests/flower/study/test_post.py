"""Studies by files in a shared folder: the model of one process, whatever happens to the files."""

import errno
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fedscaffold.federation.study.messages import PHASE, SiteProblems
from fedscaffold.federation.study.result import StudyResult

from fedscaffold.core import npz
from fedscaffold.core.errors import InvalidInput
from fedscaffold.federation import post
from fedscaffold.federation.payloads import Payload
from fedscaffold.federation.post import PostTransport, answer_post
from fedscaffold.federation.signing import Signer
from fedscaffold.federation.study.study import conduct_study
from fedscaffold.flower.study.study_file import StudyFolder
from tests.federation.conftest import no_waiting_for_disks
from tests.flower.study.studies import SITES, Deployment

__all__ = ["no_waiting_for_disks"]


@contextmanager
def answering(deployed: Deployment, share: Path, *, sites: tuple[str, ...] = SITES) -> Iterator[None]:
    """Let sites answer in threads until the block ends or the study is over."""
    left, failed = threading.Event(), list[BaseException]()

    def serve(name: str) -> None:
        joined, site, last = deployed.joined[name], deployed.joined[name].site(), [""]

        def answer(read: Callable[[], Payload]) -> Payload:
            reply = joined.answer(site, read)
            last[0] = str(reply.values.get(PHASE, "train"))
            return reply

        try:
            answer_post(
                share, site=name, private_key=joined.private_key, answer=answer,
                done=lambda: left.is_set() or last[0] == "finish",
            )  # fmt: skip
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=serve, args=(name,), daemon=True) for name in sites]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        left.set()
        for thread in threads:
            thread.join(20.0)
    assert not failed


def transport_of(deployed: Deployment, share: Path, *, most_seconds: float | None = 20.0) -> PostTransport:
    folder = StudyFolder(deployed.file)
    return PostTransport(
        share, sites=deployed.sites, keys=folder.accepted, signer=Signer(folder.signing_key),
        most_seconds=most_seconds, say=deployed.told.append,
    )  # fmt: skip


def conduct(deployed: Deployment, share: Path, **options: Any) -> StudyResult:
    return conduct_study(
        transport_of(deployed, share), deployed.study.settings, name="pilot", absent="error",
        folder=deployed.file.parent / "out", **options,
    )  # fmt: skip


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(post, "POLL", 0.005)
    monkeypatch.setattr(post, "LONGEST_POLL", 0.02)
    monkeypatch.setattr(post, "DELIVER_SECONDS", 5.0)


@pytest.mark.parametrize("secure", [False, True])
def test_the_model_is_that_of_the_network(tmp_path: Path, secure: bool) -> None:
    by_post, network = (Deployment(_made(tmp_path / name), secure=secure) for name in ("post", "network"))
    with answering(by_post, tmp_path / "share"):
        found = conduct(by_post, tmp_path / "share")
    expected = network.conduct()
    assert found.reached
    np.testing.assert_allclose(found.training.theta, expected.training.theta, rtol=0, atol=1e-9)
    left = [path for path in (tmp_path / "share").rglob("*.npz") if path.name.startswith(post.REPLY)]
    assert len(left) == len(SITES)  # of the last exchange; the share is no archive


def test_pieces_copies_and_strange_files_are_not_taken_for_messages(tmp_path: Path) -> None:
    deployed, share = Deployment(tmp_path), tmp_path / "share"
    stop, seen = threading.Event(), set[Path]()

    def meddle() -> None:
        """What synchronised folders do: pieces of files, copies under other names, and files of their own."""
        while not stop.is_set():
            for path in list(share.rglob("re*.npz")):
                if path in seen:
                    continue
                seen.add(path)
                try:
                    data = path.read_bytes()
                    path.with_name(f"{path.stem} (conflict).npz").write_bytes(data)
                    path.with_name(post.REPLY + "0" * 64 + ".npz").write_bytes(data)
                    path.write_bytes(data[: len(data) // 2])
                    stop.wait(0.02)
                    path.write_bytes(data)
                except OSError:
                    continue
            stop.wait(0.002)

    thread = threading.Thread(target=meddle, daemon=True)
    thread.start()
    try:
        with answering(deployed, share):
            assert conduct(deployed, share).reached
    finally:
        stop.set()
        thread.join()
    assert len(seen) > 2 * len(SITES)


def test_a_forged_reply_is_removed_and_the_site_asked_again(tmp_path: Path) -> None:
    deployed, share = Deployment(tmp_path), tmp_path / "share"
    transport = transport_of(deployed, share)
    own = share / "bonn"

    def forge() -> None:
        while not (requests := list(own.glob(f"{post.REQUEST}*.npz"))):
            stopped.wait(0.002)
        name = requests[0].name.replace(post.REQUEST, post.REPLY)
        npz.write(own / name, {}, {"values": {PHASE: "greet", "body": "{}", "signature": "00"}})
        written.set()

    stopped, written = threading.Event(), threading.Event()
    threading.Thread(target=forge, daemon=True).start()
    first = threading.Thread(
        target=lambda: transport.exchange({"bonn": Payload({"study": "x"})}, enough=0), daemon=True
    )
    first.start()
    assert written.wait(10.0)
    with answering(deployed, share, sites=("bonn",)):
        first.join(20.0)
    assert any("not signed by the key" in line for line in deployed.told)
    stopped.set()


def test_a_request_that_the_coordinator_did_not_sign_gets_a_code(tmp_path: Path) -> None:
    deployed, share = Deployment(tmp_path), tmp_path / "share"
    stranger = Deployment(_made(tmp_path / "stranger"))
    folder = StudyFolder(deployed.file)
    transport = PostTransport(
        share, sites=deployed.sites, keys=folder.accepted, signer=Signer(StudyFolder(stranger.file).signing_key),
        most_seconds=20.0,
    )  # fmt: skip
    with (
        answering(deployed, share),
        pytest.raises(SiteProblems, match="site bonn rejects the request: the request is damaged"),
    ):
        transport.exchange({"bonn": Payload({"study": "x"})})


def test_a_silent_site_is_named(tmp_path: Path) -> None:
    deployed, share = Deployment(tmp_path), tmp_path / "share"
    with (
        answering(deployed, share, sites=SITES[:2]),
        pytest.raises(SiteProblems, match="site lyon did not"),
    ):
        conduct_study(
            transport_of(deployed, share, most_seconds=0.5), deployed.study.settings, name="pilot", absent="error"
        )


def test_a_coordinator_that_was_killed_goes_on_with_the_same_bits(tmp_path: Path) -> None:
    deployed, share = Deployment(tmp_path), tmp_path / "share"
    whole = Deployment(_made(tmp_path / "whole"))
    with answering(whole, tmp_path / "whole-share"):
        expected = conduct(whole, tmp_path / "whole-share")

    class Killed(Exception):
        pass

    transport, count = transport_of(deployed, share), [0]
    usual = transport.exchange

    def exchange(requests: Any, **options: Any) -> Any:
        count[0] += 1
        if count[0] == 6:
            raise Killed
        return usual(requests, **options)

    transport.exchange = exchange  # type: ignore[method-assign]
    out = deployed.file.parent / "out"
    with answering(deployed, share):
        with pytest.raises(Killed):
            conduct_study(transport, deployed.study.settings, name="pilot", absent="error", folder=out)
        shutil.rmtree(share / "graz")  # whatever became of the share, too
        (share / "graz").mkdir()
        found = conduct(deployed, share)
    np.testing.assert_allclose(found.training.theta, expected.training.theta, rtol=0, atol=1e-9)


def test_a_full_share_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deployed = Deployment(tmp_path)

    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    transport = transport_of(deployed, tmp_path / "share")
    monkeypatch.setattr(npz, "write", full)
    with pytest.raises(InvalidInput, match=r"cannot write .*request-.*: No space left on device"):
        transport.exchange({"bonn": Payload({"study": "x"})})


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder
