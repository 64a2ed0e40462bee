"""Render pages from templates, and format and choose what they show."""

import json
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined
from numpy.typing import ArrayLike

from fedscaffold.core.display import rounded_up
from fedscaffold.core.types import Array
from fedscaffold.inference.summary import number, probability
from fedscaffold.reports.page import drawings

MOST = 30  # rows of a table or a drawing that fit on a page


def render(template: str, **values: Any) -> str:
    """Return a page as one piece of HTML that needs no other file.

    Templates are those in `templates/`: "fit", "site", "live"; `values` are the objects
    that they show.
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
    formats = (array, bound, exp, fmt, format_bytes, json_text, number, probability)
    made.filters |= {each.__name__: each for each in formats}
    drawn = (drawings.bars, drawings.calibration, drawings.curves, drawings.ranges)
    chosen = (clearest, largest)
    made.globals |= {each.__name__: each for each in (*drawn, *chosen)}
    return made


def array(values: Iterable[float | None]) -> Array:
    """Return numbers as an array, with NaN for None."""
    return np.array(list(values), dtype=float)


def exp(value: float) -> float:
    """Return the exponential of a number, infinity if it is too large for a float."""
    with np.errstate(over="ignore"):
        return float(np.exp(value))


def fmt(value: float | None, spec: str = ".4g", unknown: str = "–") -> str:
    """Format a number; None and NaN become a dash, or another text.

    Examples
    --------
    >>> fmt(0.123456), fmt(1234, ","), fmt(None)
    ('0.1235', '1,234', '–')
    """
    return unknown if value is None or value != value else format(value, spec)


def format_bytes(size: float) -> str:
    """Format a number of bytes in decimal units, to three digits."""
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= scale:
            return f"{size / scale:.3g} {unit}"
    return f"{size:.0f} bytes"


def json_text(values: Any) -> str:
    """Format values as JSON text for people."""
    return json.dumps(values, indent=1, ensure_ascii=False, default=str)


def bound(value: float) -> str:
    """Format an upper bound on an error with two digits, rounded up.

    Errors below 1e-9 are rounding errors of Newton steps: the bound says 1e-9, whatever the machine.
    """
    return "1e-9" if value < 1e-9 else rounded_up(value)


def largest(sizes: ArrayLike, keep: Sequence[int] = ()) -> list[int]:
    """Return at most 30 positions, from the largest size to the smallest: `keep`, and the largest others.

    Examples
    --------
    >>> largest([3, 9, 5])
    [1, 2, 0]
    """
    order = np.argsort(-np.asarray(sizes), kind="stable").tolist()
    kept = set(list(dict.fromkeys([*keep, *order]))[:MOST])
    return [k for k in order if k in kept]


def clearest(effects: Array, widths: Array) -> list[int]:
    """Return at most 30 positions, from the largest effect to the smallest: those furthest from 0 in their widths.

    Effects of NaN (of intercepts) are left out.
    """
    known = np.flatnonzero(~np.isnan(effects)).tolist()
    clarity = np.abs(effects) / np.maximum(widths, 1e-300)
    kept = sorted(known, key=lambda k: float(-clarity[k]))[:MOST]
    return sorted(kept, key=lambda k: float(-effects[k]))
