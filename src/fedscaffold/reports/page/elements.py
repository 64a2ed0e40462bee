"""Pieces of HTML; every text that comes from outside is escaped here."""

from collections.abc import Sequence
from html import escape

from fedscaffold.reports.page.content import Facts


def paragraph(text: str) -> str:
    """A paragraph of plain text."""
    return f"<p>{escape(text)}</p>"


def section(title: str, *parts: str) -> str:
    """A section with its heading."""
    return f"<section>\n<h2>{escape(title)}</h2>\n" + "\n".join(parts) + "\n</section>"


def table(caption: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table whose first column names its rows; in narrow windows each row becomes a list of names and values."""
    head = "".join(f'<th scope="col">{escape(cell)}</th>' for cell in header)
    body = "\n".join(
        f'<tr><th scope="row">{escape(row[0])}</th>'
        + "".join(
            f'<td data-name="{escape(name)}">{escape(cell)}</td>'
            for name, cell in zip(header[1:], row[1:], strict=True)
        )
        + "</tr>"
        for row in rows
    )
    return (
        f'<div class="wide" role="region" tabindex="0" aria-label="{escape(caption)}">\n'
        f"<table>\n<caption><span>{escape(caption)}</span></caption>\n<thead><tr>{head}</tr></thead>\n"
        f"<tbody>\n{body}\n</tbody>\n</table>\n</div>"
    )


def facts(caption: str, pairs: Facts) -> str:
    """A table of names and values."""
    body = "\n".join(
        f'<tr><th scope="row">{escape(name)}</th><td class="text">{escape(value)}</td></tr>'
        for name, value in pairs
    )
    return f'<table class="facts">\n<caption>{escape(caption)}</caption>\n<tbody>\n{body}\n</tbody>\n</table>'


def figure(svg: str, legend: Sequence[tuple[str, str]], caption: str) -> str:
    """A drawing with its legend, (CSS class, text), and what it shows."""
    items = "".join(
        f'<li><svg class="key" viewBox="0 0 24 10" aria-hidden="true">{_key(css)}</svg>{escape(text)}</li>'
        for css, text in legend
    )
    keys = f'<ul class="legend">{items}</ul>\n' if legend else ""
    return f"<figure>\n{svg}\n{keys}<figcaption>{escape(caption)}</figcaption>\n</figure>"


def code(text: str) -> str:
    """HTML of a command line, in a font of fixed width."""
    return f"<pre><code>{escape(text)}</code></pre>"


def details(summary: str, *parts: str) -> str:
    """Pieces that a reader can unfold, below a line of text."""
    return f"<details>\n<summary>{escape(summary)}</summary>\n" + "\n".join(parts) + "\n</details>"


def _key(css: str) -> str:
    if css.startswith("dot"):
        return f'<circle class="{css}" cx="12" cy="5" r="4"/>'
    return f'<path class="{css}" d="M0 5H24"/>'
