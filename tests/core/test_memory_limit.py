"""How much memory there is, by whoever limits it most."""

import subprocess
import sys
from pathlib import Path

import pytest

from fedscaffold.core.machine import memory_limit


def test_the_smallest_limit_counts(tmp_path: Path) -> None:
    unlimited, little = tmp_path / "max", tmp_path / "little"
    unlimited.write_text("max\n")
    little.write_text("123456\n")
    usual = memory_limit([str(unlimited), str(tmp_path / "missing")])
    assert usual is None or usual > 2**20
    assert memory_limit([str(unlimited), str(little)]) == 123456


@pytest.mark.skipif(sys.platform != "linux", reason="needs RLIMIT_DATA that counts")
def test_a_limit_of_the_process() -> None:
    code = (
        "import resource; resource.setrlimit(resource.RLIMIT_DATA, (2**30, 2**30)); "
        "from fedscaffold.core.machine import memory_limit; print(memory_limit())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(done.stdout) <= 2**30
