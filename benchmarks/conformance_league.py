"""The checks of `fedscaffold.conformance` on published libraries, and the page docs/conformance-league.md.

`python -m benchmarks.conformance_league [--environments DIR]`. Each library is installed, at a fixed version, in
an environment of its own; making one takes a gigabyte and a minute or two.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks import measured
from fedscaffold.conformance.adapters import LIBRARIES
from fedscaffold.conformance.adapters.environment import check_library, default_folder
from fedscaffold.core.files import write_text

PAGE = measured.ROOT / "docs" / "conformance-league.md"
MARKS = {"passed": "✓", "failed": "**✗**", "not supported": "–"}
INTRODUCTION = """\
# Published Scaffolds, checked

<!-- written by `python -m benchmarks.conformance_league`; do not edit -->

Several libraries have a Scaffold. Each is put through the [checks](how-to/conformance.md) here, at the version
named, with an adapter of a few dozen lines that drives its own classes on quadratic losses, without a network
(`fedscaffold.conformance.adapters`). Measured on {date}. One command repeats a column:

```console
$ fedscaffold conformance --against {first}
```

The command makes an environment with the library at that version and the packages that the checked parts import,
all at fixed versions; the rest of what a library asks for is left out.

✓ passed, ✗ failed, – not supported: the library has no such thing, or its adapter does not reach it. A library
that fails a check may still train well on the data one has; what fails is said below, with the smallest command
that shows it.
"""


def page(figures: Mapping[str, Any], date: str) -> str:
    """The page in Markdown, from the figures of all libraries."""
    names = list(figures)
    checks = [row["name"] for row in figures[names[0]]["checks"]]
    lines = [INTRODUCTION.format(date=date, first=names[0])]
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
    lines = [f"## {name} {found['version']}", "", f"Checked: `{found['implements']}`.", ""]
    failed = [row for row in found["checks"] if row["verdict"] == "failed"]
    if not failed:
        return [*lines, "No check failed.", ""]
    for row in failed:
        value = "not finite" if row["measured"] is None else f"{row['measured']:.3g}"
        told = row["error"].strip().splitlines()[-1] if row["error"] else f"{row['expected']}; measured {value}"
        cause = row["hint"] if row["hint"].endswith("?") else f"{row['hint']}."
        lines += [f"**{row['name']}.** {told}. Likely cause: {cause}", "", "```console"]
        lines += [f'$ fedscaffold conformance --against {name} --only "{row["name"]}"', "```", ""]
    return lines


def main() -> None:
    """Check all libraries, keep the figures and write the page."""
    parser = measured.parser(__doc__)
    parser.add_argument("--environments", type=Path, default=default_folder(), help="folder of the environments")
    options = parser.parse_args()
    figures = {}
    for name, library in LIBRARIES.items():
        report = check_library(name, folder=options.environments)
        figures[name] = {"version": library.version, "implements": library.implements, **report.to_dict()}
        print(f"{name} {library.version}: {report!r}")
        if options.quick:
            break
    measured.save("conformance_league", figures, options)
    if not options.quick:
        write_text(PAGE, page(**kept()))


def kept() -> dict[str, Any]:
    """The figures that the documentation has, and their date."""
    found = json.loads((measured.FOLDER / "conformance_league.json").read_text(encoding="utf-8"))
    return {"figures": found["figures"], "date": found["date"]}


if __name__ == "__main__":
    main()
