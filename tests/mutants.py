"""Mutation tests: wrong versions of the source, each of which the named tests must reject.

`make mutants` copies the project to a temporary folder, and for each entry of mutants.json replaces one piece of
the source and runs the tests that should notice. It prints the entries that no test noticed, and fails if there
are any. Entries are wrong in meaning (a sign, a factor 2, a guard left out), not in syntax.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import Queue

ROOT = Path(__file__).parents[1]
LIST = Path(__file__).with_suffix(".json")
COPIED = ("src", "tests", "benchmarks", "docs", "examples", "hatch_build.py", "pyproject.toml", "README.md")
CAUGHT, SURVIVED, STALE = "caught", "survived", "stale"


@dataclass(frozen=True)
class Mutant:
    """A piece of the source, what it is replaced by, and the tests that must fail then."""

    file: str
    old: str
    new: str
    tests: tuple[str, ...]


def read_mutants(path: Path = LIST) -> list[Mutant]:
    """The entries of the list."""
    entries = json.loads(path.read_text())
    return [Mutant(entry["file"], entry["old"], entry["new"], tuple(entry["tests"])) for entry in entries]


def judge(mutant: Mutant, root: Path) -> str:
    """Whether the tests notice a mutant in a copy of the project, which is restored afterwards."""
    file = root / mutant.file
    source = file.read_text() if file.exists() else ""
    if source.count(mutant.old) != 1 or not all((root / test.split("::")[0]).exists() for test in mutant.tests):
        return STALE
    file.write_text(source.replace(mutant.old, mutant.new))
    compiled = file.suffix in (".c", ".cpp", ".h")
    try:
        if compiled:
            subprocess.run([sys.executable, "hatch_build.py"], cwd=root, check=True)
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-xq", "-p", "no:cacheprovider", "-m", "not slow", *mutant.tests],
            cwd=root, env={**os.environ, "PYTHONPATH": str(root / "src"), "PYTHONDONTWRITEBYTECODE": "1"},
            capture_output=True, text=True, check=False,
        )  # fmt: skip
    finally:
        file.write_text(source)
        if compiled:
            subprocess.run([sys.executable, "hatch_build.py"], cwd=root, check=True)
    return CAUGHT if done.returncode == 1 else SURVIVED


def copies(folder: Path, count: int) -> "Queue[Path]":
    """Copies of the project, to be taken and put back."""
    made: Queue[Path] = Queue()
    for k in range(count):
        for name in COPIED:
            source, target = ROOT / name, folder / str(k) / name
            if source.is_dir():
                shutil.copytree(source, target, ignore=shutil.ignore_patterns("*.pyc"))
            else:
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(source, target)
        made.put(folder / str(k))
    return made


def judge_all(mutants: Iterable[Mutant], processes: int) -> dict[Mutant, str]:
    """What the tests say to each mutant."""
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(processes) as pool:
        free = copies(Path(folder), processes)

        def one(mutant: Mutant) -> tuple[Mutant, str]:
            root = free.get()
            try:
                verdict = judge(mutant, root)
            finally:
                free.put(root)
            print(f"{verdict:9s}{mutant.file}: {mutant.old.strip()!r} → {mutant.new.strip()!r}", flush=True)
            return mutant, verdict

        return dict(pool.map(one, mutants))


def main() -> None:
    """Judge the mutants of the list, all or those of some files, and fail if one is not caught."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="only files whose path contains this")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    found = judge_all([m for m in read_mutants() if options.only in m.file], options.processes)
    counts = {verdict: sum(each == verdict for each in found.values()) for verdict in (CAUGHT, SURVIVED, STALE)}
    print(", ".join(f"{count} {verdict}" for verdict, count in counts.items()))
    if counts[CAUGHT] < len(found):
        sys.exit(1)


if __name__ == "__main__":
    main()
