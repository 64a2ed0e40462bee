"""How much memory there is, by whoever limits it most."""

import subprocess
import sys
from pathlib import Path

import pytest

from fedscaffold.core import memory_limit as memory


def test_the_smallest_limit_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "max").write_text("max\n")
    (tmp_path / "few").write_text("123456\n")
    usual = memory.memory_limit()
    assert usual is None or usual > 2**20
    monkeypatch.setattr(memory, "LIMITS", (str(tmp_path / "max"), str(tmp_path / "none")))
    monkeypatch.setattr(memory, "_machine", lambda: None)
    monkeypatch.setattr(memory, "_process", lambda: None)
    assert memory.memory_limit() is None
    monkeypatch.setattr(memory, "LIMITS", (str(tmp_path / "max"), str(tmp_path / "few")))
    assert memory.memory_limit() == 123456


@pytest.mark.skipif(sys.platform != "linux", reason="needs RLIMIT_DATA that counts")
def test_a_limit_of_the_process() -> None:
    code = (
        "import resource; resource.setrlimit(resource.RLIMIT_DATA, (2**30, 2**30)); "
        "from fedscaffold.core.memory_limit import memory_limit; print(memory_limit())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(done.stdout) <= 2**30
