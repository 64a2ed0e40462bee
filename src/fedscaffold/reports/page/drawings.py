"""Drawings as SVG that take their colours from the page: lines on a log scale, bars, pairs of dots."""

import math
from collections.abc import Sequence
from html import escape

import numpy as np

from fedscaffold.core.types import Array

WIDTH = 480
ROW = 22
MOST_POINTS = 300
LONGEST_NAME = 16


def curves(
    lines: Sequence[tuple[str, Array]],
    *,
    levels: Sequence[tuple[str, float]],
    title: str,
    x_label: str,
    y_label: str,
    marks: Sequence[tuple[str, float, float]] = (),
    height: int = 320,
) -> str:
    """Positive values by round on a log scale, NaN where there is none; `levels` are horizontal lines.

    Lines, levels and `marks`, which are dots at a round and a value, have a CSS class each.
    """
    left, right, top, bottom = 62, WIDTH - 10, 26, height - 44
    values = np.concatenate([v[v > 0] for _, v in lines] + [np.array([v]) for _, v in levels if v > 0])
    low, high = math.floor(np.log10(values.min())), math.ceil(np.log10(values.max()))
    high += low == high
    last = max(v.size for _, v in lines) - 1

    def x(t: Array) -> Array:
        return left + (right - left) * t / max(last, 1)

    def y(v: Array) -> Array:
        return bottom - (bottom - top) * (np.log10(v) - low) / (high - low)

    parts = [f'<text x="0" y="14">{escape(y_label)}</text>']
    every = max(1, (high - low) // 6)
    for power in range(low, high + 1, every):
        at = float(y(np.array(10.0**power)))
        parts.append(f'<path class="grid" d="M{left} {at:.1f}H{right}"/>')
        parts.append(f'<text x="{left - 8}" y="{at + 4:.1f}" text-anchor="end">{_power(power)}</text>')
    for t in round_ticks(last):
        at = float(x(np.array(float(t))))
        anchor = "end" if at > right - 20 else "middle"
        parts.append(f'<text x="{at:.1f}" y="{bottom + 20}" text-anchor="{anchor}">{t:,}</text>')
    parts.append(f'<text x="{(left + right) / 2}" y="{height - 6}" text-anchor="middle">{escape(x_label)}</text>')
    for css, level in levels:
        parts.append(f'<path class="line {css}" d="M{left} {float(y(np.array(level))):.1f}H{right}"/>')
    for css, v in lines:
        known = np.flatnonzero(v > 0)
        places = np.linspace(0, known.size - 1, min(known.size, MOST_POINTS)).round().astype(np.int64)
        at_rounds = known[np.unique(places)]
        points = " ".join(
            f"{a:.1f},{b:.1f}" for a, b in zip(x(at_rounds.astype(float)), y(v[at_rounds]), strict=True)
        )
        parts.append(f'<polyline class="line {css}" points="{points}"/>')
    for css, place, value in marks:
        across, up = float(x(np.array(place))), float(y(np.array(value)))
        parts.append(f'<circle class="{css}" cx="{across:.1f}" cy="{up:.1f}" r="4"/>')
    return _svg(title, height, parts)


def round_ticks(last: int) -> list[int]:
    """About five whole numbers from 0 to `last` in steps of 1, 2 or 5 times a power of ten."""
    step = 1
    while last / step > 5:
        step = {"1": 2, "2": 5, "5": 10}[str(step)[0]] * 10 ** (len(str(step)) - 1)
    return list(range(0, last + 1, step))


def bars(names: Sequence[str], parts_of: Sequence[Sequence[int]], *, title: str) -> str:
    """One horizontal bar per name, in coloured parts, with its total."""
    left, right, top = 118, WIDTH - 58, 4
    largest = max(max(map(sum, parts_of)), 1)
    parts = []
    for k, (name, counts) in enumerate(zip(names, parts_of, strict=True)):
        y = top + ROW * k
        parts.append(f'<text x="{left - 8}" y="{y + 14}" text-anchor="end">{escape(shortened(name))}</text>')
        at = float(left)
        for j, count in enumerate(counts):
            wide = (right - left) * count / largest
            if count:
                parts.append(
                    f'<rect class="k{j}" x="{at:.1f}" y="{y + 3}" width="{wide:.1f}" height="{ROW - 7}"/>'
                )
            at += wide
        parts.append(f'<text x="{at + 6:.1f}" y="{y + 14}">{sum(counts):,}</text>')
    return _svg(title, top + ROW * len(names) + 4, parts)


def pairs(names: Sequence[str], first: Sequence[float], second: Sequence[float], *, title: str, label: str) -> str:
    """Two dots per name on one scale from zero, joined by a line."""
    left, right, top = 118, WIDTH - 24, 4
    height = top + ROW * len(names) + 44
    bottom = height - 44
    largest = max(max(first), max(second)) or 1.0

    def x(value: float) -> float:
        return left + (right - left) * value / largest

    parts = []
    for value in (0.0, largest / 2.0, largest):
        parts.append(f'<path class="grid" d="M{x(value):.1f} {top}V{bottom}"/>')
        parts.append(f'<text x="{x(value):.1f}" y="{bottom + 18}" text-anchor="middle">{value:.3g}</text>')
    parts.append(f'<text x="{(left + right) / 2}" y="{height - 6}" text-anchor="middle">{escape(label)}</text>')
    for k, (name, a, b) in enumerate(zip(names, first, second, strict=True)):
        y = top + ROW * k + ROW / 2
        parts.append(f'<text x="{left - 8}" y="{y + 4}" text-anchor="end">{escape(shortened(name))}</text>')
        parts.append(f'<path class="link" d="M{x(a):.1f} {y}H{x(b):.1f}"/>')
        parts.append(f'<circle class="dot-local" cx="{x(b):.1f}" cy="{y}" r="4.5"/>')
        parts.append(f'<circle class="dot-common" cx="{x(a):.1f}" cy="{y}" r="5"/>')
    return _svg(title, height, parts)


def forest(
    names: Sequence[str], intervals: Sequence[tuple[float, float, float]], *, title: str, label: str
) -> str:
    """A dot with a line from low to high for each (low, middle, high), and a vertical line at zero."""
    left, right, top = 150, WIDTH - 12, 4
    height = top + ROW * len(names) + 44
    bottom = height - 44
    least, most = min(0.0, *(low for low, _, _ in intervals)), max(0.0, *(high for _, _, high in intervals))
    span = (most - least) or 1.0

    def x(value: float) -> float:
        return left + (right - left) * (value - least) / span

    parts = []
    for value in axis_ticks(least, most):
        parts.append(f'<path class="grid" d="M{x(value):.1f} {top}V{bottom}"/>')
        parts.append(f'<text x="{x(value):.1f}" y="{bottom + 18}" text-anchor="middle">{value:.6g}</text>')
    parts.append(f'<path class="link" d="M{x(0.0):.1f} {top}V{bottom}"/>')
    parts.append(f'<text x="{WIDTH / 2}" y="{height - 6}" text-anchor="middle">{escape(label)}</text>')
    for k, (name, (low, middle, high)) in enumerate(zip(names, intervals, strict=True)):
        y = top + ROW * k + ROW / 2
        parts.append(f'<text x="{left - 8}" y="{y + 4}" text-anchor="end">{escape(shortened(name, 18))}</text>')
        parts.append(f'<path class="line scaffold" d="M{x(low):.1f} {y}H{x(high):.1f}"/>')
        parts.append(f'<circle class="dot-common" cx="{x(middle):.1f}" cy="{y}" r="4.5"/>')
    return _svg(title, height, parts)


def calibration(points: Sequence[tuple[float, float, int]], *, title: str, x_label: str, y_label: str) -> str:
    """Observed against predicted shares: a dot for each (predicted, observed, rows), larger with more rows."""
    left, top, size = 62, 26, 300
    most = max((rows for _, _, rows in points), default=1)

    def at(x: float, y: float) -> tuple[float, float]:
        return left + size * x, top + size * (1.0 - y)

    parts = [f'<text x="0" y="14">{escape(y_label)}</text>']
    for value in (0.0, 0.25, 0.5, 0.75, 1.0):
        x, y = at(value, value)
        parts.append(f'<path class="grid" d="M{left} {y:.1f}H{left + size}M{x:.1f} {top}V{top + size}"/>')
        parts.append(f'<text x="{left - 8}" y="{y + 4:.1f}" text-anchor="end">{value:.0%}</text>')
        parts.append(f'<text x="{x:.1f}" y="{top + size + 20}" text-anchor="middle">{value:.0%}</text>')
    (x0, y0), (x1, y1) = at(0.0, 0.0), at(1.0, 1.0)
    parts.append(f'<path class="link" d="M{x0} {y0}L{x1} {y1}"/>')
    parts.append(
        f'<text x="{left + size / 2}" y="{top + size + 42}" text-anchor="middle">{escape(x_label)}</text>'
    )
    for predicted, observed, rows in sorted(points, key=lambda point: -point[2]):
        x, y = at(predicted, observed)
        parts.append(
            f'<circle class="dot-rows" cx="{x:.1f}" cy="{y:.1f}" r="{3.0 + 9.0 * math.sqrt(rows / most):.1f}"/>'
        )
    return _svg(title, top + size + 50, parts)


def axis_ticks(least: float, most: float) -> list[float]:
    """About four round numbers between two others, 0 among them where it lies between."""
    raw = max(most - least, 1e-300) / 4.0
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(k * power for k in (1.0, 2.0, 5.0, 10.0) if k * power >= raw)
    return [k * step for k in range(math.ceil(least / step), math.floor(most / step) + 1)]


def shortened(name: str, longest: int = LONGEST_NAME) -> str:
    """A name that fits beside a bar."""
    return name if len(name) <= longest else name[: longest - 1] + "…"


def _power(power: int) -> str:
    if -3 <= power <= 3:
        return f"{10.0**power:g}"
    return f'10<tspan dy="-5" font-size="10">{"−" if power < 0 else ""}{abs(power)}</tspan>'


def _svg(title: str, height: float, parts: Sequence[str]) -> str:
    name = escape(title)
    return (
        f'<svg viewBox="0 0 {WIDTH} {height:g}" role="img" aria-label="{name}">\n<title>{name}</title>\n'
        + "\n".join(parts)
        + "\n</svg>"
    )
