"""Sphinx extension: array types by their short names in the reference.

Python replaces `Array` and `IntArray` of `fedscaffold.core.types` by what they stand for when it reads an
annotation; readers see the short names again.
"""

from sphinx.application import Sphinx

SHORT = {
    "ndarray[tuple[Any, ...], dtype[float64]]": "Array",
    "ndarray[tuple[Any, ...], dtype[int64]]": "IntArray",
    "_Buffer | _SupportsArray[dtype[Any]] | _NestedSequence[_SupportsArray[dtype[Any]]] | complex | bytes | str | "
    "_NestedSequence[complex | bytes | str]": "ArrayLike",
}


def shorten(app: Sphinx, *_: object) -> None:
    """Shorten the annotations that autodoc has collected, before it writes them into the page."""
    for types in app.env.current_document.autodoc_annotations.values():
        for name, text in types.items():
            for long, short in SHORT.items():
                text = text.replace(long, short)
            types[name] = text


def setup(app: Sphinx) -> dict[str, bool]:
    """Listen before autodoc's own listener, which has the default priority of 500."""
    app.connect("object-description-transform", shorten, priority=400)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
