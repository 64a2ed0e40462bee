import pytest

from fedscaffold.federation.study import transport as remote
from fedscaffold.flower.study import fleet, run
from tests.federation.conftest import no_waiting_for_disks

__all__ = ["no_waiting_for_disks"]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait for nobody longer than needed."""
    for module, name, seconds in (
        (remote, "POLL", 0.005), (remote, "LONGEST_POLL", 0.02), (remote, "ASK_AGAIN", 0.05),
        (fleet, "RETRY", 0.1), (fleet, "LINGER", 0.3), (run, "STOP_SECONDS", 2.0),
    ):  # fmt: skip
        monkeypatch.setattr(module, name, seconds)
