"""Sphinx extension: pages show measured figures from the JSON files in `docs/measured`, by name.

The role ``{measured}`FILE.key.sub:FORMAT` `` shows `figures["key"]["sub"]` of `docs/measured/FILE.json`. FORMAT is
a Python format specification such as `.2f`; without one, or with `,` alone, numbers have three digits.

The directive `measured-from` with the argument FILE shows when, at which commit, on how many cores and with which
command the file was measured. The directive `measured-list` with the argument FILE.key shows all entries of
`figures["key"]`, one below another. A figure or file that does not exist ends the build with an error that names
it.
"""

import json
from pathlib import Path
from typing import Any

from docutils import nodes
from docutils.parsers.rst import Directive
from sphinx.application import Sphinx
from sphinx.errors import ExtensionError


def load(folder: Path, name: str) -> dict[str, Any]:
    """Content of one file of measurements.

    Parameters
    ----------
    folder
        The folder of the files, `docs/measured`.
    name
        Name of the file without `.json`.
    """
    path = folder / f"{name}.json"
    if not path.is_file():
        known = ", ".join(sorted(each.stem for each in folder.glob("*.json"))) or "none"
        raise ExtensionError(f"there are no measurements named {name!r}; files in {folder.name}: {known}")
    return json.loads(path.read_text())


def find(folder: Path, address: str) -> Any:
    """What `FILE.key.sub` names."""
    name, *keys = address.split(".")
    found: Any = load(folder, name)["figures"]
    for key in keys:
        if not isinstance(found, dict) or key not in found:
            known = ", ".join(found) if isinstance(found, dict) else "none, it is a number"
            raise ExtensionError(f"{address!r} is not measured: no {key!r} there; keys: {known}")
        found = found[key]
    return found


def show_figure(folder: Path, text: str) -> str:
    """The figure that `FILE.key.sub:FORMAT` names, as text."""
    address, _, specification = text.partition(":")
    found = find(folder, address)
    if isinstance(found, dict | list) or found is None:
        raise ExtensionError(f"{address!r} is not one figure but {found!r}; name one of its keys")
    if isinstance(found, float) and specification in ("", ","):
        found = float(f"{found:.3g}")
        found = int(found) if found.is_integer() else found
    try:
        return format(found, specification)
    except ValueError as error:
        raise ExtensionError(f"{text!r}: {found!r} cannot be written so: {error}") from None


def show_origin(folder: Path, name: str) -> list[nodes.Node]:
    """The sentence "Measured on DATE at commit COMMIT on N cores with `COMMAND`." of a file, and its cautions."""
    origin = load(folder, name)
    cores = origin["machine"]["cores"]
    machine = "" if cores is None else f" on {cores} core{'s' * (cores != 1)}"
    opening = f"Measured on {origin['date']} at commit {origin['commit']}{machine} with "
    cautions = " The machine was shared with other programs." if origin["quiet"] is False else ""
    if origin.get("carried_over"):
        cautions += " Carried over from an earlier edition of this page, whose date and commit these are."
    return [nodes.Text(opening), nodes.literal(text=origin["command"]), nodes.Text("." + cautions)]


def show_list(folder: Path, address: str) -> nodes.bullet_list:
    """The entries of the mapping that `FILE.key` names: each name in bold, with what it stands for."""
    found = find(folder, address)
    if not isinstance(found, dict):
        raise ExtensionError(f"{address!r} is not a list of figures but {found!r}")
    shown = nodes.bullet_list()
    for name, what in found.items():
        shown += nodes.list_item("", nodes.paragraph("", "", nodes.strong(text=name), nodes.Text(f": {what}")))
    return shown


class MeasuredRole:
    """The role `measured`.

    Parameters
    ----------
    folder
        The folder of the files of measurements.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(
        self,
        role: str,
        rawtext: str,
        text: str,
        lineno: int,
        inliner: Any,
        options: Any = None,
        content: Any = None,
    ) -> tuple[list[nodes.Node], list[nodes.system_message]]:
        """Nodes for one use of the role, after the signature that docutils asks of a role."""
        note_dependency(inliner.document, self.folder, text.partition(".")[0])
        return [nodes.Text(show_figure(self.folder, text))], []


def measured_from(folder: Path) -> type[Directive]:
    """The directive `measured-from`, for files in `folder`."""

    class MeasuredFrom(Directive):
        required_arguments = 1

        def run(self) -> list[nodes.Node]:
            name = self.arguments[0]
            note_dependency(self.state.document, folder, name)
            return [nodes.paragraph("", "", *show_origin(folder, name))]

    return MeasuredFrom


def measured_list(folder: Path) -> type[Directive]:
    """The directive `measured-list`, for files in `folder`."""

    class MeasuredList(Directive):
        required_arguments = 1

        def run(self) -> list[nodes.Node]:
            note_dependency(self.state.document, folder, self.arguments[0].partition(".")[0])
            return [show_list(folder, self.arguments[0])]

    return MeasuredList


def note_dependency(document: nodes.document, folder: Path, name: str) -> None:
    """Have the page built again when the file of measurements has changed."""
    document.settings.record_dependencies.add(str(folder / f"{name}.json"))


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the role and the directive with Sphinx."""
    folder = Path(app.srcdir) / "measured"
    app.add_role("measured", MeasuredRole(folder))
    app.add_directive("measured-from", measured_from(folder))
    app.add_directive("measured-list", measured_list(folder))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
