"""Rows as text: for the terminal, as Markdown, and as JSON."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fedscaffold.core import provenance
from fedscaffold.core.storage.files import check_writable, folder_at, write_text
from fedscaffold.paper.verify.rows import StatementRow, failures

FILES = ("verify.md", "verify.json")
HEADER = ("statement", "claim", "setting", "predicted", "measured", "verdict")


def number(value: float) -> str:
    """A number with three or four significant digits."""
    return f"{value:.4g}" if abs(value) >= 0.01 or value == 0.0 else f"{value:.3g}"


def predicted(row: StatementRow) -> str:
    """The relation and the number that measured must stand in it to."""
    if row.relation == "is":
        return "yes"
    within = f" within {100 * row.tolerance:.3g} %" if row.relation == "≈" else ""
    return f"{row.relation} {number(row.predicted)}{within}"


def measured(row: StatementRow) -> str:
    """Value ± standard error, for arrays how far off they are, and what else was found; or that alone."""
    if row.relation == "is":
        return row.finding
    text = number(row.measured)
    if row.standard_error > 0.0:
        text += f" ± {row.standard_error:.2g}"
    if row.difference is not None and row.predicted != 0.0:
        text += f", {100 * row.difference / abs(row.predicted):.2g} % off"
    return f"{text} ({row.finding})" if row.finding else text


def other(row: StatementRow) -> str:
    """The printed formula and whether it agrees; empty if there is none."""
    if row.printed is None:
        return ""
    off = ""
    if row.relation == "≈" and row.measured != 0.0:
        difference = row.printed.difference
        away = abs(row.measured - row.printed.predicted) if difference is None else difference
        off = f", {100 * away / abs(row.measured):.2g} % off"
    return f"{row.printed.label}: {row.printed_verdict} ({number(row.printed.predicted)}{off})"


def missed(row: StatementRow) -> str:
    """Conditions that fail, with the factor; empty if all hold."""
    return ", ".join(f"{condition.name} missed {condition.missed_by:.3g} times" for condition in row.missed)


def summary(rows: Sequence[StatementRow]) -> str:
    """One sentence, and one for each failure."""
    held = sum(row.verdict == "holds" for row in rows)
    outside = sum(row.verdict == "not claimed" for row in rows)
    untested = sum(row.verdict == "not tested" for row in rows)
    parts = [f"{held} rows hold"]
    parts += [f"{outside} are outside their statement's conditions"] if outside else []
    parts += [f"{untested} untested at these numbers of clients"] if untested else []
    problems = failures(rows)
    parts.append(f"{len(problems)} fail" + ("s" if len(problems) == 1 else "") if problems else "none fails")
    return ", ".join(parts) + "." + "".join(f"\nFAILS: {problem}" for problem in problems)


def to_markdown(rows: Sequence[StatementRow]) -> str:
    """All rows as a Markdown table with all columns."""
    lines = ["| " + " | ".join(HEADER) + " |", "|---" * len(HEADER) + "|"]
    for row in rows:
        verdict = "; ".join(part for part in (row.verdict, other(row), missed(row)) if part)
        claim = row.claim if row.printed is None else f"{row.claim} ({row.printed.label}: {row.printed.formula})"
        cells = (row.statement, claim, row.setting, predicted(row), measured(row), verdict)
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines) + "\n\n" + summary(rows).replace("\n", "\n\n") + "\n"


def to_json(rows: Sequence[StatementRow], provenance: dict[str, Any]) -> str:
    """Return every field of every row, with verdicts."""
    content = [
        {
            **asdict(row),
            "verdict": row.verdict,
            "printed_verdict": row.printed_verdict,
        }
        for row in rows
    ]
    return json.dumps({"provenance": provenance, "rows": content}, indent=2, ensure_ascii=False) + "\n"


def check_folder(out: Path) -> None:
    """Make the folder where it is missing, and refuse one that cannot be written, before any work."""
    folder_at(out)
    for name in FILES:
        check_writable(out / name)


def save(rows: Sequence[StatementRow], out: Path, settings: dict[str, Any]) -> None:
    """Write the table to verify.md, and to verify.json with the settings and where it came from."""
    texts = (to_markdown(rows), to_json(rows, {**settings, **provenance.origin()}))
    for name, text in zip(FILES, texts, strict=True):
        write_text(out / name, text)
