"""Settings that all tests share."""

import hashlib
import os
import signal
import tempfile
from pathlib import Path

from hypothesis import settings

# Numba's cache looks at one file's date, not at the files that it takes functions from, so a change in one of
# them would leave the old machine code in use. One cache for each state of the sources.
_SOURCES = sorted((Path(__file__).parents[1] / "src" / "fedscaffold" / "engines").rglob("*.py"))
_STATE = hashlib.sha256(b"".join(source.read_bytes() for source in _SOURCES)).hexdigest()[:16]
os.environ["NUMBA_CACHE_DIR"] = str(Path(tempfile.gettempdir()) / f"fedscaffold-tests-{_STATE}")

if "PYTEST_XDIST_WORKER" in os.environ:  # several processes share the cores already
    os.environ |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}

# `nohup make test &` starts processes that ignore SIGINT, and a process that the tests start inherits that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

settings.register_profile("fixed", deadline=None, derandomize=True, database=None)
settings.load_profile("fixed")
