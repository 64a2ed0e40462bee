"""A site's node whose connection loses messages."""

from typing import Any

import pytest

from fedscaffold.federation.messages import Payload
from fedscaffold.flower.study import fleet
from fedscaffold.flower.study.fleet import Unreachable


class LossyConnection:
    """A connection that loses its message, once per activation."""

    address = "localhost:1"

    def __init__(self) -> None:
        self.activated, self.left, self.closed = 0, 0, False

    def activate(self) -> None:
        self.activated += 1

    def deactivate(self) -> None:
        self.left += 1

    def close(self) -> None:
        self.closed = True

    def beat(self) -> bool:
        return True

    def fetch(self) -> Any:
        raise Unreachable("a message was lost (object one is gone); connecting again")


def test_a_message_that_is_lost_ends_the_connection_so_that_it_is_asked_for_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    connection, said = LossyConnection(), list[str]()
    monkeypatch.setattr(fleet, "RETRY", 0.0)

    def never(request: Payload) -> Payload:
        raise AssertionError("there is nothing to answer")

    lossy: Any = connection
    fleet.answer_flower(lossy, answer=never, done=lambda: connection.activated == 3, say=said.append)
    assert connection.left == 3
    assert connection.closed
    assert said.count("a message was lost (object one is gone); connecting again") == 2


def test_a_coordinator_that_forgot_the_node_is_told_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """As after a restart of the coordinator: heartbeats fail, and the node activates itself again."""
    monkeypatch.setattr(fleet, "RETRY", 0.0)
    monkeypatch.setattr(fleet, "SECONDS_PER_HEARTBEAT", 0.01)
    connection, said = LossyConnection(), list[str]()
    forgetful: Any = connection
    forgetful.beat = lambda: False
    forgetful.fetch = lambda: None
    fleet.answer_flower(
        forgetful, answer=lambda request: request, done=lambda: connection.activated == 3, say=said.append
    )
    assert any("no longer knows this site" in sentence for sentence in said)
