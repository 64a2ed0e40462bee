"""The compiled kernel reads and writes nothing outside the arrays that it is given."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from fedscaffold.engines.native import library

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="guard pages and sanitisers as on Linux")
ROOT = Path(__file__).parents[2]


def guarded_runs(seed: int, count: int, folder: Path = library.FOLDER, **environment: str) -> None:
    command = [sys.executable, "-m", "tests.attacks.guarded_runs", str(seed), str(count), str(folder)]
    done = subprocess.run(command, cwd=ROOT, env={**os.environ, **environment}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]


def test_pages_beside_arrays_are_never_touched() -> None:
    guarded_runs(0, 40)


def test_the_guard_is_seen() -> None:
    """A call that claims one client more than the arrays have ends the process."""
    code = (
        "import numpy as np, fedscaffold as fs\n"
        "from tests.attacks.guarded_runs import guard_all_arrays\n"
        "guard_all_arrays()\n"
        "from fedscaffold.engines.native import library\n"
        "right = library.run_clients\n"
        "library.run_clients = lambda job, first, last, **o: right(job, first, last + 600, **o)\n"
        "fs.run(fs.problems.Ridge(np.ones((3, 5, 4)), np.ones((3, 5))), fs.FedAvg(step_size=0.1, local_steps=2),\n"
        "       rounds=1, batch_size=2, record=())\n"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True).returncode < 0


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("gcc") is None, reason="there is no gcc")
def test_sanitisers_find_nothing(tmp_path: Path) -> None:
    """AddressSanitizer and UBSan over random shapes, on every instruction set."""
    sys.path.insert(0, str(ROOT))
    import hatch_build

    flags = ["-g", "-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer"]
    hatch_build.FLAGS[:] = [flag for flag in hatch_build.FLAGS if flag != "-O3"] + flags
    hatch_build.compile_library(tmp_path / hatch_build.LIBRARY)
    runtime = [
        subprocess.run(
            ["gcc", f"-print-file-name={name}"], capture_output=True, text=True, check=True
        ).stdout.strip()
        for name in ("libasan.so", "libubsan.so")
    ]
    guarded_runs(1, 300, tmp_path, LD_PRELOAD=" ".join(runtime), ASAN_OPTIONS="detect_leaks=0")
