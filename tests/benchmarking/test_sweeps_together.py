"""Sweeps that write to one file at the same time lose no rows."""

import subprocess
import sys
from pathlib import Path

import pandas as pd

CODE = """
import sys
from pathlib import Path
import fedscaffold as fs
from fedscaffold.benchmarking import Family, Sweep, sweep
from fedscaffold.benchmarking.sweeps import loop
loop.SECONDS_UNSAVED = 0.0  # every row is written at once
methods = [fs.FedAvg(step_size=0.01 * k, local_steps=1) for k in range(1, 8)]
family = Family(name="ridge-stream", settings={"dim": 2})
grid = Sweep(family=family, clients=(int(sys.argv[2]),), methods=methods, rounds=2)
sweep(grid, out=Path(sys.argv[1]), engine="reference", progress=False)
"""


def test_rows_of_all_are_kept(tmp_path: Path) -> None:
    file = tmp_path / "sweep.parquet"
    running = [subprocess.Popen([sys.executable, "-c", CODE, str(file), str(n)]) for n in (2, 3)]
    assert [process.wait() for process in running] == [0, 0]
    found = pd.read_parquet(file)
    assert sorted(found["n_clients"]) == [2] * 7 + [3] * 7
