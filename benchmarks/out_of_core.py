"""A table of three times a memory limit, read from its file in every round, against the same table in memory.

    python -m benchmarks.out_of_core --limit-mib 1024 --folder /somewhere/with/room

Clients of 200 records × 20 features, scattered over a Parquet file in random order. A first process converts the
file and runs Scaffold on the memory-mapped numbers under RLIMIT_DATA, which counts memory that is not a file's.
Its peak of resident memory, which counts the file's pages too, is reported. A second one, without a limit, takes
the times: rounds in memory and from the file alternate, since other programs may disturb either, and the best of
each counts. "dropped" takes the file out of the system's cache before every round, as if nothing of it could stay
in memory.
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
from benchmarks import measured

RECORDS, FEATURES, BATCH = 200, 20, 10
OPTIONS: dict[str, Any] = {"target": "y", "client": "client", "l2": 0.01}
STATUS = Path("/proc/self/status")
BLOCK = 200_000


def write(path: Path, *, clients: int, records: int = RECORDS, seed: int = 0) -> None:
    """Rows of all clients in random order."""
    rng = np.random.default_rng(seed)
    owner = np.repeat(np.arange(clients, dtype=np.int32), records)
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


def nanoseconds(problem: Any, local_steps: int, before_round: Callable[[], None]) -> float:
    """Per client and local step, the better of two rounds."""
    times: list[float] = []
    started = time.perf_counter()

    def note_time(done: int, rounds: int) -> None:
        nonlocal started
        times.append(time.perf_counter() - started)
        before_round()
        started = time.perf_counter()

    method = fs.Scaffold(step_size=0.01, local_steps=local_steps)
    fs.run(problem, method, rounds=2, batch_size=BATCH, record=("average",), progress=note_time)
    return 1e9 * min(times[1:]) / (problem.n_clients * local_steps)


def limited(file: Path, folder: Path, limit: int, local_steps: list[int]) -> dict[str, Any]:
    """In this process: convert the table and run on it under a limit."""
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    started = time.perf_counter()
    problem = fs.data.from_file(file, cache_dir=folder, **OPTIONS)
    found: dict[str, Any] = {"convert_seconds": time.perf_counter() - started}
    found["convert_peak_mib"] = memory("VmHWM") / 2**20
    for H in local_steps:
        nanoseconds(problem, H, lambda: drop(folder))
    found["run_peak_mib"] = memory("VmHWM") / 2**20
    found["table_mib"] = (problem.x.nbytes + problem.y.nbytes) / 2**20
    return found


def timed(file: Path, folder: Path, local_steps: list[int], repeats: int) -> dict[str, Any]:
    """In this process: nanoseconds in memory, from the file, and from the file when it is not in the cache."""
    held = fs.data.from_file(file, **OPTIONS)
    mapped = fs.data.from_file(file, cache_dir=folder, **OPTIONS)
    nanoseconds(held.subset(range(2)), 1, lambda: None)  # compiles
    found: dict[str, Any] = {}
    for H in local_steps:
        best = {"in_memory": np.inf, "cached": np.inf, "dropped": np.inf}
        for _ in range(repeats):
            nanoseconds(mapped, 1, lambda: None)  # brings the file into the cache
            for name, problem in (("cached", mapped), ("in_memory", held), ("dropped", mapped)):
                before = (lambda: drop(folder)) if name == "dropped" else (lambda: None)
                best[name] = min(best[name], nanoseconds(problem, H, before))
        found[f"h{H}"] = best
    return found


def child(*words: object) -> dict[str, Any]:
    """A measurement in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.out_of_core", *map(str, words)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return dict(json.loads(done.stdout.splitlines()[-1]))


def main() -> None:
    """Write the table, measure in child processes, print and save."""
    parser = measured.parser(__doc__)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--limit-mib", type=int, default=1024)
    parser.add_argument("--local-steps", type=int, nargs="+", default=[10, 100, 1000])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--child", choices=["limited", "timed"], help=argparse.SUPPRESS)
    options = parser.parse_args()
    limit = options.limit_mib << 20
    file, folder = options.folder / "table.parquet", options.folder / "records"
    if options.child == "limited":
        print(json.dumps(limited(file, folder, limit, options.local_steps)))
        return
    if options.child == "timed":
        print(json.dumps(timed(file, folder, options.local_steps, options.repeats)))
        return
    clients = 3 * limit // (8 * RECORDS * (FEATURES + 1)) + 1
    options.folder.mkdir(parents=True, exist_ok=True)
    write(file, clients=clients)
    words = ("--folder", options.folder, "--limit-mib", options.limit_mib, "--repeats", options.repeats)
    words = (*words, "--local-steps", *options.local_steps)
    print(f"{clients:,} clients, {clients * RECORDS:,} rows; limit {options.limit_mib} MiB")
    used = child(*words, "--child", "limited")
    for name, value in used.items():
        print(f"{name:34} {value:8.1f}")
    print("ns per client and step (ratio)   in memory      cached file        dropped file")
    times = child(*words, "--child", "timed")
    ratios = {}
    for H, best in times.items():
        ratios[H] = {name: best[name] / best["in_memory"] for name in ("cached", "dropped")}
        cells = "".join(f"{best[name]:10.0f} ({ratio:.2f})" for name, ratio in ratios[H].items())
        print(f"{H:<31} {best['in_memory']:10.0f} {cells}")
    figures = {
        "clients": clients,
        "limit_mib": options.limit_mib,
        "convert": {"seconds": used["convert_seconds"], "peak_mib": used["convert_peak_mib"]},
        "run": {"peak_mib": used["run_peak_mib"]},
        "ns_per_client_and_step": times,
        "times_in_memory": ratios,
    }
    note = f"{RECORDS} records × {FEATURES} features per client, batches of {BATCH}, all cores."
    measured.save("out_of_core", figures, options, note=note)


if __name__ == "__main__":
    main()
