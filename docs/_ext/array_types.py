"""Sphinx extension: array types by their short names in the reference.

Python replaces `Array` and `IntArray` of `fedscaffold.core.types` by what they stand for when it reads an
annotation; readers see the short names again. Fields of named tuples lose the sentence that Python gives them,
"Alias for field number 0".
"""

import re

from sphinx.application import Sphinx

DOTTED = r"~?(?:\w+\.)*"
ARRAY = rf"{DOTTED}ndarray\[tuple\[{DOTTED}Any, \.\.\.\], {DOTTED}dtype\[{DOTTED}%s\]\]"
SHORT = {re.compile(ARRAY % "float64"): "Array", re.compile(ARRAY % "int64"): "IntArray"}
ALIAS = re.compile(r"Alias for field number \d+")


def short_names(text: str) -> str:
    """Return the text of an annotation, with short names of arrays."""
    for long, short in SHORT.items():
        text = long.sub(short, text)
    return text


def shorten_annotations(app: Sphinx, *_: object) -> None:
    """Shorten the annotations that autodoc has collected, before it writes them into the page."""
    for types in app.env.current_document.autodoc_annotations.values():
        types.update({name: short_names(text) for name, text in types.items()})


def shorten_docstring(app: Sphinx, what: str, name: str, thing: object, options: object, lines: list[str]) -> None:
    """Shorten the types that napoleon has written into a docstring, and drop the empty sentence."""
    lines[:] = [short_names(line) for line in lines if not ALIAS.fullmatch(line.strip())]


def setup(app: Sphinx) -> dict[str, bool]:
    """Listen before autodoc's listener and after napoleon's, which have the default priority of 500."""
    app.connect("object-description-transform", shorten_annotations, priority=400)
    app.connect("autodoc-process-docstring", shorten_docstring, priority=600)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
