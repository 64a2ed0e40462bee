"""Size of the source tree, and how many of its files one call goes through.

`python -m benchmarks.source_tree` counts lines (all, and those of code: without docstrings, comments and blank
lines) of each folder of the package, files per folder, and tests. Then it follows one `run` and one `fit` of a
problem that is made before, and one round of a federation in one process, each called once before so that imports
and compilation do not count: how many files of the package they touch, and how many calls go from one file to
another.
"""

import ast
import io
import json
import re
import subprocess
import sys
import tempfile
import tokenize
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

import fedscaffold as fs
from benchmarks import measured
from benchmarks.flower_overhead import own_cost

SOURCE = Path(fs.__file__).parent


LAYOUT = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}


def code_lines(source: str) -> int:
    """Number of lines that hold code: no blank lines, comments or docstrings."""
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    held = {line for t in tokens if t.type not in LAYOUT for line in range(t.start[0], t.end[0] + 1)}
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node) is not None:
            text = node.body[0]
            held -= set(range(text.lineno, (text.end_lineno or text.lineno) + 1))
    return len(held)


def lines_of_rooms() -> dict[str, dict[str, int]]:
    """Files, lines, and lines of code, of each folder of the package and of all of them."""
    found: dict[str, dict[str, int]] = {}
    for file in sorted(SOURCE.rglob("*.py")):
        parts = file.relative_to(SOURCE).parts
        source = file.read_text()
        for room in (parts[0] if len(parts) > 1 else "front", "all"):
            counts = found.setdefault(room, {"files": 0, "lines": 0, "lines_of_code": 0})
            counts["files"] += 1
            counts["lines"] += len(source.splitlines())
            counts["lines_of_code"] += code_lines(source)
    return found


def files_per_folder() -> dict[str, int]:
    """Number of Python files that are directly in each folder of the package, without `__init__.py`."""
    folders = [SOURCE, *(path for path in SOURCE.rglob("*") if path.is_dir() and path.name != "__pycache__")]
    counts = {
        str(folder.relative_to(SOURCE)): sum(file.name != "__init__.py" for file in folder.glob("*.py"))
        for folder in sorted(folders)
    }
    return {folder: count for folder, count in counts.items() if count}


def tests_collected() -> dict[str, int]:
    """Number of tests, and of those that are not marked slow."""
    called = [sys.executable, "-m", "pytest", "--collect-only", "-p", "no:cacheprovider", "-m", "not slow"]
    done = subprocess.run(called, cwd=measured.ROOT, capture_output=True, text=True, check=False)
    found = re.search(r"(?:(\d+)/)?(\d+) tests collected", done.stdout)
    if found is None:
        raise RuntimeError(f"pytest did not collect: {done.stdout[-500:]}{done.stderr[-500:]}")
    return {"all": int(found[2]), "not_slow": int(found[1] or found[2])}


def hops(call: Callable[[], Any]) -> dict[str, int]:
    """Files of the package that a call touches, calls between two of them, and all calls within the package.

    The caller of a function is the nearest function of the package that is waiting for it, whatever is in between.
    """
    call()
    prefix, files, counts = str(SOURCE), set[str](), {"between_files": 0, "all": 0}

    def watch(frame: FrameType, event: str, argument: Any) -> None:
        name = frame.f_code.co_filename
        if event != "call" or not name.startswith(prefix):
            return
        files.add(name)
        counts["all"] += 1
        caller = frame.f_back
        while caller is not None and not caller.f_code.co_filename.startswith(prefix):
            caller = caller.f_back
        counts["between_files"] += caller is not None and caller.f_code.co_filename != name

    sys.setprofile(watch)
    try:
        call()
    finally:
        sys.setprofile(None)
    return {"files": len(files), "calls_between_files": counts["between_files"], "calls": counts["all"]}


def cases(folder: Path) -> dict[str, Callable[[], Any]]:
    """Small calls to follow: three rounds of a run, a fit of a table, one round of a federation."""
    import pandas as pd

    from fedscaffold.models.fit import fit as fit_model

    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(4, 10, 3)), rng.normal(size=(4, 10))
    method = fs.Scaffold(step_size=0.01, local_steps=5)
    engine = fs.engines.Native(threads=1)
    columns = {"a": x[..., 0].ravel(), "b": x[..., 1].ravel(), "y": y.ravel(), "client": np.repeat(range(4), 10)}

    problem = fs.problems.Ridge(x, y, l2=0.1)
    table = fs.data.from_frame(pd.DataFrame(columns), target="y", client="client", l2=0.1)

    def run() -> Any:
        return fs.run(problem, method, rounds=3, batch_size=2, engine=engine, progress=False)

    def fit() -> Any:
        return fit_model(table)

    def federation_round() -> Any:
        with tempfile.TemporaryDirectory(dir=folder) as own:
            return own_cost(Path(own), dim=3, nodes=4, rounds=1)

    return {"run": run, "fit": fit, "federation_round": federation_round}


def main() -> None:
    """Print and save the tables."""
    options = measured.parser(__doc__).parse_args()
    rooms, folders = lines_of_rooms(), files_per_folder()
    largest = max(folders, key=lambda folder: folders[folder])
    with tempfile.TemporaryDirectory() as folder:
        followed = {name: hops(call) for name, call in cases(Path(folder)).items()}
    tests = {} if options.quick else tests_collected()
    table = Table("folder", "files", "lines", "lines of code")
    for room, counts in rooms.items():
        table.add_row(room, *(f"{count:,}" for count in counts.values()))
    Console().print(table)
    table = Table("call", "files touched", "calls between files", "calls")
    for name, counts in followed.items():
        table.add_row(name, *(f"{count:,}" for count in counts.values()))
    Console().print(table)
    print(f"largest folder: {largest}, {folders[largest]} files; tests: {json.dumps(tests)}")
    figures = {
        "rooms": rooms,
        "files_per_folder": {name.replace(".", "front"): count for name, count in folders.items()},
        "largest_folder": {"name": largest, "files": folders[largest]},
        "calls": followed,
        "tests": tests,
    }
    measured.save("source_tree", figures, options)


if __name__ == "__main__":
    main()
