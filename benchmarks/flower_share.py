"""Our own share of what a Flower client's process does for one message.

`python -m benchmarks.flower_share [--turns 7]`. Flower starts a process for every message. Taken is the processor
time that such a process spends in this library, after Flower's own imports: importing, making the problem from
arrays, and the answer to a request for local steps, with kernels that were compiled before. The best of some
turns.
"""

import json
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

import fedscaffold as fs
from benchmarks import measured
from fedscaffold.federation import RoundRules, RunConfig, TrainRequest
from fedscaffold.federation.messages import Reply
from fedscaffold.federation.server.session import open_session

DIM, LOCAL_STEPS = 20, 10
KINDS = ("Ridge", "Logistic")

CLIENT = """
import json, pickle, sys, time
began = time.process_time()
import numpy as np
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
spent = {"flower_ms": time.process_time() - began}

def part(name):
    global began
    spent[name] = time.process_time() - began
    began = time.process_time()

kind, request, folder = sys.argv[1:]
rng = np.random.default_rng(0)
X = rng.normal(size=(1, 500, 20))
y = (X[:, :, 0] > 0).astype(float)
began = time.process_time()
from fedscaffold import flower
flower.client_app
part("imports_ms")
import fedscaffold as fs
task = flower.ProblemTask(getattr(fs.problems, kind)(X, y, l2=0.1))
part("problem_ms")
from fedscaffold.federation import SitePolicy, handle_request
with open(request, "rb") as file:
    handle_request(pickle.load(file), task, folder, SitePolicy.for_simulation())
part("answer_ms")
print(json.dumps({name: 1e3 * seconds for name, seconds in spent.items()}))
"""


class Asked(Exception):
    """The server has made its request."""


def first_request(folder: Path) -> bytes:
    """What a server sends to its only client in the first round."""
    found: list[bytes] = []

    def send(requests: Sequence[TrainRequest]) -> list[Reply]:
        found.append(pickle.dumps(requests[0]))
        raise Asked

    method = fs.Scaffold(step_size=0.1, local_steps=LOCAL_STEPS)
    config = RunConfig(name="share", method=method, n_clients=1, dim=DIM)
    with open_session(folder, config, np.zeros(DIM), rules=RoundRules(), rounds=1) as session:
        session.begin(lambda: (np.ones(1), np.full(1, 500)))
        with suppress(Asked):
            session.run_round(send)
    return found[0]


def message(kind: str, request: Path, folder: Path) -> dict[str, float]:
    """Milliseconds of processor time of each part, in a new process."""
    command = [sys.executable, "-c", CLIENT, kind, str(request), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    spent: dict[str, float] = json.loads(done.stdout)
    return {**spent, "ours_ms": sum(spent.values()) - spent["flower_ms"]}


def measure(turns: int) -> dict[str, dict[str, float]]:
    """The best of each part, by the kind of problem; a turn before the others compiles what is missing."""
    found: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory(prefix="fedscaffold-bench-") as name:
        request = Path(name) / "request"
        request.write_bytes(first_request(Path(name) / "server"))
        for turn in range(turns + 1):
            for kind in KINDS:
                spent = message(kind, request, Path(name) / f"{kind}-{turn}")
                best = found.get(kind.lower(), spent) if turn > 1 else spent
                found[kind.lower()] = {part: min(best[part], spent[part]) for part in spent}
    return found


def main() -> None:
    """Print and save the table."""
    parser = measured.parser(__doc__)
    parser.add_argument("--turns", type=int, default=7)
    options = parser.parse_args()
    found: Any = measure(1 if options.quick else options.turns)
    table = Table("", *next(iter(found.values())))
    for kind, spent in found.items():
        table.add_row(kind, *(f"{each:.1f}" for each in spent.values()))
    Console().print(table)
    note = (
        "Milliseconds of processor time that a Flower client's process spends on one message: Flower's imports, "
        f"and ours, with 500 records of {DIM} features, {LOCAL_STEPS} local steps and kept kernels."
    )
    measured.save("flower_share", found, options, note=note)


if __name__ == "__main__":
    main()
