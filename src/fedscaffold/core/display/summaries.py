"""Short descriptions of results: a few lines of text for `repr`, and a small HTML table for notebooks."""

import math
import textwrap
from collections.abc import Mapping
from html import escape


def text_summary(title: str, facts: Mapping[str, object]) -> str:
    """Return <title | name: value, name: value, ...>, in lines of at most 79 characters.

    Examples
    --------
    >>> from fedscaffold.core.display.summaries import text_summary
    >>> text_summary("Plateau", {"mean": 0.5, "from round": 12})
    '<Plateau | mean: 0.5, from round: 12>'
    """
    text = f"<{title} | " + ", ".join(f"{name}: {value}" for name, value in facts.items()) + ">"
    return "\n".join(textwrap.wrap(text, 79, subsequent_indent="  "))


def html_summary(title: str, facts: Mapping[str, object]) -> str:
    """Return the same facts as an HTML table with the title as its caption.

    Examples
    --------
    >>> from fedscaffold.core.display.summaries import html_summary
    >>> "<td>12</td>" in html_summary("Plateau", {"from round": 12})
    True
    """
    rows = "".join(
        f'<tr><th scope="row">{escape(name)}</th><td>{escape(str(value))}</td></tr>'
        for name, value in facts.items()
    )
    return f"<table><caption>{escape(title)}</caption><tbody>{rows}</tbody></table>"


def rounded_up(value: float) -> str:
    """Return a bound with two digits, never below its value.

    Examples
    --------
    >>> from fedscaffold.core.display.summaries import rounded_up
    >>> rounded_up(1.0409e-7), rounded_up(0.25), rounded_up(0.0)
    ('1.1e-07', '0.25', '0')
    """
    shown = f"{value:.2g}"
    if not float(shown) < value < math.inf:
        return shown
    return f"{value + 0.5 * 10.0 ** (math.floor(math.log10(value)) - 1):.2g}"


class Summarised:
    """A result that shows some facts about itself: a few lines of text as `repr`, a table in notebooks."""

    def _facts(self) -> Mapping[str, object]:
        raise NotImplementedError

    def _title(self) -> str:
        return type(self).__name__

    def __repr__(self) -> str:
        return text_summary(self._title(), self._facts())

    def _repr_html_(self) -> str:
        return html_summary(self._title(), self._facts())
