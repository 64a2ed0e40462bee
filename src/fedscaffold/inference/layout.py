"""A summary as text and as HTML."""

import math
import textwrap
from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fedscaffold.inference.summary import Summary

WIDTH = 79
COLUMNS = ("coef", "se", "z", "p", "low", "high", "optimisation_error")  # of a summary


def number(value: float, digits: int = 4) -> str:
    """Format a number with some significant digits, without an exponent if that is short."""
    if not math.isfinite(value):
        return "–"
    if value == 0.0 or 1e-3 <= abs(value) < 1e6:
        places = digits if value == 0.0 else max(0, digits - 1 - math.floor(math.log10(abs(value))))
        return f"{value:.{min(places, 6)}f}"
    return f"{value:.{digits - 1}e}"


def probability(p: float) -> str:
    """Format a p-value with three places, or "<0.001"."""
    if math.isnan(p):
        return "–"
    return "<0.001" if p < 5e-4 else f"{p:.3f}"


def header(summary: "Summary") -> tuple[str, ...]:
    """Return names of the table's columns; the last one is the optimisation error over the standard error."""
    letter = "z" if summary.df_resid is None else "t"
    tail = 0.5 * (1.0 - summary.level)
    ends = (f"[{tail:.4g}", f"{1.0 - tail:.4g}]")
    return ("coef", "std err", letter, f"P>|{letter}|", *ends, "opt/se")


def body(summary: "Summary") -> list[tuple[str, ...]]:
    """Return the cells of the table, one row per coefficient."""
    columns = [getattr(summary, name).tolist() for name in COLUMNS]
    return [
        (
            number(coef), number(se), f"{z:.2f}" if math.isfinite(z) else "–", probability(p), number(low),
            number(high), f"{error / se:.1%}" if se > 0 else "–",
        )
        for coef, se, z, p, low, high, error in zip(*columns, strict=True)
    ]  # fmt: skip


def facts(summary: "Summary") -> dict[str, str]:
    """Return the header lines shown above the coefficient table, by name."""
    found, s = dict(summary.facts), summary.statistics
    named = {
        "log-likelihood": s.log_likelihood,
        "null log-likelihood": s.null_log_likelihood,
        "AIC": s.aic,
        "BIC": s.bic,
        "deviance": s.deviance,
        "R²" if summary.df_resid is not None or summary.ratio is None else "pseudo-R²": s.pseudo_r2,
    }
    found |= {name: f"{value:,.6g}" for name, value in named.items() if math.isfinite(value)}
    if s.dispersion != 1.0:
        found["dispersion"] = f"{s.dispersion:.5g}"
    return found


def summary_text(summary: "Summary") -> str:
    """Return the summary as text: facts in two columns, the table, and the notes.

    Names are never shortened, so that rows can be distinguished; long ones make the table wider than 79 columns.
    """
    given = [f"{name}: {value}" for name, value in facts(summary).items()]
    half = (len(given) + 1) // 2
    left, right = given[:half], [*given[half:], ""]
    lines = ["=" * WIDTH]
    lines += [f"{one:<40}{other}".rstrip() for one, other in zip(left, right, strict=False)]
    rows = zip(summary.names, body(summary), strict=True)
    table = [("", *header(summary)), *((name, *row) for name, row in rows)]
    widths = [max(len(row[j]) for row in table) for j in range(len(table[0]))]
    shown = ["  ".join([row[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(row[1:], widths[1:], strict=True))])
             for row in table]  # fmt: skip
    rule = "-" * max(WIDTH, len(shown[0]))
    lines += [rule.replace("-", "="), shown[0], rule, *shown[1:], rule.replace("-", "=")]
    for note in summary.notes:
        lines += textwrap.wrap(note, WIDTH, initial_indent="- ", subsequent_indent="  ")
    return "\n".join(lines)


def summary_html(summary: "Summary") -> str:
    """Return the summary as HTML, for notebooks."""
    above = "".join(
        f'<tr><th scope="row">{escape(name)}</th><td>{escape(value)}</td></tr>'
        for name, value in facts(summary).items()
    )
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in ("", *header(summary)))
    rows = "".join(
        f'<tr><th scope="row">{escape(name)}</th>' + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>"
        for name, row in zip(summary.names, body(summary), strict=True)
    )
    below = "".join(f"<li>{escape(note)}</li>" for note in summary.notes)
    return (
        f"<table><caption>Summary</caption><tbody>{above}</tbody></table>"
        f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table><ul>{below}</ul>"
    )
