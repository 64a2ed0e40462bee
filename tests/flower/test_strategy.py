"""Strategy and client app on a grid without processes."""

import io
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Error, Message, MetricRecord, RecordDict
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp.strategy import FedAvg as FlowerFedAvg
from flwr.serverapp.strategy import Result
from flwr.supercore.task_identity import TaskIdentity

import fedscaffold as fs
from fedscaffold import flower
from fedscaffold.core.errors import CheckpointMismatch, InvalidInput
from fedscaffold.core.protocols import Method
from fedscaffold.federation import SitePolicy
from fedscaffold.flower import nodes as nodes_module
from fedscaffold.flower.certificates import key_in_hexadecimal, make_key
from fedscaffold.flower.wire import ARRAYS, VALUES, vector_of
from tests.federation.test_own_methods import OWN, HeavyBall
from tests.federation.test_own_methods import Scaffold as SameName
from tests.federation.test_protocol import METHODS
from tests.flower.grid import FakeGrid, Node
from tests.samples import make

SIZES = (6, 9, 4, 7, 5)
SCAFFOLD = fs.Scaffold(step_size=0.1, local_steps=4)
MODEL = ArrayRecord({"a": Array(np.zeros((2, 1))), "b": Array(np.zeros(1, dtype=np.float32))})


def problem() -> Any:
    return make("logistic", SIZES, 3, weights=SIZES)


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_run_id", "_node_id", "_task_id"):  # what Flower sets in a server's process
        monkeypatch.setattr(TaskIdentity, name, 1)
    monkeypatch.setattr(nodes_module, "POLL_INTERVAL", 0.001)
    monkeypatch.setattr(nodes_module, "DISCOVER_INTERVAL", 0.002)
    monkeypatch.setattr(nodes_module, "HELLO_TIMEOUT", 0.05)


def grid_on(folder: Path, n_clients: int = 5, methods: Sequence[type[Method]] = ()) -> FakeGrid:
    def load(context: Context) -> Any:
        return problem().subset([context.node_config["partition-id"]])

    app = flower.client_app(load, engine="reference", methods=methods, policy=SitePolicy.for_simulation())
    configs = [{"partition-id": c, "state-dir": str(folder / f"node-{c}")} for c in range(n_clients)]
    return FakeGrid(app, [Node(100 + 7 * c % 5, config) for c, config in enumerate(configs)])


def strategy(folder: Path, method: Method = SCAFFOLD, **options: Any) -> flower.Strategy:
    given: dict[str, Any] = {
        "n_clients": 5,
        "folder": folder / "server",
        "seed": 3,
        "batch_size": 2,
        "connect_timeout": 0.01,
        "outlier_factor": None,
    }
    return flower.Strategy(method, **{**given, **options})


def theta(result: Result) -> Any:
    return vector_of(result.arrays)


def simulated(rounds: int, method: Method = SCAFFOLD) -> Any:
    return fs.run(problem(), method, rounds=rounds, batch_size=2, seed=3, engine="reference", record=()).theta[0]


@pytest.mark.parametrize("method", METHODS, ids=repr)
def test_numbers_are_those_of_the_simulation(tmp_path: Path, method: Method) -> None:
    result = strategy(tmp_path, method).start(grid_on(tmp_path), ArrayRecord([np.zeros(3)]), num_rounds=5)
    np.testing.assert_allclose(theta(result), simulated(5, method), rtol=0, atol=1e-12)
    assert result.train_metrics_clientapp[5]["refused"] == []


def test_a_method_that_the_app_passes(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Nodes whose app does not pass it refuse, and the server's log says what their code means."""
    start = ArrayRecord([np.zeros(3)])
    with pytest.raises(flower.TooFewClients):
        strategy(tmp_path / "without", OWN, attempts=1).start(grid_on(tmp_path), start, num_rounds=1)
    assert (
        "client 0 rejects the request: the method is not known at the site; its app must pass the class"
        in caplog.text
    )
    result = strategy(tmp_path, OWN).start(grid_on(tmp_path, methods=[HeavyBall]), start, num_rounds=5)
    np.testing.assert_allclose(theta(result), simulated(5, OWN), rtol=0, atol=1e-12)
    with pytest.raises(InvalidInput, match="give your class another name"):
        grid_on(tmp_path, methods=[SameName])


def test_the_protocols_log_stands_among_flowers(tmp_path: Path) -> None:
    """Each line once, written by Flower's own handler."""
    lines = io.StringIO()
    handler = logging.StreamHandler(lines)
    logging.getLogger("flwr").addHandler(handler)
    try:
        grid = grid_on(tmp_path)
        grid.handle = lambda node, message: (
            Message(Error(code=0, reason="no disk"), reply_to=message)
            if message.metadata.message_type == "train" and node is grid.nodes[0]
            else grid.run_app(node, message)
        )
        strategy(tmp_path).start(grid, MODEL, num_rounds=1)
    finally:
        logging.getLogger("flwr").removeHandler(handler)
    assert lines.getvalue().count("round 0: client 0 failed: no disk") == 1
    assert lines.getvalue().count("round 1 of 1: 4 clients counted") == 1


def test_messages_of_another_version_are_refused(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    grid = grid_on(tmp_path)

    def handle(node: Node, message: Message) -> Message | None:
        request: Any = message.content.config_records.get(VALUES)
        if request is not None:
            request["version"] = 1
        return grid.run_app(node, message)

    grid.handle = handle
    with pytest.raises(flower.TooFewClients):
        strategy(tmp_path, attempts=1).start(grid, MODEL, num_rounds=1)
    assert (
        "client 0 rejects the request: the request is damaged, or does not fit this run; do server and site"
        in caplog.text
    )
    assert "the server has version 1 of the messages, this side version 4; install" in caplog.text


def test_the_model_keeps_names_shapes_and_types(tmp_path: Path) -> None:
    result = strategy(tmp_path).start(grid_on(tmp_path), MODEL, num_rounds=2)
    assert list(result.arrays) == ["a", "b"]
    assert [(array.dtype, tuple(array.shape)) for array in result.arrays.values()] == [
        ("float64", (2, 1)),
        ("float32", (1,)),
    ]
    np.testing.assert_allclose(theta(result), simulated(2), rtol=0, atol=1e-7)


def test_what_travels(tmp_path: Path) -> None:
    """Down θ, and the state after their last round to those who were not there; up one vector. No ξ."""
    grid = grid_on(tmp_path)
    up: list[RecordDict] = []

    def handle(node: Node, message: Message) -> Message | None:
        reply = grid.run_app(node, message)
        assert reply is not None
        up.append(reply.content)
        return reply

    grid.handle = handle
    method = fs.Scaffold(step_size=0.1, local_steps=4, cohort=3)
    run = strategy(tmp_path, method)
    run.start(grid, ArrayRecord([np.zeros(3)]), num_rounds=6)
    last: dict[int, int] = {}
    for message in grid.seen:
        records = message.content
        if message.metadata.message_type == "query":
            assert len(records) == 0
            continue
        request: Any = records.config_records[VALUES]
        client, round = request["client"], request["round"]
        absent = last.get(client, round - 1) != round - 1
        assert set(records) == {VALUES, ARRAYS}
        assert set(records.array_records[ARRAYS]) == {"server/theta"} | (
            {"server_after/theta"} if absent else set()
        )
        last[client] = round
    assert len(up) == 5 + 6 * 3
    for records in up[5:]:
        assert set(records) == {VALUES, ARRAYS}
        assert {name: array.shape for name, array in records.array_records[ARRAYS].items()} == {"vector": (3,)}


def test_it_goes_on_where_it_stopped(tmp_path: Path) -> None:
    grid = grid_on(tmp_path)
    strategy(tmp_path).start(grid, MODEL, num_rounds=2)
    rounds: list[int] = []

    def evaluate(round: int, arrays: ArrayRecord) -> MetricRecord:
        rounds.append(round)
        return MetricRecord({"round": round})

    again = strategy(tmp_path).start(grid, MODEL, num_rounds=5, evaluate_fn=evaluate)
    np.testing.assert_allclose(theta(again), simulated(5), rtol=0, atol=1e-7)
    assert rounds == [3, 4, 5]
    assert list(again.evaluate_metrics_serverapp) == [3, 4, 5]
    with pytest.raises(CheckpointMismatch, match="at round 5, past the 4"):
        strategy(tmp_path).start(grid, MODEL, num_rounds=4)
    with pytest.raises(CheckpointMismatch, match="other weights"):
        strategy(tmp_path, weights="uniform").start(grid, MODEL, num_rounds=6)
    with pytest.raises(CheckpointMismatch, match="another run"):
        strategy(tmp_path, seed=4).start(grid, MODEL, num_rounds=6)


def test_flower_evaluates_on_clients(tmp_path: Path) -> None:
    grid = grid_on(tmp_path)

    @grid.app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        arrays = next(iter(message.content.array_records.values()))
        metrics = MetricRecord({"norm": float(np.linalg.norm(vector_of(arrays))), "num-examples": 1})
        return Message(RecordDict({"metrics": metrics}), reply_to=message)

    run = strategy(tmp_path, evaluation=FlowerFedAvg(fraction_evaluate=1.0))
    result = run.start(grid, ArrayRecord([np.zeros(3)]), num_rounds=2, evaluate_config=ConfigRecord({"x": 1}))
    found = result.evaluate_metrics_clientapp[2]["norm"]
    np.testing.assert_allclose(found, np.linalg.norm(theta(result)), rtol=1e-12)


@pytest.mark.parametrize("number", [100, 200], ids=["same number", "new number"])
def test_a_node_that_starts_again_in_mid_round_is_asked_again(tmp_path: Path, number: int) -> None:
    """Its reply is lost, its disk is not: the run is as if nothing had happened."""
    grid = grid_on(tmp_path)
    victim = grid.nodes[0]
    assert victim.number == 100
    killed: list[int] = []

    def handle(node: Node, message: Message) -> Message | None:
        request: Any = message.content.config_records.get(VALUES)
        if node is victim and request is not None and request["round"] == 2 and not killed:
            killed.append(1)
            grid.run_app(node, message)
            grid.waiting.pop(message.metadata.message_id)
            node.number, node.activated = number, "1"
            return None
        return grid.run_app(node, message)

    grid.handle = handle
    run = strategy(tmp_path, min_clients=5, attempts=1)
    result = run.start(grid, ArrayRecord([np.zeros(3)]), num_rounds=5, timeout=20.0)
    assert killed
    np.testing.assert_allclose(theta(result), simulated(5), rtol=0, atol=1e-12)


def test_a_run_goes_on_without_those_who_are_gone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    grid = grid_on(tmp_path)
    run = strategy(tmp_path)
    run.start(grid, MODEL, num_rounds=2)
    grid.nodes[4].online = False
    result = run.start(grid, MODEL, num_rounds=4)
    assert result.train_metrics_clientapp[4]["counted"] == [0, 1, 2, 3]
    for node in grid.nodes:
        node.online = False
    with pytest.raises(flower.TooFewClients, match="0 of 5 clients sent updates"):
        run.start(grid, MODEL, num_rounds=5)


def test_nobody_is_waited_for_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that is gone costs its connect_timeout once; when it is back it is asked again."""
    grid, run, waited = grid_on(tmp_path), strategy(tmp_path), list[set[int]]()
    run.start(grid, MODEL, num_rounds=1)
    wait_for = nodes_module.Nodes.wait_for

    def recorded(self: Any, clients: Any, *, seconds: float) -> set[int]:
        waited.append(set(clients))
        return wait_for(self, clients, seconds=seconds)

    monkeypatch.setattr(nodes_module.Nodes, "wait_for", recorded)
    grid.nodes[4].online = False
    evaluated: list[int] = []

    def evaluate(round: int, arrays: ArrayRecord) -> None:
        evaluated.append(round)
        grid.nodes[4].online = round >= 4

    result = run.start(grid, MODEL, num_rounds=6, evaluate_fn=evaluate)
    everyone, rest = {0, 1, 2, 3, 4}, {0, 1, 2, 3}
    assert waited[0] == everyone
    assert waited[1] == waited[2] == rest
    counted = [len(list(result.train_metrics_clientapp[t]["counted"])) for t in range(2, 7)]  # type: ignore[arg-type]
    assert counted[:3] == [4, 4, 4]
    assert counted[-1] == 5


def test_weights_need_everyone_once(tmp_path: Path) -> None:
    grid = grid_on(tmp_path)
    grid.nodes[3].online = False
    with pytest.raises(flower.TooFewClients, match=r"clients \[3\] are not online"):
        strategy(tmp_path, attempts=2).start(grid, MODEL, num_rounds=1)
    strategy(tmp_path, weights="uniform").start(grid, MODEL, num_rounds=1)


def test_an_impostor_is_ignored(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """With pinned keys nobody else can be a client; without, the newest node that says so is it."""
    grid = grid_on(tmp_path)
    run = strategy(tmp_path, pin_node_keys=True)
    run.start(grid, MODEL, num_rounds=1)
    grid.nodes.append(Node(300, {"partition-id": 1, "state-dir": str(tmp_path / "evil")}))
    result = run.start(grid, MODEL, num_rounds=3)
    np.testing.assert_allclose(theta(result), simulated(3), rtol=0, atol=1e-7)
    assert not (tmp_path / "evil").exists()
    assert "node 300 is ignored: it says that it is client 1, whose node has another key" in caplog.text


def test_only_nodes_with_the_given_keys_take_part(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Also when the impostor is there first."""
    grid = grid_on(tmp_path)
    keys = {client: node.key.hex() for client, node in enumerate(grid.nodes)}
    grid.nodes.insert(0, Node(99, {"partition-id": 1, "state-dir": str(tmp_path / "evil")}))
    result = strategy(tmp_path, keys=keys).start(grid, MODEL, num_rounds=2)
    np.testing.assert_allclose(theta(result), simulated(2), rtol=0, atol=1e-7)
    assert (
        "node 99 is ignored: it says that it is client 1, but its key is not the one given for it" in caplog.text
    )
    assert not list((tmp_path / "evil").glob("*/*.state"))


def test_keys_in_the_forms_that_operators_have(tmp_path: Path) -> None:
    _, public = make_key(tmp_path, "node")
    text = public.read_text()
    found = key_in_hexadecimal(text)
    pem = bytes.fromhex(found).decode()
    assert pem.startswith("-----BEGIN PUBLIC KEY-----")
    assert key_in_hexadecimal(pem) == key_in_hexadecimal(found.upper()) == found
    with pytest.raises(InvalidInput, match="not a public key"):
        key_in_hexadecimal("ssh-rsa rubbish")


@pytest.mark.parametrize(
    ("registered", "activated", "pinned"),
    [
        ("2026-01-01T10:00:00+00:00", "2026-01-01T10:00:00.2+00:00", False),
        ("2026-01-01T10:00:00+00:00", "2026-01-01T10:03:00+00:00", True),
        ("", "rubbish", False),
    ],
)
def test_keys_are_pinned_where_an_operator_registered_nodes(registered: str, activated: str, pinned: bool) -> None:
    info = NodeInfo(node_id=1, registered_at=registered, last_activated_at=activated)
    assert nodes_module._registered_by_operator(info) == pinned


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"state-dir": "x"}, "must say which client it is"),
        ({"partition-id": "0", "state-dir": "x"}, "must say which client it is"),
        ({"partition-id": 7, "state-dir": "x"}, "it says that it is client 7, but there are 5"),
    ],
)
def test_nodes_that_do_not_fit_are_ignored(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    config: dict[str, Any],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    grid = grid_on(tmp_path)
    grid.nodes.append(Node(300, config))
    load = grid.app

    def handle(node: Node, message: Message) -> Message | None:
        if node.number == 300 and node.config.get("partition-id") == 7:
            node.config["partition-id"] = 2  # for its data
            reply = load(message, Context(1, 300, node.config, RecordDict(), {}))
            values: Any = reply.content.config_records[VALUES]
            values["client"] = 7
            return reply
        return grid.run_app(node, message)

    grid.handle = handle
    strategy(tmp_path).start(grid, MODEL, num_rounds=1)
    assert "node 300 is ignored" in caplog.text
    assert message in caplog.text


def test_a_node_that_cannot_say_who_it_is_is_asked_again(tmp_path: Path) -> None:
    grid, failures = grid_on(tmp_path), [1, 2]

    def handle(node: Node, message: Message) -> Message | None:
        if node is grid.nodes[2] and failures:
            failures.pop()
            return Message(Error(code=0, reason="no data yet"), reply_to=message)
        return grid.run_app(node, message)

    grid.handle = handle
    result = strategy(tmp_path, connect_timeout=5.0).start(grid, ArrayRecord([np.zeros(3)]), num_rounds=2)
    np.testing.assert_allclose(theta(result), simulated(2), rtol=0, atol=1e-12)


def test_replies_that_are_rubbish(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    grid = grid_on(tmp_path)
    archive = io.BytesIO()
    np.savez(archive, x=np.zeros(3))
    files = {2: b"not numpy's", 3: archive.getvalue()}

    def handle(node: Node, message: Message) -> Message | None:
        reply, client = grid.run_app(node, message), node.config["partition-id"]
        assert reply is not None
        if message.metadata.message_type == "query" or client == 4:
            return reply
        values: Any = reply.content.config_records[VALUES]
        if client == 0:
            return Message(RecordDict(), reply_to=message)
        if client == 1:
            values["round"] = "\x1b[2J first\nsecond"
        else:
            bad = Array(dtype="float64", shape=(3,), stype="numpy.ndarray", data=files[client])
            reply.content.array_records[ARRAYS]["vector"] = bad
        return reply

    grid.handle = handle
    result = strategy(tmp_path, min_clients=1).start(grid, MODEL, num_rounds=1)
    assert result.train_metrics_clientapp[1]["counted"] == [4]
    assert caplog.text.count("its reply cannot be read") == 4
    assert "\x1b" not in caplog.text
    assert "round must be a valid integer, got" in caplog.text


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"weights": "records"}, "weights must be"),
        ({"weights": [1.0, 2.0]}, "there are 5 clients, but 2 weights"),
        ({"weights": [1.0, 2.0, -1.0, 1.0, 1.0]}, "a weight"),
        ({"min_clients": 0}, "min_clients"),
        ({"attempts": 0}, "attempts"),
        ({"outlier_factor": 1.0}, "outlier_factor"),
        ({"connect_timeout": 0.0}, "connect_timeout"),
        ({"keys": {0: "00"}}, r"missing: \[1, 2, 3, 4\]"),
        ({"keys": dict.fromkeys(range(5), "00")}, "must differ"),
        ({"keys": dict.fromkeys(range(5), "rubbish!")}, "not a public key"),
        ({"keep_checkpoints": 0}, "keep_checkpoints"),
        ({"batch_size": 0}, "batch_size"),
        ({"name": "a/b"}, "name"),
    ],
)
def test_a_strategy_that_makes_no_sense(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        strategy(tmp_path, **options)


@pytest.mark.parametrize(
    ("arrays", "options", "message"),
    [
        (ArrayRecord([np.full(3, np.nan)]), {}, "NaN"),
        (ArrayRecord([np.zeros(3, dtype=bool)]), {}, "holds bool"),
        (ArrayRecord(), {}, "dim"),
        (MODEL, {"num_rounds": 0}, "num_rounds"),
        (MODEL, {"timeout": 0.0}, "timeout"),
        (MODEL, {"train_config": ConfigRecord({"lr": 0.1})}, "train_config"),
    ],
)
def test_a_start_that_makes_no_sense(
    tmp_path: Path, arrays: ArrayRecord, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidInput, match=message):
        strategy(tmp_path).start(grid_on(tmp_path), arrays, **options)
    assert not (tmp_path / "server").exists()


def test_another_number_of_parameters(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(flower.TooFewClients):
        strategy(tmp_path, attempts=1).start(grid_on(tmp_path), ArrayRecord([np.zeros(4)]), num_rounds=1)
    assert "model has 3 parameters, the server's 4; do they have the same columns" in caplog.text
