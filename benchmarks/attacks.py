"""The attacks of tests/attacks at full size: how many there were, and how they ended.

`python -m benchmarks.attacks [--quick]` makes random calls with hostile values, damages files, kills runs and
resumes them, runs all faults in all phases of a federation in one process, and kills the real processes of a
federation at random. A call, a file or a run that ends in any other way than it should is counted as wrong, and
listed.
"""

import os
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as Xml
from collections.abc import Callable
from pathlib import Path

from benchmarks import measured
from benchmarks.measured import Figures
from tests.attacks import hostile, test_calls, test_files, test_killed

CALLS, DAMAGES, KILLS = 20_000, 650, 67
QUICK_CALLS, QUICK_DAMAGES, QUICK_KILLS = 60, 2, 1
SEED = 2026


def random_calls(count: int, folder: Path) -> Figures:
    """Calls of the public interface with one to three hostile arguments."""
    before = Path.cwd()
    os.chdir(folder)  # where a text that is taken for a path leads
    try:
        accepted, refused, wrong = test_calls.attack(count, folder, SEED)
        targets = len(hostile.calls(folder))
    finally:
        os.chdir(before)
    return {"number": count, "targets": targets, "refused": refused, "accepted": accepted, **counted(wrong)}


def damaged_files(each: int, folder: Path) -> Figures:
    """Files with flipped bits, cut, prolonged, zeroed in part or exchanged."""
    refused, same, wrong = test_files.attack(folder, each, SEED)
    return {"number": refused + same + len(wrong), "refused": refused, "read_as_before": same, **counted(wrong)}


def kills(each: int, folder: Path) -> Figures:
    """Runs that are killed at random moments and resumed, of each kind, and end with the same bits or not."""
    done, wrong = 0, []
    for kind in test_killed.KINDS:
        place = folder / kind
        place.mkdir()
        try:
            done += test_killed.attack(kind, place, each, SEED)
        except AssertionError as error:
            wrong.append(f"{kind}: {error}")
    return {"number": done, **counted(wrong)}


def tests(name: str, folder: Path) -> Figures:
    """Tests of one file of tests/attacks, the slow ones too: how many there are, and how many fail."""
    report = folder / f"{name}.xml"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "slow or not slow",
               f"--junitxml={report}", f"tests/attacks/{name}.py"]  # fmt: skip
    subprocess.run(command, cwd=measured.ROOT, check=False, stdout=subprocess.DEVNULL)
    suite = next(Xml.parse(report).iter("testsuite"))
    failed = [case.get("name") or "" for case in suite.iter("testcase") if len(case) and case[0].tag != "skipped"]
    return {"number": int(suite.get("tests") or 0), "skipped": int(suite.get("skipped") or 0), **counted(failed)}


def counted(wrong: list[str]) -> Figures:
    """Number of kinds of wrong endings, after printing them."""
    for each in wrong:
        print(f"wrong: {each}")
    return {"wrong": len(wrong)}


def main() -> None:
    """Make all attacks and save how they ended."""
    options = measured.parser(__doc__).parse_args()
    calls, damages, each = (QUICK_CALLS, QUICK_DAMAGES, QUICK_KILLS) if options.quick else (CALLS, DAMAGES, KILLS)
    with tempfile.TemporaryDirectory() as temporary:
        folders = [Path(temporary) / part for part in ("calls", "files", "kills", "reports")]
        for folder in folders:
            folder.mkdir()
        parts: dict[str, Callable[[], Figures]] = {
            "calls": lambda: random_calls(calls, folders[0]),
            "files": lambda: damaged_files(damages, folders[1]),
            "kills": lambda: kills(each, folders[2]),
            "faults": lambda: tests("test_federation_faults", folders[3]),
        }
        if not options.quick:
            parts["soak"] = lambda: tests("test_federation_soak", folders[3])
        found: dict[str, Figures] = {}
        for name, part in parts.items():  # saved after each, since all of them take long
            found[name] = part()
            measured.save("attacks", found, options)


if __name__ == "__main__":
    main()
