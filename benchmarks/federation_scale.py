"""What a round of a federation costs besides local steps and transport, by the number of clients.

`python -m benchmarks.federation_scale [--quick]`. All clients and the server in one process, at 100 parameters:
messages are packed and validated on both ways, clients keep their states on disk, the server checks lengths and
client states, keeps its backup and a checkpoint. Local steps are one addition. Processor time per client and
round, of the second round. Files are in memory where the system has a folder for that, since what a file system
takes to make a file varies tenfold; what it takes on this machine's disk is a figure by itself: `disk_ms` for the
same four files of a client without anything else. Files are written, but not flushed to the disk, for which
thousands of clients would not wait one after the other.
"""

import os
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
from benchmarks import measured
from fedscaffold.core.protocols import LocalSgd
from fedscaffold.core.random.stream import Batches
from fedscaffold.core.types import Array
from fedscaffold.federation import RoundRules, RunConfig, SitePolicy, TrainRequest, handle_request
from fedscaffold.federation.messages import Reply, pack, unpack_reply, unpack_request
from fedscaffold.federation.server.session import open_session

DIM = 100
MEMORY = "/dev/shm"  # a folder in memory
METHOD = fs.Scaffold(step_size=0.1, local_steps=1)


class Trivial:
    """One step on a quadratic."""

    dim, n_rows = DIM, 1000

    @contextmanager
    def open(self, batches: Batches, *, seed: int, client: int) -> Iterator[LocalSgd]:
        """One step, whose cost is negligible."""

        def local_sgd(theta: Array, correction: Array, *, step_size: float, **rest: Any) -> Array:
            return theta[:, None, :] - step_size * (1e-3 * (client % 7) + 0.01 * theta[:, None, :] + correction)

        yield local_sgd


def measure(folder: Path, n_clients: int, *, rounds: int) -> dict[str, float]:
    """Processor milliseconds per client and round, at the server and at the client."""
    config = RunConfig(name="scale", method=METHOD, n_clients=n_clients, dim=DIM)
    alike, rows = np.full(n_clients, 1.0 / n_clients), np.full(n_clients, Trivial.n_rows)
    work, policy, spent = Trivial(), SitePolicy.for_simulation(), [0.0]

    def send(requests: Sequence[TrainRequest]) -> Iterator[Reply]:
        for request in requests:
            packed = pack(request)
            began = time.process_time()
            reply = pack(handle_request(unpack_request(packed), work, folder / "site", policy))
            spent[0] += time.process_time() - began
            yield unpack_reply(reply, request)

    servers, clients = [], []
    given: dict[str, Any] = {"rules": RoundRules(), "rounds": rounds}
    with open_session(folder / "server", config, np.zeros(DIM), **given) as session:
        session.begin(lambda: (alike, rows))
        for _ in range(rounds):
            spent[0], began = 0.0, time.process_time()
            session.run_round(send)
            servers.append((time.process_time() - began - spent[0]) / n_clients * 1e3)
            clients.append(spent[0] / n_clients * 1e3)
    return {"server_ms": servers[-1], "client_ms": clients[-1]}


def file_calls(folder: Path, n_clients: int) -> float:
    """Processor milliseconds that the system takes per client for a state file, a lock, a read and a log line."""
    began = time.process_time()
    for client in range(n_clients):
        name = folder / f"client-{client:05d}"
        with open(name.with_suffix(".new"), "xb") as file:
            file.write(bytes(8 * 4 * DIM))
        name.with_suffix(".new").replace(name)
        for mode, path in (("ab", name.with_suffix(".lock")), ("rb", name), ("ab", folder / "audit")):
            with open(path, mode) as file:
                _ = file.read() if mode == "rb" else file.write(b" ")
    return (time.process_time() - began) / n_clients * 1e3


def main() -> None:
    """Print and save the table."""
    options = measured.parser(__doc__).parse_args()
    os.fsync = lambda handle: None  # type: ignore[assignment]
    found = {}
    memory = MEMORY if os.access(MEMORY, os.W_OK) else None
    for n_clients in (100, 300) if options.quick else (100, 1_000, 10_000):
        with tempfile.TemporaryDirectory(prefix="fedscaffold-bench-", dir=memory) as name:
            found[f"n{n_clients}"] = measure(Path(name), n_clients, rounds=2)
        with tempfile.TemporaryDirectory(prefix="fedscaffold-bench-") as name:
            found[f"n{n_clients}"]["disk_ms"] = file_calls(Path(name), n_clients)
    columns = ("server_ms", "client_ms", "disk_ms")
    table = Table("clients", *columns, title="processor time per client and round, d = 100")
    for name, spent in found.items():
        table.add_row(name[1:], *(f"{spent[column]:.3f}" for column in columns))
    Console().print(table)
    measured.save("federation_scale", found, options)


if __name__ == "__main__":
    main()
