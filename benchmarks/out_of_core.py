"""A table of three times a memory limit, read from its file in every round, against the same table in memory.

    python -m benchmarks.out_of_core --limit-mib 1024 --folder /somewhere/with/room

Clients of 200 records × 20 features, scattered over a Parquet file in random order. One process converts the file and
runs Scaffold on the memory-mapped numbers, under RLIMIT_DATA, which counts memory that is not a file's; its peak
resident memory, which counts the file's pages too, is reported. Another holds the table in memory. "cold" drops the
file from the system's cache before every round, as if nothing of it could stay in memory; "warm" leaves it there.
"""

import argparse
import json
import os
import re
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import parquet

import fedscaffold as fs
from fedscaffold.problems.convert import convert  # noqa: F401  (imported before memory is measured)

RECORDS, FEATURES, BATCH, ROUNDS = 200, 20, 10, 4
STATUS = Path("/proc/self/status")
BLOCK = 200_000


def write(path: Path, *, clients: int, seed: int = 0) -> None:
    """Rows of all clients in random order."""
    rng = np.random.default_rng(seed)
    owner = np.repeat(np.arange(clients, dtype=np.int32), RECORDS)
    rng.shuffle(owner)
    theta = rng.normal(size=FEATURES)
    names = [*(f"x{j}" for j in range(FEATURES)), "y", "client"]
    schema = pa.schema([*((name, pa.float64()) for name in names[:-1]), ("client", pa.int32())])
    with parquet.ParquetWriter(path, schema, compression="none", use_dictionary=False) as writer:
        for begin in range(0, owner.size, BLOCK):
            c = owner[begin : begin + BLOCK]
            x = rng.normal(size=(c.size, FEATURES))
            y = x @ theta + 0.1 * (c % 7) * x[:, 0] + rng.normal(size=c.size)
            writer.write_table(pa.table([*x.T.copy(), y, c], schema=schema))


def memory(name: str) -> int:
    """Bytes of this process, by the name that Linux gives them."""
    found = re.search(rf"{name}:\s+(\d+) kB", STATUS.read_text())
    assert found is not None
    return 1024 * int(found[1])


def drop(folder: Path) -> None:
    """Take the records out of the system's cache."""
    for file in folder.glob("*.npy"):
        handle = os.open(file, os.O_RDONLY)
        os.fsync(handle)
        os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(handle)


def nanoseconds(problem: Any, local_steps: int, before_round: Callable[[], None], rounds: int = ROUNDS) -> float:
    """Per client and local step: the median over rounds after the first."""
    times: list[float] = []
    started = time.perf_counter()

    def tell(done: int, rounds: int) -> None:
        nonlocal started
        times.append(time.perf_counter() - started)
        before_round()
        started = time.perf_counter()

    method = fs.Scaffold(step_size=0.01, local_steps=local_steps)
    fs.run(problem, method, rounds=rounds, batch_size=BATCH, record=("average",), progress=tell)
    return 1e9 * float(np.median(times[2:])) / (problem.n_clients * local_steps)


def measure(file: Path, folder: Path, *, limit: int | None, local_steps: list[int]) -> dict[str, Any]:
    """In this process: the figures of a table in `folder` under a limit, or of one in memory without."""
    options: dict[str, Any] = {"target": "y", "client": "client", "l2": 0.01}
    found: dict[str, Any] = {}
    if limit is not None:
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    started = time.perf_counter()
    problem = fs.problems.from_parquet(file, records=None if limit is None else folder, **options)
    found["seconds to open"] = time.perf_counter() - started
    found["peak resident, MiB, when open"] = memory("VmHWM") / 2**20
    nanoseconds(problem.subset(range(2)), 1, lambda: None)  # compiles
    for H in local_steps:
        if limit is not None:
            found[f"cold {H}"] = nanoseconds(problem, H, lambda: drop(folder))
        found[f"warm {H}"] = nanoseconds(problem, H, lambda: None)
    found["peak resident, MiB"] = memory("VmHWM") / 2**20
    found["private, MiB, at the end"] = memory("VmData") / 2**20
    return found


def child(*words: object) -> dict[str, Any]:
    """`measure` in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.out_of_core", *map(str, words)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return dict(json.loads(done.stdout.splitlines()[-1]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--limit-mib", type=int, default=1024)
    parser.add_argument("--local-steps", type=int, nargs="+", default=[10, 100, 1000])
    parser.add_argument("--child", choices=["file", "memory"], help=argparse.SUPPRESS)
    options = parser.parse_args()
    limit = options.limit_mib << 20
    file, folder = options.folder / "table.parquet", options.folder / "records"
    if options.child:
        given = limit if options.child == "file" else None
        print(json.dumps(measure(file, folder, limit=given, local_steps=options.local_steps)))
        return
    clients = 3 * limit // (8 * RECORDS * (FEATURES + 1)) + 1
    options.folder.mkdir(parents=True, exist_ok=True)
    write(file, clients=clients)
    words = ("--folder", options.folder, "--limit-mib", options.limit_mib, "--local-steps", *options.local_steps)
    mapped, held = child(*words, "--child", "file"), child(*words, "--child", "memory")
    print(f"{clients:,} clients, {clients * RECORDS:,} rows, limit {options.limit_mib} MiB")
    for name in ("seconds to open", "peak resident, MiB, when open", "peak resident, MiB"):
        print(f"{name:32} from the file {mapped[name]:8.1f}   in memory {held[name]:8.1f}")
    print("ns per client and step (ratio)   in memory      warm file           cold file")
    for H in options.local_steps:
        base = held[f"warm {H}"]
        cells = "".join(f"{mapped[f'{k} {H}']:10.0f} ({mapped[f'{k} {H}'] / base:.2f})" for k in ("warm", "cold"))
        print(f"H = {H:<27} {base:10.0f} {cells}")


if __name__ == "__main__":
    main()
