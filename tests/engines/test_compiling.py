"""Where kernels are kept when neither the package nor the home can be written; and a Ray that does not start."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import fedscaffold as fs
from fedscaffold.core.errors import EngineFailed

CODE = """
import numba
from numba.core import caching

def refuse(self):
    raise OSError("read-only")

for name in ("InTreeCacheLocator", "UserWideCacheLocator"):  # as in a container without a home, also for root
    locator = getattr(caching, name, None) or getattr(caching, "_" + name)
    locator.ensure_cache_path = refuse
from fedscaffold.engines.numba_ import compiling, kernels, streams
print(numba.config.CACHE_DIR, hasattr(kernels.words, "stats") and type(kernels.words._cache).__name__)
"""


def imported(folder: Path) -> list[str]:
    environment = {**os.environ, "TMPDIR": str(folder)}
    environment.pop("NUMBA_CACHE_DIR", None)
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


@pytest.mark.skipif(not hasattr(os, "getuid"), reason="users have numbers elsewhere")
def test_kernels_go_to_a_folder_of_this_user_or_nowhere(tmp_path: Path) -> None:
    own = tmp_path / f"fedscaffold-kernels-{os.getuid()}"
    assert imported(tmp_path) == [str(own), "FunctionCache"]
    assert own.stat().st_mode & 0o777 == 0o700
    own.chmod(0o777)  # as if somebody else had made it: what it holds may not be ours
    assert imported(tmp_path)[-1] == "NullCache"


def test_a_ray_that_does_not_start_is_one_sentence() -> None:
    class Broken:
        @staticmethod
        def init(**options: Any) -> None:
            raise Exception("The current node timed out\nduring startup")

    with pytest.raises(EngineFailed, match=r"^Ray did not start at the address 'x:5': The current node timed out"):
        fs.engines.Ray(address="x:5")._start(Broken)
