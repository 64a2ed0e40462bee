import pytest
from flwr.supercore.task_identity import TaskIdentity

from fedscaffold.flower.study import transport as transport_module


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server's process by the names that Flower gives it, which waits for no answer longer than it must."""
    for name in ("_run_id", "_node_id", "_task_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)
    for name in ("POLL_INTERVAL", "DISCOVER_INTERVAL", "ASK_AGAIN"):
        monkeypatch.setattr(transport_module, name, 0.001)
