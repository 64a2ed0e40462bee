"""Render a page from its template."""

from collections.abc import Iterable
from functools import cache
from typing import Any

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined

from fedscaffold.core.types import Array
from fedscaffold.inference.layout import number, probability
from fedscaffold.reports.page import drawings, shown, text


def render(template: str, **values: Any) -> str:
    """Return a page as one piece of HTML that needs no other file.

    Parameters
    ----------
    template
        Name of a template in `templates/`, without its suffix: "fit", "study", "private_study", "site", "live".
    values
        The objects that the template shows.

    Returns
    -------
    str
        The page.
    """
    return environment().get_template(f"{template}.html.j2").render(**values)


@cache
def environment() -> Environment:
    """Return the environment of all templates: escaping is on, and missing attributes raise."""
    made = Environment(
        loader=PackageLoader("fedscaffold.reports.page"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=["jinja2.ext.do"],
    )
    formats = (text.fmt, text.format_bytes, text.json_text, text.bound, text.duration, number, probability)
    made.filters |= {each.__name__: each for each in formats} | {"array": _array, "exp": _exp}
    drawn = (drawings.bars, drawings.calibration, drawings.curves, drawings.ranges)
    chosen = (shown.clearest, shown.colour_groups, shown.extremes, shown.largest)
    made.globals |= {each.__name__: each for each in (*drawn, *chosen)}
    return made


def _array(values: Iterable[float | None]) -> Array:
    """Return numbers as an array, with NaN for None."""
    return np.array(list(values), dtype=float)


def _exp(value: float) -> float:
    """Return exp(value), infinity if that is too large for a float."""
    with np.errstate(over="ignore"):
        return float(np.exp(value))
