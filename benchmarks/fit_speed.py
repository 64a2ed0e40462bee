"""Time and memory of fits: `fedscaffold fit` on a large file, and `fedscaffold.fit` on two frames.

`python -m benchmarks.fit_speed [--quick]`. "big" is the table of `benchmarks.big_table`, fitted by the command in
another process. "loans" has 10,000 rows of 50 clients, 14 numbers and five categories, 69 coefficients in all;
"rows" has 327,346 rows of 200 clients and 17 coefficients. For these two the call is timed, with a pandas frame.
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
import pandas as pd
from rich.console import Console

import fedscaffold as fs
from benchmarks import big_table, measured

LEVELS = {
    "sub_grade": [f"{grade}{k}" for grade in "ABCDEFG" for k in range(1, 6)],
    "purpose": [f"purpose {k}" for k in range(13)],
    "employment": [f"{k} years" for k in range(5)],
    "home": ["mortgage", "other", "own", "rent"],
    "term": ["long", "short"],
}


def table(rows: int, clients: int, numbers: int, levels: dict[str, list[str]]) -> pd.DataFrame:
    """Return a table with two classes, standard normal numbers and categories."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(rows, numbers))
    frame = pd.DataFrame(x, columns=[f"x{j}" for j in range(numbers)])
    frame = frame.assign(**{name: rng.choice(values, rows) for name, values in levels.items()})
    late = rng.random(rows) < 1.0 / (1.0 + np.exp(1.5 - x[:, 0] + 0.5 * x[:, 1]))
    return frame.assign(outcome=np.where(late, "yes", "no"), client=rng.integers(clients, size=rows))


def call(frame: pd.DataFrame, turns: int) -> dict[str, Any]:
    """Return the least seconds of `fedscaffold.fit`, and its exchanges."""
    seconds = []
    for _ in range(turns):
        begin = time.perf_counter()
        found = fs.fit(frame, target="outcome", client="client")
        seconds.append(time.perf_counter() - begin)
    return {"seconds": min(seconds), "exchanges": found.rounds, "coefficients": found.theta.size}


def command(file: Path, target: str, client: str) -> dict[str, Any]:
    """Return time, memory and exchanges of one `fedscaffold fit`."""
    with tempfile.TemporaryDirectory() as folder:
        words = ["fit", str(file), "--target", target, "--client", client, "--out", f"{folder}/model"]
        code = "from fedscaffold.cli.main import main; main()"
        begin, output = time.perf_counter(), Path(folder, "output.txt")
        with output.open("w") as opened:
            process = subprocess.Popen(
                [sys.executable, "-c", code, *words], stdout=opened, stderr=subprocess.DEVNULL
            )
            _, status, used = os.wait4(process.pid, 0)
        seconds, text = time.perf_counter() - begin, output.read_text()
    process.returncode = os.waitstatus_to_exitcode(status)
    exchanges = re.search(r"After ([\d,]+) exchanges", text)
    if process.returncode or exchanges is None:
        raise RuntimeError(f"the fit failed: {text}")
    return {
        "seconds": seconds,
        "processor_seconds": used.ru_utime + used.ru_stime,
        "peak_gib": used.ru_maxrss / 2**20,
        "exchanges": int(exchanges.group(1).replace(",", "")),
    }


def main() -> None:
    """Print and save the figures."""
    parser = measured.parser(__doc__)
    parser.add_argument("--turns", type=int, default=3, help="calls on each frame, of which the fastest counts")
    options = parser.parse_args()
    share = 50 if options.quick else 1
    fs.fit(table(500, 3, 2, {}), target="outcome", client="client")  # loads what calls need
    figures: dict[str, Any] = {
        "loans": call(table(10_000 // share, 50 // share, 14, LEVELS), options.turns),
        "rows": call(table(327_346 // share, 200, 16, {}), options.turns),
    }
    with tempfile.TemporaryDirectory() as folder:
        big = Path(folder, "big.parquet")
        big_table.write(big, rows=1_000_000 // share, columns=50, clients=1000 // share, seed=0)
        figures["big"] = command(big, "y", "shop")
    Console().print(figures)
    measured.save("fit_speed", figures, options, note=f"Seconds of calls are the least of {options.turns}.")


if __name__ == "__main__":
    main()
