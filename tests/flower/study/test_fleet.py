"""The coordinator's server and the sites' nodes, on loopback with TLS, in one process."""

import ssl
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from flwr.app import RecordDict
from flwr.proto.control_pb2 import StartRunRequest
from flwr.supercore.protobuf.translation import PROTOBUF_REQUEST_TYPES

from fedscaffold.core.errors import InvalidInput
from fedscaffold.federation.messages import Payload
from fedscaffold.federation.study.roster import new_key, public_line
from fedscaffold.flower import wire
from fedscaffold.flower.certificates import make_certificates
from fedscaffold.flower.study import fleet
from fedscaffold.flower.study.fleet import FleetConnection, FleetServer, Unreachable
from fedscaffold.flower.study.run import free_port

KEY = new_key()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[FleetServer]:
    certificates = make_certificates(tmp_path)
    with FleetServer(host="127.0.0.1", port=free_port(), certificates=certificates, log=tmp_path / "log") as found:
        found.register("bonn", public_line(KEY, "bonn"))
        yield found
        while opened:
            opened.pop().close()


opened: list[FleetConnection] = []


def connect(server: FleetServer, key: Any = KEY, authority: Path | None = None) -> FleetConnection:
    trusted = (authority or server.certificates.authority).read_text()
    opened.append(FleetConnection(address=f"127.0.0.1:{server.port}", authority=trusted, key=key))
    return opened[-1]


def collected(server: FleetServer) -> dict[str, Any]:
    end = time.monotonic() + 20.0
    while not (found := server.collect()) and time.monotonic() < end:
        time.sleep(0.01)
    return found


def test_a_message_there_and_back_with_all_its_bits(server: FleetServer) -> None:
    node = connect(server)
    assert server.online() == {}
    node.activate()
    assert list(server.online()) == ["bonn"]
    words = np.random.default_rng(0).integers(0, 2**64, 1000, dtype=np.uint64)
    server.ask("bonn", Payload({"phase": "sums", "number": 3}, {"vector": np.linspace(0.0, 1.0, 7)}))
    received = node.fetch()
    assert received is not None
    assert dict(received.payload.values) == {"phase": "sums", "number": 3}
    np.testing.assert_array_equal(received.payload.arrays["vector"], np.linspace(0.0, 1.0, 7))
    node.reply(received, Payload({"number": 3}, {"words": words}))
    (reply,) = collected(server).values()
    np.testing.assert_array_equal(reply.arrays["words"], words)
    assert server.collect() == {}
    assert node.fetch() is None
    (run,) = server._state.get_run_info()
    assert run.clientapp_runtime == 0.0  # a time may depend on rows
    assert server._state.object_store.store == {}  # nothing is left of the exchange
    node.deactivate()
    assert server.online() == {}


def test_nobody_without_an_accepted_key_is_let_in(server: FleetServer) -> None:
    for key in (new_key(), new_key()):
        with pytest.raises(Unreachable, match="has not accepted this site's key"):
            connect(server, key).activate()
    other = new_key()
    server.register("bonn", public_line(other, "bonn"))  # in place of the former one
    with pytest.raises(Unreachable, match="has not accepted this site's key"):
        connect(server).activate()
    connect(server, other).activate()


def test_a_node_cannot_speak_for_another_one(server: FleetServer) -> None:
    key = new_key()
    server.register("graz", public_line(key, "graz"))
    bonn, graz = connect(server), connect(server, key)
    bonn.activate()
    graz.activate()
    server.ask("bonn", Payload({"phase": "sums"}))
    graz._node = bonn._node
    with pytest.raises(Unreachable):
        graz.fetch()
    assert bonn.fetch() is not None


def test_no_request_of_flower_starts_anything_at_the_coordinator(
    server: FleetServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever has an invitation, and so the certificate, reaches the Fleet API and nothing else."""
    context = ssl.create_default_context(cafile=str(server.certificates.authority))
    with httpx.Client(base_url=f"https://127.0.0.1:{server.port}", verify=context) as client:
        kind = {"content-type": "application/protobuf"}
        start = client.post("/v1/control/start-run", content=StartRunRequest().SerializeToString(), headers=kind)
        assert start.status_code == 404
        routes = [path for method, path in PROTOBUF_REQUEST_TYPES if method == "POST"]
        assert any("/control/" in path for path in routes)
        for path in routes:
            status = client.post(path, content=b"", headers=kind).status_code
            assert status == (401 if path.startswith("/v1/fleet/") else 404), path
        for path in ("/", "/docs", "/openapi.json", "/health"):
            assert client.request("GET", path, content=b"x").status_code == 404
        assert client.get("/").status_code == 413  # of no length
        monkeypatch.setattr(fleet, "LARGEST_MESSAGE", 100)
        assert client.post("/v1/fleet/activate-node", content=b"a" * 101, headers=kind).status_code == 413


def test_a_site_that_connects_again_in_the_middle_is_asked_anew(server: FleetServer) -> None:
    node = connect(server)
    node.activate()
    (first,) = server.online().values()
    server.ask("bonn", Payload({"number": 1}))
    assert node.fetch() is not None  # and then the process is killed
    node.deactivate()
    again = connect(server)
    again.activate()
    assert server.online()["bonn"] != first
    server.ask("bonn", Payload({"number": 1}))
    received = again.fetch()
    assert received is not None
    again.reply(received, Payload({"number": 1}))
    assert dict(collected(server)["bonn"].values) == {"number": 1}


def test_a_reply_of_rubbish_is_a_sentence(server: FleetServer, monkeypatch: pytest.MonkeyPatch) -> None:
    node = connect(server)
    node.activate()
    server.ask("bonn", Payload({"number": 1}))
    received = node.fetch()
    assert received is not None
    with monkeypatch.context() as patch:
        patch.setattr(wire, "to_one_record", lambda payload: RecordDict())
        node.reply(received, Payload({}))
    assert collected(server) == {"bonn": "its reply cannot be read: the message is not one of fedscaffold's"}
    server.ask("bonn", Payload({"number": 2}))
    assert node.fetch() is not None


def test_a_port_that_is_taken_is_one_sentence(server: FleetServer) -> None:
    with pytest.raises(InvalidInput, match="choose another port"):
        FleetServer(host="127.0.0.1", port=server.port, certificates=server.certificates).__enter__()


def test_another_server_is_not_taken_for_the_coordinator(server: FleetServer, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    other = make_certificates(tmp_path / "other")
    with pytest.raises(Unreachable, match="is not the coordinator of the invitation"):
        connect(server, authority=other.authority).activate()


def test_many_threads_ask_and_answer(server: FleetServer) -> None:
    """A node polls while its message is put there; no message is lost between."""
    node, answered = connect(server), list[int]()
    node.activate()

    def serve() -> None:
        while len(answered) < 30:
            received = node.fetch()
            if received is not None:
                answered.append(int(received.payload.values["number"]))
                node.reply(received, Payload(received.payload.values))

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    for number in range(30):
        server.ask("bonn", Payload({"number": number}))
        assert collected(server)["bonn"].values["number"] == number
    thread.join(10.0)
    assert answered == list(range(30))
