"""Files of measured figures, which the documentation shows by name.

Every benchmark takes its options from `parser(...)` and ends with `save(...)`. A file has the figures and where
they come from: date, commit, machine (nothing that names it), versions, and the command that measures them again.
`python -m benchmarks.pages` writes them into the pages of docs/: no number is typed by hand.
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fedscaffold.core import provenance
from fedscaffold.core.files import replacing

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "docs" / "measured"
FEATURES = ("fma", "avx", "avx2", "avx512f", "asimd", "sve")  # of the processor, those that kernels use
QUIET = 0.15  # share of the processor's time that other programs may use while the machine counts as quiet

Figures = Mapping[str, Any]  # numbers or words by name, nested


def command_line() -> str:
    """The command of this process, as one would type it: `python -m benchmarks.source_tree --quick`.

    A path given by `--out` is left out: it says where the file went, not what was measured.
    """
    script = Path(sys.argv[0])
    inside = script.resolve().is_relative_to(ROOT / "benchmarks")
    module = script.parent.name if script.stem == "__main__" else script.stem
    program = ["python", "-m", f"benchmarks.{module}"] if inside else [script.name]
    arguments = iter(sys.argv[1:])
    kept = []
    for argument in arguments:
        if argument == "--out":
            next(arguments, None)
        elif not argument.startswith("--out="):
            kept.append(argument)
    return " ".join(program + kept)


class KeptRows:
    """Rows of a long measurement in a file, one JSON object a line, so that a stopped run can go on.

    Parameters
    ----------
    path
        The file; None for rows that are printed only.
    keys
        Names of the fields by which a row is found again.
    """

    def __init__(self, path: Path | None, keys: tuple[str, ...]) -> None:
        lines = path.read_text().splitlines() if path is not None and path.exists() else []
        self.path = path
        self.known = {tuple(row[key] for key in keys): row for row in map(json.loads, lines)}

    def row(self, key: tuple[Any, ...], make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """The row of a key, printed: from the file, or made and added to it."""
        found = self.known.get(key)
        if found is None:
            found = make()
            if self.path is not None:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                with self.path.open("a") as file:
                    file.write(json.dumps(found) + "\n")
        print(json.dumps(found), flush=True)
        return found


def commit() -> str:
    """The abbreviated commit of the source tree, with a plus sign where files differ from it."""

    def git(*arguments: str) -> str:
        done = subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, text=True, check=True)
        return done.stdout.strip()

    return git("rev-parse", "--short=10", "HEAD") + "+" * bool(
        git("status", "--porcelain", "--", "src", "benchmarks")
    )


def machine() -> dict[str, Any]:
    """Kind of machine, cores, vector instructions of the processor, and versions of what computes."""
    listed = Path("/proc/cpuinfo")
    flags = set(listed.read_text().split()) if listed.is_file() else set()
    features = [feature for feature in FEATURES if feature in flags]
    return {**provenance.machine(), "processor_features": features, "versions": provenance.versions()}


def busy_share(seconds: float = 0.5) -> float:
    """Share of all cores' time that is used while this process waits; 0 where the system does not tell."""
    statistics = Path("/proc/stat")
    if not statistics.is_file():
        return 0.0

    def read() -> tuple[int, int]:
        ticks = [int(word) for word in statistics.read_text().splitlines()[0].split()[1:9]]
        return sum(ticks), ticks[3] + ticks[4]  # all, idle or waiting for the disk

    total, idle = read()
    time.sleep(seconds)
    later_total, later_idle = read()
    return 1.0 - (later_idle - idle) / max(later_total - total, 1)


def parser(description: str | None) -> argparse.ArgumentParser:
    """Options that every benchmark has: `--quick` and `--out`."""
    made = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.set_defaults(busy=busy_share())
    made.add_argument("--quick", action="store_true", help="small sizes only, to see that it works")
    made.add_argument(
        "--out", type=Path, help="file of the figures; default: docs/measured, --quick: results/quick"
    )
    return made


def save(
    name: str,
    figures: Figures,
    options: argparse.Namespace,
    *,
    note: str | None = None,
    command: str | None = None,
) -> None:
    """Write the figures of a benchmark to the file that its options ask for, and print where.

    Figures of a quick run do not replace those of the documentation. `command` is for benchmarks whose own command
    line has paths of one machine.
    """
    folder = ROOT / "results" / "quick" if options.quick else FOLDER
    path = options.out or folder / f"{name}.json"
    write(path, figures, command=command, note=note, busy=options.busy)
    print(f"saved to {path}")


def write(
    path: Path,
    figures: Figures,
    *,
    command: str | None = None,
    busy: float = 0.0,
    note: str | None = None,
) -> None:
    """Write figures and where they come from to a JSON file, whole or not at all.

    Parameters
    ----------
    path
        The file; its folder is made where it is missing.
    figures
        Numbers (or words) by name, in nested mappings. Names have no dot and no colon.
    command
        The command that measures the figures again; that of this process when left out.
    busy
        Share of the processor's time that other programs used before the measurement began: the file says from it
        whether the machine was quiet.
    note
        A sentence about the setting that the figures' names do not say.
    """
    check_names(figures)
    content = {
        "date": datetime.now(UTC).date().isoformat(),
        "commit": commit(),
        "machine": machine(),
        "command": command or command_line(),
        "quiet": busy <= QUIET,
        **({} if note is None else {"note": note}),
        "figures": figures,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as temporary:
        temporary.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n")


def check_names(figures: Figures) -> None:
    """Refuse names that a page could not write in `FILE.key.sub:FORMAT`."""
    for name, value in figures.items():
        if not name or set(name) & set(".:` \n"):
            raise ValueError(f"{name!r} cannot be the name of a figure: use letters, digits and underscores")
        if isinstance(value, Mapping):
            check_names(value)


def read(path: Path) -> dict[str, Any]:
    """Content of a file that `write` wrote."""
    return json.loads(path.read_text())
