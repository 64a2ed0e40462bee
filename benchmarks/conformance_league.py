"""The checks of `fedscaffold.conformance` on published libraries, and the page docs/conformance-league.md.

`python -m benchmarks.conformance_league [--environments DIR] [--source NAME=PATH] [--only NAME]`. Each library is
installed, at a fixed version, in an environment of its own; making one takes a gigabyte and a minute or two.
Libraries that are on no package index need a checkout, whose commit is kept; with --only the figures of the others
stay as they are.
"""

import datetime
import json
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks import measured
from fedscaffold.conformance.adapters import LIBRARIES
from fedscaffold.conformance.environment import check_library, default_folder
from fedscaffold.core.files import write_text

PAGE = measured.ROOT / "docs" / "conformance-league.md"
MARKS = {"passed": "✓", "failed": "**✗**", "not supported": "–"}
INTRODUCTION = """\
# Published Scaffolds, checked

<!-- written by `python -m benchmarks.conformance_league`; do not edit -->

Several libraries have a Scaffold. Each is put through the [checks](how-to/conformance.md) here, at the version
or commit named, with an adapter of a few dozen lines that drives its own classes on quadratic losses, without a
network (`fedscaffold.conformance.adapters`). Only what was run is listed. One command repeats a column:

```console
$ fedscaffold conformance --against {first}
```

The command makes an environment with the library at that version and the packages that the checked parts import,
all at fixed versions; the rest of what a library asks for is left out. A library that is on no package index is
checked from a checkout, with `--source PATH`.

✓ passed, ✗ failed, – not supported: the library has no such thing, or its adapter does not reach it. A library
that fails a check may still train well on the data one has; what fails is said below, with the smallest command
that shows it.
"""


def page(figures: Mapping[str, Any]) -> str:
    """The page in Markdown, from the figures of all libraries."""
    names = list(figures)
    checks = [row["name"] for row in figures[names[0]]["checks"]]
    lines = [INTRODUCTION.format(first=names[0])]
    lines.append("| check | " + " | ".join(f"{name} {figures[name]['version']}" for name in names) + " |")
    lines.append("|---" * (len(names) + 1) + "|")
    for k, check in enumerate(checks):
        lines.append(f"| {check} | " + " | ".join(MARKS[figures[n]["checks"][k]["verdict"]] for n in names) + " |")
    lines.append("")
    for name in names:
        lines += _section(name, figures[name])
    return "\n".join(lines).rstrip() + "\n"


def _section(name: str, found: Mapping[str, Any]) -> list[str]:
    """What was checked of one library, and what failed."""
    lines = [f"## {name} {found['version']}", "", f"Checked on {found['date']}: `{found['implements']}`.", ""]
    if LIBRARIES[name].repository:
        lines[2] += f" Repository: {LIBRARIES[name].repository}, commit {found['version']}."
    failed = [row for row in found["checks"] if row["verdict"] == "failed"]
    if not failed:
        return [*lines, "No check failed.", ""]
    for row in failed:
        value = "not finite" if row["measured"] is None else f"{row['measured']:.3g}"
        told = row["error"].strip().splitlines()[-1] if row["error"] else f"{row['expected']}; measured {value}"
        cause = row["hint"] if row["hint"].endswith("?") else f"{row['hint']}."
        lines += [f"**{row['name']}.** {told}. Likely cause: {cause}", "", "```console"]
        source = " --source PATH" if LIBRARIES[name].repository else ""
        lines += [f'$ fedscaffold conformance --against {name}{source} --only "{row["name"]}"', "```", ""]
    return lines


def main() -> None:
    """Check all libraries, keep the figures and write the page."""
    parser = measured.parser(__doc__)
    parser.add_argument("--environments", type=Path, default=default_folder(), help="folder of the environments")
    parser.add_argument("--source", action="append", default=[], metavar="NAME=PATH", help="checkout of a library")
    parser.add_argument("--only", action="append", choices=tuple(LIBRARIES), help="check this library again")
    options = parser.parse_args()
    sources = {name: Path(path) for name, _, path in (text.partition("=") for text in options.source)}
    figures = dict(kept())
    for name, library in LIBRARIES.items():
        if (options.only and name not in options.only) or (library.repository and name not in sources):
            continue
        source = sources.get(name)
        report = check_library(name, folder=options.environments, source=source)
        version = library.version if source is None else commit(source)
        today = datetime.date.today().isoformat()
        figures[name] = {"version": version, "date": today, "implements": library.implements, **report.to_dict()}
        print(f"{name} {version}: {report!r}")
        if options.quick:
            break
    command = "python -m benchmarks.conformance_league"  # without paths of this machine
    measured.save("conformance_league", figures, options, command=command)
    if not options.quick:
        write_text(PAGE, page(kept()))


def commit(source: Path) -> str:
    """The first digits of the commit of a checkout."""
    command = ["git", "-C", str(source), "rev-parse", "--short=12", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def kept() -> dict[str, Any]:
    """The figures that the documentation has."""
    found = json.loads((measured.FOLDER / "conformance_league.json").read_text(encoding="utf-8"))
    return {name: {"date": found["date"], **figures} for name, figures in found["figures"].items()}


if __name__ == "__main__":
    main()
