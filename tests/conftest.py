"""Settings that all tests share."""

import os
import signal
from importlib.util import find_spec
from pathlib import Path

import pytest
from hypothesis import settings

if "PYTEST_XDIST_WORKER" in os.environ:  # several processes share the cores already
    os.environ |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}

# `nohup make test &` starts processes that ignore SIGINT, and a process that the tests start inherits that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

settings.register_profile("fixed", deadline=None, derandomize=True, database=None)
settings.load_profile("fixed")


SOURCE = Path(__file__).parents[1] / "src" / "fedscaffold"


def pytest_configure() -> None:
    """End at once if the tests would not see this source: another checkout's, or a library compiled before it."""
    found = find_spec("fedscaffold")
    if found is None or found.origin is None or Path(found.origin).parent.resolve() != SOURCE.resolve():
        raise pytest.UsageError(f"fedscaffold is imported from {found and found.origin}, not from {SOURCE}")
    folder = SOURCE / "engines" / "native"
    built = [path.stat().st_mtime for path in folder.glob("kernel.native.*")]
    source = max(path.stat().st_mtime for path in folder.iterdir() if path.suffix in (".c", ".cpp", ".h"))
    if built and max(built) < source:
        raise pytest.UsageError("the compiled library is older than its source; run `make native`")
