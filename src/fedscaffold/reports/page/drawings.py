"""Drawings as SVG that take their colours from the page: lines on a log scale, bars, ranges, calibration.

`title` is the text for readers who do not see the drawing; `rows` are the positions, among all names, of the rows
to draw, from top to bottom.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from markupsafe import Markup

from fedscaffold.core.types import Array

WIDTH, ROW, LEFT = 480, 22, 150  # the drawing, a row with a name, and the space for names
Values = Array | Sequence[float | None]


def curves(
    lines: Sequence[tuple[str, Values, Values]],
    *,
    level: float | None,
    title: str,
    x_label: str,
    y_label: str,
    dots: Sequence[tuple[str, Values, Values]] = (),
) -> Markup:
    """Draw values by round on a log scale, and a horizontal line at `level`, the target, unless it is None.

    Lines, and points that are drawn as dots, have a CSS class, rounds and values, of which positive ones count.
    """
    height = 320
    left, right, top, bottom = 62, WIDTH - 10, 26, height - 44
    known = [(css, *_positive(x, y)) for css, x, y in lines]
    values = np.concatenate([[] if level is None else [level], *(y for _, _, y in known)])
    low, high = math.floor(np.log10(values.min())), math.ceil(np.log10(values.max()))
    high += low == high
    last = int(max(np.asarray(x, dtype=float).max() for _, x, _ in lines))

    def across(x: Any) -> Any:
        return left + (right - left) * x / max(last, 1)

    def up(y: Any) -> Any:
        return bottom - (bottom - top) * (np.log10(y) - low) / (high - low)

    parts = [_text(0, 14, y_label)]
    for power in range(low, high + 1, max(1, (high - low) // 6)):
        at = up(10.0**power)
        parts += [_path("grid", f"M{left} {at:.1f}H{right}"), _text(left - 8, at + 4, _power(power), "end")]
    for t in round_ticks(last):
        parts.append(_text(across(t), bottom + 20, f"{t:,}", "end" if across(t) > right - 20 else "middle"))
    parts.append(_text((left + right) / 2, height - 6, x_label, "middle"))
    if level is not None:
        parts.append(_path("line target", f"M{left} {up(level):.1f}H{right}"))
    for css, x, y in known:
        at = np.unique(np.linspace(0, x.size - 1, min(x.size, 300)).round().astype(int))  # more would not be seen
        points = " ".join(f"{a:.1f},{b:.1f}" for a, b in zip(across(x[at]), up(y[at]), strict=True))
        parts.append(Markup('<polyline class="line {}" points="{}"/>').format(css, points))
    for css, x, y in ((css, *_positive(x, y)) for css, x, y in dots):
        parts += [_dot(css, a, b, 4) for a, b in zip(across(x), up(y), strict=True)]
    return _svg(title, height, parts)


def round_ticks(last: int) -> list[int]:
    """Return about five whole numbers from 0 to `last` in steps of 1, 2 or 5 times a power of ten."""
    return [round(t) for t in axis_ticks(0.0, max(last, 1)) if t == round(t)]


def axis_ticks(least: float, most: float) -> list[float]:
    """Return about five numbers between two in steps of 1, 2 or 5 times a power of ten."""
    raw = (most - least) / 5.0 or 1.0
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(k * power for k in (1.0, 2.0, 5.0, 10.0) if k * power >= raw)
    return [k * step for k in range(math.ceil(least / step), math.floor(most / step) + 1)]


def bars(rows: Sequence[int], names: Sequence[str], counts: Array, *, title: str) -> Markup:
    """Draw a horizontal bar for some rows, in coloured parts by counts (rows, parts), with its total."""
    unit = (WIDTH - 58 - LEFT) / max(counts.sum(axis=1).max(), 1)
    parts = []
    for k, row in enumerate(rows):
        y, at = 4 + ROW * k, float(LEFT)
        parts.append(_name(names[row], y + 14))
        for j, count in enumerate(counts[row]):
            if count:
                box = Markup('<rect class="k{}" x="{:.1f}" y="{}" width="{:.1f}" height="{}"/>')
                parts.append(box.format(j, at, y + 3, unit * count, ROW - 7))
            at += unit * count
        parts.append(_text(at + 6, y + 14, f"{counts[row].sum():,.0f}"))
    return _svg(title, ROW * len(rows) + 8, parts)


def ranges(
    rows: Sequence[int],
    names: Sequence[str],
    ends: tuple[Array, Array],
    dots: Sequence[tuple[str, Array]],
    *,
    css: str,
    title: str,
    label: str,
    zero: bool = True,
) -> Markup:
    """Draw a horizontal line for some rows, with dots on it, above a common axis with a label.

    Lines have a CSS class and two ends, dots a CSS class and values, each for all rows. With `zero` the axis
    includes zero, with a vertical line there.
    """
    right, height = WIDTH - 18, ROW * len(rows) + 48
    all_ends = np.concatenate([[0.0] if zero else [], *(end[rows] for end in ends)])
    least, most = all_ends.min(), all_ends.max()
    least -= 0.0 if zero else 0.04 * (most - least)  # so that no dot covers a name

    def across(value: float) -> float:
        return LEFT + (right - LEFT) * (value - least) / ((most - least) or 1.0)

    parts = []
    for value in axis_ticks(least, most):
        at = f"M{across(value):.1f} 4V{height - 44}"
        parts += [_path("grid", at), _text(across(value), height - 26, f"{value:.6g}", "middle")]
    if zero:
        parts.append(_path("link", f"M{across(0.0):.1f} 4V{height - 44}"))
    parts.append(_text((LEFT + right) / 2, height - 6, label, "middle"))
    for k, row in enumerate(rows):
        y = 4 + ROW * k + ROW / 2
        begin, end = (across(end[row]) for end in ends)
        parts += [_name(names[row], y + 4), _path(css, f"M{begin:.1f} {y}H{end:.1f}")]
        parts += [_dot(kind, across(values[row]), y, 4.5) for kind, values in dots]
    return _svg(title, height, parts)


def calibration(points: Sequence[tuple[float, float, int]], *, title: str, event: str) -> Markup:
    """Draw observed against predicted shares: a dot for each (predicted, observed, rows), sized by its rows."""
    left, top, size = 62, 26, 300
    most = max(rows for _, _, rows in points)
    parts = [_text(0, 14, f"observed share of {event}")]
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        x, y = left + size * share, top + size * (1.0 - share)
        parts.append(_path("grid", f"M{left} {y}H{left + size}M{x} {top}V{top + size}"))
        parts.append(_text(left - 8, y + 4, f"{share:.0%}", "end"))
        parts.append(_text(x, top + size + 20, f"{share:.0%}", "middle"))
    parts.append(_path("link", f"M{left} {top + size}L{left + size} {top}"))
    parts.append(_text(left + size / 2, top + size + 42, f"predicted probability of {event}", "middle"))
    for predicted, observed, rows in sorted(points, key=lambda point: -point[2]):
        x, y = left + size * predicted, top + size * (1.0 - observed)
        parts.append(_dot("dot-rows", x, y, 3.0 + 8.0 * math.sqrt(rows / most)))
    return _svg(title, top + size + 50, parts)


def _positive(x: Values, y: Values) -> tuple[Array, Array]:
    """Return rounds and values where the value is positive; None counts as unknown."""
    values = np.asarray(y, dtype=float)
    known = values > 0.0
    return np.asarray(x, dtype=float)[known], values[known]


def _power(power: int) -> str:
    if -3 <= power <= 3:
        return f"{10.0**power:g}"
    return Markup('10<tspan dy="-5" font-size="10">{}{}</tspan>').format("−" if power < 0 else "", abs(power))


def _name(name: str, y: float) -> Markup:
    """Return a row's name beside it; 18 characters fit."""
    return _text(LEFT - 8, y, name if len(name) <= 18 else name[:17] + "…", "end")


def _text(x: float, y: float, words: str, anchor: str = "start") -> Markup:
    return Markup('<text x="{:.1f}" y="{:.1f}" text-anchor="{}">{}</text>').format(x, y, anchor, words)


def _path(css: str, d: str) -> Markup:
    return Markup('<path class="{}" d="{}"/>').format(css, d)


def _dot(css: str, x: float, y: float, r: float) -> Markup:
    return Markup('<circle class="{}" cx="{:.1f}" cy="{:.1f}" r="{:.3g}"/>').format(css, x, y, r)


def _svg(title: str, height: float, parts: Sequence[Markup]) -> Markup:
    frame = '<svg viewBox="0 0 {} {:g}" role="img" aria-label="{}">\n<title>{}</title>\n{}\n</svg>'
    return Markup(frame).format(WIDTH, height, title, title, Markup("\n").join(parts))
