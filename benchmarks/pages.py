"""Write measured figures into the pages of docs/, so that the Markdown reads well without building.

`python -m benchmarks.pages` brings every page up to date with the files in docs/measured; with `--check` it only
reports pages that are not. A number that a page takes from a file is followed by a comment with a label, and the
page ends with a comment that says which figure each label stands for:

    A round takes 3.12<!--1--> s.
    Measured on 2026-11-17 at commit 1aef1a4 on 2 cores with `python -m benchmarks.startup`.<!--from startup-->

    <!-- figures, written by `python -m benchmarks.pages`
    1 = startup.round.seconds:.2f
    -->

An address is FILE.key.sub:FORMAT, with a Python format specification; without one, or with "," alone, numbers have
three digits. A line that ends in `<!--from FILE-->` says where a file's figures come from, and the lines
between `<!--list FILE.key-->` and `<!--end-->` list all entries of a mapping.
"""

import argparse
import re
import sys
from pathlib import Path
from typing import Any

from benchmarks import measured

DOCS = measured.ROOT / "docs"
NUMBER = re.compile(r"((?:(?:\d+|never), )*[^\s|(\[<*]*)<!--(\d+)-->")  # one number or word, or a list of rounds
ORIGIN = re.compile(r"^.*<!--from (\w+)-->$", re.MULTILINE)
LIST = re.compile(r"^<!--list ([\w.]+)-->\n.*?^<!--end-->$", re.MULTILINE | re.DOTALL)
FIGURES = re.compile(r"\n<!-- figures, written by [^\n]*\n(.*?)-->\n", re.DOTALL)


def find(address: str, folder: Path = measured.FOLDER) -> Any:
    """Return the figure that FILE.key.sub names.

    Raises
    ------
    KeyError
        If there is no such file or key; the message lists those that exist.
    """
    name, *keys = address.split(".")
    path = folder / f"{name}.json"
    if not path.is_file():
        known = ", ".join(sorted(each.stem for each in folder.glob("*.json")))
        raise KeyError(f"there is no file {name}.json in {folder.name}; it has {known}")
    found: Any = measured.read(path)["figures"]
    for key in keys:
        if not isinstance(found, dict) or key not in found:
            known = ", ".join(found) if isinstance(found, dict) else "no keys, it is a number"
            raise KeyError(f"{address} is not measured: {key!r} is missing; the file has {known}")
        found = found[key]
    return found


def figure(text: str, folder: Path = measured.FOLDER) -> str:
    """Return the figure that FILE.key.sub:FORMAT names, formatted."""
    address, _, specification = text.partition(":")
    found = find(address, folder)
    if isinstance(found, dict | list) or found is None:
        raise KeyError(f"{address} is not one figure but {found!r}; name one of its keys")
    if isinstance(found, float) and specification in ("", ","):
        found = float(f"{found:.3g}")
        found = int(found) if found.is_integer() else found
    return format(found, specification)


def origin(name: str, folder: Path = measured.FOLDER) -> str:
    """Return the sentence that says when, where and by which command a file was measured."""
    content = measured.read(folder / f"{name}.json")
    cores = content["machine"]["cores"]
    machine = "" if cores is None else f" on {cores} core{'s' * (cores != 1)}"
    text = f"Measured on {content['date']} at commit {content['commit']}{machine} with `{content['command']}`."
    if content["quiet"] is False:
        text += " The machine was shared with other programs."
    if content.get("carried_over"):
        text += " Carried over from an earlier edition of this page, with its date and commit."
    return text


def listing(address: str, folder: Path = measured.FOLDER) -> str:
    """Return the entries of the mapping that FILE.key names as a Markdown list."""
    found = find(address, folder)
    if not isinstance(found, dict):
        raise KeyError(f"{address} is not a mapping but {found!r}")
    return "".join(f"- **{name}**: {value}\n" for name, value in found.items())


def updated(text: str, folder: Path = measured.FOLDER) -> str:
    """Return a page with all of its measured figures up to date.

    Raises
    ------
    KeyError
        If a label has no address, an address no label, or a figure does not exist.
    """
    block = FIGURES.search(text)
    lines = block.group(1).strip().splitlines() if block else []
    addresses = dict(line.split(" = ", 1) for line in lines)
    used = set(re.findall(r"<!--(\d+)-->", text))
    if used != set(addresses):
        raise KeyError(f"labels without an address or the reverse: {sorted(used ^ set(addresses))}")
    text = NUMBER.sub(lambda m: f"{figure(addresses[m.group(2)], folder)}<!--{m.group(2)}-->", text)
    text = ORIGIN.sub(lambda m: f"{origin(m.group(1), folder)}<!--from {m.group(1)}-->", text)
    return LIST.sub(lambda m: f"<!--list {m.group(1)}-->\n{listing(m.group(1), folder)}<!--end-->", text)


def stale(folder: Path = DOCS) -> dict[Path, str]:
    """Return the pages that are not up to date, with their text as it should be."""
    found = {}
    for path in sorted(folder.rglob("*.md")):
        try:
            text = updated(path.read_text())
        except KeyError as error:
            raise KeyError(f"{path.relative_to(folder)}: {error.args[0]}") from None
        if text != path.read_text():
            found[path] = text
    return found


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    options.add_argument(
        "--check", action="store_true", help="only list pages that are out of date, and exit with 1"
    )
    check = options.parse_args().check
    pages = stale()
    for page, content in pages.items():
        print(page.relative_to(measured.ROOT))
        if not check:
            page.write_text(content)
    sys.exit(bool(pages) and check)
