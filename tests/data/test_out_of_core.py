"""A table of three times a memory limit is converted, run and fitted under that limit.

The limit is RLIMIT_DATA, which refuses anonymous memory; pages of files do not count for it. Those are in the peak
of resident memory, which is measured too.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedscaffold as fs
from benchmarks.out_of_core import FEATURES, RECORDS, write

ROOT = Path(__file__).parents[2]
OPTIONS: dict[str, Any] = {"target": "y", "client": "client", "l2": 0.01}
METHOD = fs.Scaffold(step_size=0.01, local_steps=3)
ENGINE = fs.engines.Native(threads=2)

SCRIPT = """
import json, pathlib, resource, sys, threading
import fedscaffold as fs
from benchmarks.out_of_core import memory, write
from tests.data.test_out_of_core import OPTIONS, work

threading.stack_size(1 << 20)  # what threads reserve counts as well
folder, limit, fitted = pathlib.Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3] == "fit"
small = f"small {sys.argv[3]}"
write(folder / f"{small}.parquet", clients=20)
work(folder / f"{small}.parquet", folder / small, fitted)  # loads and compiles all there is
pathlib.Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
resident, private = memory("VmRSS"), memory("VmData")
resource.setrlimit(resource.RLIMIT_DATA, (private + limit, private + limit))
refused = ""
try:
    fs.data.from_file(folder / "t.parquet", **OPTIONS)
except fs.InvalidInput as error:
    refused = str(error)
theta = work(folder / "t.parquet", folder / f"records {sys.argv[3]}", fitted)
print(json.dumps({"refused": refused, "theta": theta, "grown": memory("VmHWM") - resident}))
"""


def work(file: Path, cache_dir: Path | None, fitted: bool) -> list[float]:
    """What is done under the limit: a run, which finds the optimum too, or fits by both trainers."""
    if not fitted:
        problem = fs.data.from_file(file, cache_dir=cache_dir, **OPTIONS)
        trace = fs.run(problem, METHOD, rounds=2, batch_size=10, engine=ENGINE, record=("mse", "loss"))
        return [*trace.theta[0].tolist(), float(trace.mse[0, -1]), float(trace.loss[0, -1])]
    problem = fs.data.open_problem(file, target="y", client="client", cache_dir=cache_dir)
    found = fs.models.fit(problem)
    scaffold = fs.models.fit(problem, settings=fs.models.FitSettings(trainer="scaffold", max_exchanges=8))
    return [*found.theta.tolist(), *scaffold.theta.tolist(), *found.summary("cluster").se.tolist()]


def under(limit: int, folder: Path, what: str) -> dict[str, Any]:
    """The script's answer, on a table of three times the limit, for which memory is refused."""
    records = RECORDS if what == "run" else 10 * RECORDS  # a plan holds some matrices for each client
    clients = 3 * limit // (8 * records * (FEATURES + 1)) + 1
    write(folder / "t.parquet", clients=clients, records=records)
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(folder), str(limit), what],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert "pass cache_dir=... to keep its numbers in files" in found["refused"]
    return dict(found)


LARGE = 96 << 20
linux = pytest.mark.skipif(sys.platform != "linux", reason="needs Linux's account of a process's memory")


@pytest.mark.slow
@linux
def test_a_run(tmp_path: Path) -> None:
    assert under(56 << 20, tmp_path, "run")["grown"] < 56 << 20


@linux
@pytest.mark.slow
def test_a_run_and_a_fit_of_a_large_table(tmp_path: Path) -> None:
    for what in ("run", "fit"):
        found = under(LARGE, tmp_path, what)
        expected = work(tmp_path / "t.parquet", None, what == "fit")
        if what == "run":
            assert found["theta"] == expected
        np.testing.assert_allclose(found["theta"], expected, rtol=1e-9)
        assert found["grown"] < LARGE
