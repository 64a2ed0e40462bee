"""What the page on security says of noise: it goes in before the client keeps what it sends, or Σ w_c ξ_c ≠ 0."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, Context, Message
from flwr.clientapp.mod import LocalDpMod
from flwr.supercore.task_identity import TaskIdentity

import fedscaffold as fs
from fedscaffold import flower
from fedscaffold.federation import ClientUpdate, TrainRequest
from fedscaffold.federation.messages import Reply
from fedscaffold.flower import nodes as nodes_module
from fedscaffold.flower.wire import ARRAYS, vector_of
from fedscaffold.privacy import ClientLevel, RecordLevel
from fedscaffold.privacy.grid import CLIP
from tests.federation.federation import Federation
from tests.flower.grid import FakeGrid, Node
from tests.samples import make

SIZES = (6, 9, 4, 7, 5)
METHOD = fs.Scaffold(step_size=0.1, local_steps=4)


def test_noise_of_messages_keeps_the_sum(tmp_path: Path) -> None:
    privacy = ClientLevel(clip=1.0, noise_multiplier=0.1)
    federation = Federation(tmp_path, make("logistic", SIZES, 3, weights=SIZES), METHOD, privacy=privacy)
    federation.run(10)
    assert federation.drift() < 1e-13
    federation.check_backup()
    assert np.abs(federation.ledger.server.theta - federation.simulated(10).theta).max() > 1e-3


def test_the_change_is_clipped(tmp_path: Path) -> None:
    lengths = []

    def measured(request: TrainRequest, work: Callable[[], Reply]) -> Reply:
        reply = work()
        assert isinstance(reply, ClientUpdate)
        assert (reply.vector == np.rint(reply.vector)).all()
        lengths.append(np.linalg.norm(reply.vector) * 0.01 / CLIP)
        return reply

    privacy = ClientLevel(clip=0.01, noise_multiplier=0.0)
    Federation(tmp_path, make("logistic", SIZES, 3), METHOD, event=measured, privacy=privacy).run(2)
    assert max(lengths) <= 0.01 * (1 + 1e-15)
    np.testing.assert_allclose(lengths, 0.01, rtol=1e-8)  # cut down to whole numbers of 0.01 / 2³⁰


@pytest.mark.parametrize(("options", "words"), [
    ({"privacy": ClientLevel(clip=1.0, noise_multiplier=1.0, summed=True)}, "needs all of the noise"),
    ({"privacy": ClientLevel(clip=1.0, noise_multiplier=1.0), "weights": "rows"}, "weights='uniform'"),
    ({"privacy": RecordLevel(clip=1.0, noise_multiplier=1.0), "batch_size": 5}, "leave batch_size out"),
    ({"privacy": RecordLevel(clip=1.0, noise_multiplier=1.0), "method": fs.FedLin(step_size=0.1, local_steps=2)},
     "use Scaffold or FedAvg"),
])  # fmt: skip
def test_what_would_not_be_protected_is_refused(tmp_path: Path, options: dict[str, Any], words: str) -> None:
    given: dict[str, Any] = {"method": METHOD, "n_clients": 5, "folder": tmp_path, "weights": "uniform", **options}
    with pytest.raises(fs.InvalidInput, match=words):
        flower.Strategy(**given)


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


def test_messages_with_noise_leave_a_site_as_whole_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The change of θ, in units of the clip over 2³⁰, of `flower.Strategy(privacy=ClientLevel(...))`."""
    for name in ("_run_id", "_node_id", "_task_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)
    monkeypatch.setattr(nodes_module, "POLL_INTERVAL", 0.001)

    def load(context: Context) -> Any:
        return make("logistic", (20,) * 3, 3).subset([flower.client_of(context)])

    app = flower.client_app(load, engine="reference", state_dir=lambda c: tmp_path / str(flower.client_of(c)))
    grid = FakeGrid(app, [Node(10 + c, {"partition-id": c}) for c in range(3)])
    sent: list[Any] = []

    def handle(node: Node, message: Message) -> Message | None:
        reply = grid.run_app(node, message)
        assert reply is not None
        if message.metadata.message_type == "train":
            sent.append(reply.content.array_records[ARRAYS]["vector"].numpy())
        return reply

    grid.handle = handle
    theta0 = np.array([0.3, -1.7, 123.4])
    strategy = flower.Strategy(
        METHOD, n_clients=3, folder=tmp_path / "server", weights="uniform", outlier_factor=None,
        privacy=ClientLevel(clip=0.5, noise_multiplier=2.0),
    )  # fmt: skip
    result = strategy.start(grid, ArrayRecord([theta0]), num_rounds=1)
    assert len(sent) == 3
    assert all((vector == np.rint(vector)).all() for vector in sent)
    mean = theta0 + np.mean(sent, axis=0) * (0.5 / CLIP)
    np.testing.assert_allclose(vector_of(result.arrays), mean, rtol=0, atol=1e-12)
