import pytest

from fedscaffold.federation import post, remote
from fedscaffold.flower.study import node, run
from tests.federation.conftest import no_waiting_for_disks

__all__ = ["no_waiting_for_disks"]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait for nobody longer than needed."""
    for module, name, seconds in (
        (post, "POLL", 0.005), (post, "LONGEST_POLL", 0.02), (remote, "ASK_AGAIN", 0.05), (node, "RETRY", 0.1),
        (node, "LINGER", 0.3), (remote, "DELIVER_SECONDS", 5.0), (run, "STOP_SECONDS", 2.0),
    ):  # fmt: skip
        monkeypatch.setattr(module, name, seconds)
