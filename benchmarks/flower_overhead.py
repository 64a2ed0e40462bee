"""Seconds per round of Scaffold on Flower, beside Flower's own FedAvg on the same nodes with as many vectors.

`python -m benchmarks.flower_overhead [--quick]`. Real processes on loopback, without TLS, and clients that hardly
compute. Flower looks for replies every 3 seconds, which would hide what things cost, so its FedAvg is measured as
it is and with our quarter of a second. All take turns in one run, so that other programs on the machine disturb
them alike, and processor time is taken besides the clock's. Our own share is measured without Flower's processes:
what a client's process, new for every message, imports beyond Flower; and files, sums and checks in one process.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

import fedscaffold as fs
from fedscaffold.core import provenance
from fedscaffold.core.files import replacing
from fedscaffold.core.protocols import LocalSgd
from fedscaffold.core.random.stream import Batches
from fedscaffold.core.types import Array
from fedscaffold.federation import (
    RoundRules,
    RunConfig,
    SitePolicy,
    TrainRequest,
    handle_request,
)
from fedscaffold.federation.messages import Reply
from fedscaffold.federation.server.session import open_session
from tests.flower.loopback import Loopback

OUT = Path("results/bench/flower_overhead.json")
SLOW, FLOWER, OURS = "Flower's FedAvg", "the same, looking more often", "Scaffold"
METHOD = fs.Scaffold(step_size=0.1, local_steps=1)

PYPROJECT = """[project]
name = "{name}"
version = "1.0.0"
description = "benchmark"
license = "BSD-3-Clause"
dependencies = []
[tool.flwr.app]
publisher = "fedscaffold"
[tool.flwr.app.components]
serverapp = "{name}:server"
clientapp = "{name}:client"
[tool.flwr.app.config]
dim = 1
nodes = 2
rounds = 2
times = ""
folder = ""
"""

COMMON = """
import time
from pathlib import Path
import numpy as np
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
server = ServerApp()

def clock(path):
    def note(round, arrays):
        with open(path, "a") as file:
            file.write(f"{round} {time.time()}\\n")
    return note
"""

FLOWER_APP = (
    COMMON
    + """
from types import SimpleNamespace
from flwr.serverapp.strategy import FedAvg
from flwr.superlink.grid import http_grid

client = ClientApp()

@client.train()
def train(message, context):
    arrays = message.content["arrays"]
    theta = arrays["theta"].numpy()
    moved = theta - 0.1 * (1e-3 * (context.node_config["partition-id"] + 1) + 0.01 * theta)
    metrics = MetricRecord({"num-examples": 10})
    return Message(RecordDict({"arrays": ArrayRecord({"theta": Array(moved)}), "m": metrics}), reply_to=message)

@server.main()
def main(grid, context):
    config = context.run_config
    if config["folder"] == "":
        http_grid.time = SimpleNamespace(sleep=lambda s: time.sleep(min(s, 0.25)), time=time.time)
    strategy = FedAvg(fraction_evaluate=0.0, min_available_nodes=config["nodes"], min_train_nodes=config["nodes"])
    arrays = ArrayRecord({"theta": Array(np.zeros(config["dim"]))})
    strategy.start(grid, arrays, num_rounds=config["rounds"], evaluate_fn=clock(config["times"]))
"""
)

OUR_APP = (
    COMMON
    + """
from contextlib import contextmanager
from fedscaffold import Scaffold, flower

class Trivial:
    n_rows = 1000

    def __init__(self, dim):
        self.dim = dim

    @contextmanager
    def open(self, batches, *, seed, client):
        def local_sgd(theta, correction, *, step_size, **rest):
            return theta[:, None, :] - step_size * (1e-3 * (client + 1) + 0.01 * theta[:, None, :] + correction)
        yield local_sgd

client = flower.client_app(lambda context: Trivial(context.run_config["dim"]))

@server.main()
def main(grid, context):
    config = context.run_config
    strategy = flower.Strategy(
        Scaffold(step_size=0.1, local_steps=1), n_clients=config["nodes"], folder=config["folder"]
    )
    arrays = ArrayRecord({"theta": Array(np.zeros(config["dim"]))})
    strategy.start(grid, arrays, num_rounds=config["rounds"], evaluate_fn=clock(config["times"]))
"""
)


class Trivial:
    """One step on a quadratic, for any number of parameters."""

    n_rows = 10

    def __init__(self, dim: int) -> None:
        self.dim = dim

    @contextmanager
    def open(self, batches: Batches, *, seed: int, client: int) -> Iterator[LocalSgd]:
        """One step, whose cost is negligible."""

        def local_sgd(theta: Array, correction: Array, *, step_size: float, **rest: Any) -> Array:
            return theta[:, None, :] - step_size * (1e-3 * (client + 1) + 0.01 * theta[:, None, :] + correction)

        yield local_sgd


def measure(
    folder: Path, *, dim: int, nodes: int, rounds: int, turns: int
) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """Seconds and processor seconds of each round but every turn's first, by strategy."""
    for name, text in (("plain", FLOWER_APP), ("ours", OUR_APP)):
        (folder / name).mkdir()
        (folder / name / "pyproject.toml").write_text(PYPROJECT.format(name=name))
        (folder / name / f"{name}.py").write_text(text)
    configs: list[dict[str, str | int]] = [
        {"partition-id": k, "state-dir": str(folder / f"state-{k}")} for k in range(nodes)
    ]
    clock: dict[str, list[float]] = {who: [] for who in (SLOW, FLOWER, OURS)}
    processor: dict[str, list[float]] = {who: [] for who in clock}
    with Loopback(folder / "flower", configs, secure=False) as loopback:
        for turn in range(turns):
            for who, app in ((SLOW, "plain"), (FLOWER, "plain"), (OURS, "ours")):
                times = folder / f"{turn}-{app}-{len(clock[who])}-{who == SLOW}.times"
                server = "" if who == FLOWER else str(folder / f"server-{turn}")
                process = loopback.run(
                    folder / app,
                    {"dim": dim, "nodes": nodes, "rounds": rounds, "times": str(times), "folder": server},
                )
                used: list[float] = []
                while process.poll() is None:
                    used += [loopback.processor_seconds()] * (len(read(times)) - len(used))
                    time.sleep(0.1)
                output, _ = process.communicate()
                seen = read(times)
                if len(seen) != rounds + 1:
                    raise RuntimeError(f"{who} ended early:\n{output}")
                clock[who] += np.diff(seen)[1:].tolist()
                processor[who] += np.diff(used)[1:].tolist()
    return clock, processor


def read(times: Path) -> list[float]:
    """When the server started, and when each round was closed so far."""
    return [float(line.split()[1]) for line in times.read_text().splitlines()] if times.exists() else []


IMPORTS = """
import time
import numpy
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
began = time.process_time()
from fedscaffold import Scaffold, flower
flower.client_app, Scaffold(step_size=0.1, local_steps=1)
print(time.process_time() - began)
"""


def import_cost(turns: int = 5) -> float:
    """Processor seconds for which a client's process imports our modules, after Flower's own; the best of some."""
    found = [
        subprocess.run([sys.executable, "-c", IMPORTS], capture_output=True, text=True, check=True).stdout
        for _ in range(turns)
    ]
    return min(map(float, found))


def own_cost(folder: Path, *, dim: int, nodes: int, rounds: int = 5) -> dict[str, float]:
    """Processor seconds of one round without Flower: all clients' files, the server's files, sums and checks."""
    config = RunConfig(name="own", method=METHOD, n_clients=nodes, dim=dim)
    alike, unknown = np.full(nodes, 1.0 / nodes), np.zeros(nodes, dtype=np.int64)
    work, policy = Trivial(dim), SitePolicy.for_simulation()
    clients, servers = [], []
    with open_session(folder / "server", config, np.zeros(dim), rules=RoundRules(), rounds=rounds) as session:
        session.begin(lambda: (alike, unknown))
        for _ in range(rounds):
            spent: list[float] = []

            def send(requests: Sequence[TrainRequest], spent: list[float] = spent) -> list[Reply]:
                replies: list[Reply] = []
                for request in requests:
                    began = time.process_time()
                    replies.append(handle_request(request, work, folder / f"own-{request.client}", policy))
                    spent.append(time.process_time() - began)
                return replies

            began = time.process_time()
            session.run_round(send)
            servers.append(time.process_time() - began - sum(spent))
            clients.append(sum(spent))
    return {"clients": float(np.median(clients)), "server": float(np.median(servers))}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a smaller model and fewer rounds")
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args()
    dim, rounds, turns = (10_000, 3, 1) if options.quick else (1_000_000, 6, options.turns)
    with tempfile.TemporaryDirectory(prefix="fedscaffold-bench-") as name:
        own = own_cost(Path(name), dim=dim, nodes=options.nodes)
        clock, processor = measure(Path(name), dim=dim, nodes=options.nodes, rounds=rounds, turns=turns)
    seconds = {who: float(np.median(each)) for who, each in clock.items()}
    used = {who: float(np.median(each)) for who, each in processor.items()}
    shown = Table(title=f"{options.nodes} nodes, {dim:,} parameters in float64")
    for column in ("", "seconds", "to FedAvg", "processor", "to FedAvg "):
        shown.add_column(column, justify="left" if column == "" else "right")
    for who in clock:
        relative = (f"{values[who] / values[FLOWER] - 1:+.1%}" for values in (seconds, used))
        shown.add_row(who, f"{seconds[who]:.2f}", next(relative), f"{used[who]:.2f}", next(relative))
    own["imports"] = options.nodes * import_cost()
    own["all"] = sum(own.values())
    for part, spent in own.items():
        shown.add_row(f"our share, {part}", "", "", f"{spent:.2f}", f"{spent / used[FLOWER]:.1%}")
    Console().print(shown)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    about = {"dim": dim, "nodes": options.nodes, "versions": provenance.versions(), "own": own}
    with replacing(options.out) as temporary:
        temporary.write_text(json.dumps({**about, "clock": clock, "processor": processor}, indent=1))


if __name__ == "__main__":
    main()
