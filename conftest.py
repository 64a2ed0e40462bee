"""Files whose docstrings are not tested; any other file of the source that cannot be imported is an error."""

from importlib.util import find_spec
from pathlib import Path

ADAPTERS = Path(__file__).parent / "src" / "fedscaffold" / "conformance" / "adapters"

# they import libraries that need environments of their own
collect_ignore = [str(file) for file in ADAPTERS.glob("*.py") if file.stem not in ("__init__", "environment")]
if find_spec("torch") is None:
    collect_ignore += [f"src/fedscaffold/{name}.py" for name in ("flower/torch", "problems/torch_autodiff")]
    collect_ignore.append("src/fedscaffold/problems/torch_problem.py")  # whose example needs it
