"""Names of Flower that it does not promise to keep: in one file, and tested against the newest release."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PUBLIC = {"flwr.app", "flwr.clientapp", "flwr.serverapp", "flwr.serverapp.strategy"}


def test_one_file_has_all_names_that_flower_does_not_promise_to_keep() -> None:
    using = {
        path.name
        for path in (ROOT / "src" / "fedscaffold" / "flower").rglob("*.py")
        if set(re.findall(r"^\s*(?:from|import) (flwr[\w.]*)", path.read_text(), re.M)) - PUBLIC
    }
    assert using == {"fleet.py"}


@pytest.mark.slow
def test_the_newest_release_has_them_all(tmp_path: Path) -> None:
    """Strategy, node and fleet on the newest Flower of the index, whatever the upper bound of the extra is."""
    install = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--target",
        str(tmp_path / "newest"),
    ]
    if subprocess.run([*install, "flwr"], check=False, capture_output=True).returncode != 0:
        pytest.skip("there is no index of packages here")
    paths = (tmp_path / "newest", ROOT / "src", ROOT)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths))}
    found = subprocess.run(
        [sys.executable, "-c", "import flwr; print(flwr.__file__)"],
        env=environment,
        capture_output=True,
        check=True,
    )
    assert str(tmp_path) in found.stdout.decode()
    tests = [f"tests/flower/{name}" for name in ("test_strategy.py", "test_security.py", "study/test_fleet.py")]
    subprocess.run(
        [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-m", "not slow", *tests],
        cwd=ROOT, env=environment, check=True,
    )  # fmt: skip
