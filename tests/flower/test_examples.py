"""The example apps give the simulation's numbers: on a grid without processes, and in Flower's own simulation."""

import importlib
import json
import time
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Context, RecordDict
from flwr.supercore.task_identity import TaskIdentity

import fedscaffold as fs
from fedscaffold.core import npz
from fedscaffold.core.types import Array
from fedscaffold.flower import nodes as nodes_module
from tests.extras import optional
from tests.flower.grid import FakeGrid, Node
from tests.flower.loopback import Loopback

EXAMPLES = Path(__file__).parents[2] / "examples"
HOSPITAL, TORCH = EXAMPLES / "flower-hospital", EXAMPLES / "flower-torch"


def settings(app: Path, **changes: Any) -> dict[str, Any]:
    found = tomllib.loads((app / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
    assert changes.keys() <= found.keys()
    return {**found, **changes}


def theta(folder: Path) -> Array:
    """θ of the server's newest checkpoint."""
    arrays, _ = npz.read(max((folder / "checkpoints").glob("round-*.npz")))
    return arrays["server/theta"][0]


class AppGrid(FakeGrid):
    """Nodes of a simulation, which know no more than their number; they hear the run's settings."""

    def __init__(self, app: Any, config: dict[str, Any]) -> None:
        super().__init__(app, [Node(10 + c, {"partition-id": c}) for c in range(config["clients"])])
        self.config = config

    def context(self, node: int, config: dict[str, Any]) -> Context:
        return Context(run_id=1, node_id=node, node_config=config, state=RecordDict(), run_config=self.config)

    def run_app(self, node: Node, message: Any) -> Any:
        return self.app(message, self.context(node.number, node.config))


def run_here(monkeypatch: pytest.MonkeyPatch, app: Path, package: str, config: dict[str, Any]) -> None:
    """The app's two sides in this process."""
    monkeypatch.syspath_prepend(app)
    for name in ("_run_id", "_node_id", "_task_id"):  # what Flower sets in a server's process
        monkeypatch.setattr(TaskIdentity, name, 1)
    monkeypatch.setattr(nodes_module, "POLL_INTERVAL", 0.001)
    grid = AppGrid(importlib.import_module(f"{package}.client_app").app, config)
    importlib.import_module(f"{package}.server_app").app(grid, grid.context(0, {}))


@pytest.fixture
def tables(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A folder with the hospitals' tables."""
    monkeypatch.syspath_prepend(HOSPITAL)
    importlib.import_module("make_tables").write_tables(tmp_path)
    return tmp_path


def simulated(folder: Path, config: dict[str, Any]) -> tuple[Any, Array]:
    """The hospitals' task, and θ of the same run without Flower."""
    task = importlib.import_module("hospital.task")
    problem = task.pooled([folder / f"hospital-{c}.csv" for c in range(config["clients"])])
    trace = fs.run(
        problem, task.method(config), rounds=config["rounds"], batch_size=config["batch-size"],
        seed=config["seed"], engine="reference", record=(),
    )  # fmt: skip
    return task, trace.theta[0]


def test_hospitals_without_processes(monkeypatch: pytest.MonkeyPatch, tables: Path) -> None:
    config = settings(HOSPITAL, folder=str(tables), rounds=4)
    run_here(monkeypatch, HOSPITAL, "hospital", config)
    task, expected = simulated(tables, config)
    np.testing.assert_allclose(theta(tables / "server"), expected, rtol=0, atol=1e-10)
    model = fs.Model.load(tables / "server" / "model.json")
    import pandas as pd

    new = pd.read_csv(tables / "new.csv")
    margins = task.AGREEMENT.encoding.encode(new) @ expected
    np.testing.assert_allclose(model.predict_proba(new)[:, 1], 1 / (1 + np.exp(-margins)), rtol=1e-9)
    assert (model.predict(new) == new["diagnosis"]).mean() > 0.88
    assert len(list((tables / "state").glob("*/client-*.state"))) == config["clients"]


@pytest.mark.slow
def test_hospitals_in_flowers_simulation(tables: Path) -> None:
    config = settings(HOSPITAL, folder=str(tables), rounds=3)
    with Loopback(tables / "flower", [], secure=False, superlink_options=["--simulation"]) as federation:
        started = federation.flwr(
            "run", str(HOSPITAL), "loopback", "--format", "json",
            "--federation-config", "num-supernodes=4 client-resources-num-cpus=1",
            "--run-config", f'folder="{tables}" rounds=3',
        )  # fmt: skip
        run, end = json.loads(started)["run-id"], time.monotonic() + 600.0
        while not (tables / "server" / "model.json").exists():
            listed = federation.flwr("list", "loopback", "--run-id", str(run), "--format", "json")
            assert '"finished:failed' not in listed, federation.log("superlink")
            assert time.monotonic() < end
            time.sleep(2.0)
    _, expected = simulated(tables, config)
    np.testing.assert_allclose(theta(tables / "server"), expected, rtol=0, atol=1e-10)


@pytest.mark.slow
def test_hospitals_on_loopback(tables: Path) -> None:
    """Each node knows its own table and has a folder of its own for its state, with TLS and node keys."""
    config = settings(HOSPITAL, folder=str(tables / "elsewhere"), rounds=2)
    nodes: list[dict[str, str | int]] = [
        {"partition-id": c, "table": str(tables / f"hospital-{c}.csv"), "state-dir": str(tables / f"state-{c}")}
        for c in range(config["clients"])
    ]
    with Loopback(tables / "flower", nodes) as federation:
        run = federation.run(HOSPITAL, {"folder": config["folder"], "rounds": config["rounds"]})
        output, _ = run.communicate(timeout=900)
    assert run.returncode == 0, output
    _, expected = simulated(tables, config)
    np.testing.assert_allclose(theta(tables / "elsewhere" / "server"), expected, rtol=0, atol=1e-10)
    for c in range(config["clients"]):
        assert [path.name for path in (tables / f"state-{c}").glob("*/*.state")] == [f"client-{c:05d}.state"]


def test_the_network_s_app_gives_the_simulation_s_model(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The same seeds, in single precision on both sides."""
    optional("torch")
    config = settings(TORCH, folder=str(tmp_path)) | {"rounds": 3, "local-steps": 5}
    run_here(monkeypatch, TORCH, "digits", config)
    task = importlib.import_module("digits.task")
    data = [task.data_of(c, config) for c in range(config["clients"])]
    problem = fs.problems.Torch(task.network(config["seed"]), task.problem_of(data[0]).batch_loss.loss, data,
                                weights=[len(y) for _, y in data])  # fmt: skip
    method = fs.Scaffold(step_size=config["step-size"], local_steps=config["local-steps"])
    trace = fs.run(
        problem, method, rounds=3, batch_size=config["batch-size"], seed=config["seed"], record=("loss",)
    )
    found = theta(tmp_path / "Scaffold")
    assert np.abs(found - problem.initial).max() > 0.01
    np.testing.assert_allclose(found, trace.theta[0], rtol=0, atol=1e-5)


@pytest.mark.slow
def test_scaffold_is_ahead_on_digits(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What the app's page says."""
    torch = optional("torch")
    reached = {}
    for method in ("Scaffold", "FedAvg"):
        run_here(monkeypatch, TORCH, "digits", settings(TORCH, folder=str(tmp_path), method=method))
        task = importlib.import_module("digits.task")
        model = task.network(0)
        with np.load(tmp_path / method / "network.npz") as found:
            model.load_state_dict({name: torch.from_numpy(found[name]) for name in found})
        reached[method] = task.accuracy(model)
    shown = (TORCH / "README.md").read_text()
    for method, accuracy in reached.items():
        assert f"| {method} | {accuracy:.3f} |" in shown
    assert reached["Scaffold"] > reached["FedAvg"] + 0.02
