"""Sphinx extension: render formulas as MathML when the pages are built.

Browsers render MathML natively, so that formulas need neither a script nor a font from the network. Formulas are
written as LaTeX, `$...$` in a line and `$$...$$` or a math directive on lines of their own; several lines that are
separated by a double backslash are aligned at `&`.
"""

import re

from docutils import nodes
from latex2mathml.converter import convert
from sphinx.application import Sphinx
from sphinx.errors import ExtensionError
from sphinx.writers.html5 import HTML5Translator

WORD = re.compile(r"<mo>([A-Za-z]{2,})</mo>")  # a name such as Cov, to be set close to its argument


def to_mathml(latex: str, *, display: bool) -> str:
    """Return the MathML of one formula.

    Parameters
    ----------
    latex
        The formula, without dollar signs.
    display
        True for a formula on lines of its own, False for one within a line of text.
    """
    text = latex.strip()
    if r"\\" in text and r"\begin" not in text:
        text = rf"\begin{{align*}}{text}\end{{align*}}"
    try:
        return WORD.sub(r"<mi>\1</mi>", convert(text, display="block" if display else "inline"))
    except Exception as error:
        raise ExtensionError(f"the formula {latex!r} cannot be converted to MathML: {error!r}") from error


def visit_inline(self: HTML5Translator, node: nodes.math) -> None:
    """Write a formula within a line."""
    self.body.append(to_mathml(node.astext(), display=False))
    raise nodes.SkipNode


def visit_block(self: HTML5Translator, node: nodes.math_block) -> None:
    """Write a displayed formula, in a box that scrolls if the screen is narrow."""
    self.body.append(self.starttag(node, "div", CLASS="math-block"))
    self.body.append(to_mathml(node.astext(), display=True))
    self.body.append("</div>\n")
    raise nodes.SkipNode


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the renderer under the name that `html_math_renderer` selects."""
    app.add_html_math_renderer("mathml", (visit_inline, None), (visit_block, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
