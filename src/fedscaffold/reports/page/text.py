"""Numbers, sizes and lengths of time as text."""

import json
from typing import Any

from fedscaffold.core.display.summaries import rounded_up


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


def duration(seconds: float) -> str:
    """Format a length of time, such as "about 3 minutes"."""
    for unit, length in (("hour", 3600.0), ("minute", 60.0)):
        if seconds >= 1.5 * length:
            return f"about {seconds / length:.0f} {unit}s"
    count = max(round(seconds), 1)
    return f"about {count} second{'s' * (count > 1)}"
