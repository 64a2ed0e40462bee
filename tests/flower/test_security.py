"""What the page on security says of noise: it goes in before the client keeps what it sends, or Σ w_c ξ_c ≠ 0."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, Context
from flwr.clientapp.mod import LocalDpMod
from flwr.supercore.task_identity import TaskIdentity

import fedscaffold as fs
from fedscaffold import flower
from fedscaffold.federation import ClientUpdate, LocalTask, ProblemTask, TrainRequest
from fedscaffold.federation.messages import Reply
from fedscaffold.flower import nodes as nodes_module
from tests.federation.federation import Federation
from tests.flower.grid import FakeGrid, Node
from tests.samples import make

PAGE = Path(__file__).parents[2] / "docs" / "explanation" / "security.md"
SIZES = (6, 9, 4, 7, 5)
METHOD = fs.Scaffold(step_size=0.1, local_steps=4)


def noisy() -> Any:
    """The class on the page."""
    found: dict[str, Any] = {}
    exec(PAGE.read_text().split("```python\n")[1].split("```")[0], found)
    return found["Noisy"]


class NoisyFederation(Federation):
    clip, deviation, kind = 1.0, 0.1, noisy()

    def work_of(self, client: int) -> LocalTask:
        plain = ProblemTask(self.problem.subset([client]), "reference")
        return self.kind(plain, clip=self.clip, deviation=self.deviation)


def test_noise_in_the_work_keeps_the_sum(tmp_path: Path) -> None:
    federation = NoisyFederation(tmp_path, make("logistic", SIZES, 3, weights=SIZES), METHOD)
    federation.run(10)
    assert federation.drift() < 1e-13
    federation.check_backup()
    assert np.abs(federation.ledger.server.theta - federation.simulated(10).theta).max() > 1e-3


def test_the_change_is_clipped(tmp_path: Path) -> None:
    lengths = []

    def measured(request: TrainRequest, work: Callable[[], Reply]) -> Reply:
        reply = work()
        assert isinstance(reply, ClientUpdate)
        lengths.append(np.linalg.norm(reply.vector - request.server.theta[0]))
        return reply

    federation = NoisyFederation(tmp_path, make("logistic", SIZES, 3), METHOD, event=measured)
    federation.clip, federation.deviation = 0.01, 0.0
    federation.run(2)
    np.testing.assert_allclose(lengths, 0.01, rtol=1e-9)


def test_noise_after_the_client_state_loses_the_sum(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)

    def spoilt(request: TrainRequest, work: Callable[[], Reply]) -> Reply:
        reply = work()
        assert isinstance(reply, ClientUpdate)
        return replace(reply, vector=reply.vector + rng.normal(scale=0.1, size=3))

    federation = Federation(tmp_path, make("logistic", SIZES, 3, weights=SIZES), METHOD, event=spoilt)
    federation.run(10)
    assert federation.drift() > 0.01


def test_flowers_own_noise_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its mod asks for a record of arrays in every message, and an introduction has none."""
    for name in ("_run_id", "_node_id", "_task_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)
    monkeypatch.setattr(nodes_module, "POLL_INTERVAL", 0.001)

    def load(context: Context) -> Any:
        return make("logistic", SIZES, 3).subset([flower.client_of(context)])

    app = flower.client_app(load, engine="reference", state_dir=tmp_path, mods=[LocalDpMod(1.0, 0.1, 10.0, 1e-5)])
    grid = FakeGrid(app, [Node(10 + c, {"partition-id": c}) for c in range(5)])
    strategy = flower.Strategy(METHOD, n_clients=5, folder=tmp_path / "server", attempts=1, connect_timeout=0.05)
    with pytest.raises(flower.TooFewClients, match=r"\[0, 1, 2, 3, 4\] are not online"):
        strategy.start(grid, ArrayRecord([np.zeros(3)]), num_rounds=1)
