"""Files whose docstrings are not tested; any other file of the source that cannot be imported is an error."""

from importlib.util import find_spec
from pathlib import Path

ADAPTERS = Path(__file__).parent / "src" / "fedscaffold" / "conformance" / "adapters"

# they import libraries that need environments of their own
collect_ignore = [str(file) for file in ADAPTERS.glob("*.py") if file.stem not in ("__init__", "environment")]
if find_spec("torch") is None:
    collect_ignore.append("src/fedscaffold/flower/torch.py")
