"""A site's node whose connection loses messages."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from fedscaffold.federation.payloads import Payload
from fedscaffold.flower.study import node as node_module


class OneMessage:
    """A coordinator that has one message for a node, and hands it out once per activation."""

    def __init__(self) -> None:
        self.activated, self.handed_out = 0, 0

    def ActivateNode(self, request: Any) -> Any:
        self.activated += 1
        return SimpleNamespace(node_id=7)

    def DeactivateNode(self, request: Any) -> None:
        return None

    def PullMessages(self, request: Any) -> Any:
        if self.handed_out == self.activated:
            return SimpleNamespace(messages_list=[])
        self.handed_out = self.activated
        return SimpleNamespace(
            messages_list=[SimpleNamespace(metadata=SimpleNamespace(run_id=1))],
            message_object_trees=[SimpleNamespace(object_id="one")],
        )

    def SendNodeHeartbeat(self, request: Any) -> Any:
        return SimpleNamespace(success=True)

    PullObject = ConfirmMessageReceived = DeactivateNode

    def close(self) -> None:
        pass


def test_a_message_that_is_lost_ends_the_connection_so_that_it_is_asked_for_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    coordinator, told = OneMessage(), list[str]()
    monkeypatch.setattr(f"{node_module.__name__}.FleetHttpClient.from_server_address", lambda *_: coordinator)
    monkeypatch.setattr(node_module, "RETRY", 0.0)
    monkeypatch.setattr(node_module, "LINGER", 0.0)

    def loses(*arguments: Any, **more: Any) -> Any:
        raise RuntimeError("object one is gone")

    monkeypatch.setattr(node_module, "pull_and_inflate_object_from_tree", loses)
    key = tmp_path / "key"
    private = ec.generate_private_key(ec.SECP384R1())
    key.write_bytes(private.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()))

    def never(read: Any) -> Payload:
        raise AssertionError("there is nothing to answer")

    node = node_module.StudyNode(
        address="localhost:1", authority="", private_key=key, answer=never, tell=told.append
    )
    node.run(lambda: coordinator.activated == 3)
    assert coordinator.handed_out == 2  # lost in two connections, and asked for again in each
    assert "a message was lost (object one is gone); connecting again" in told
