"""Every statement of the paper against measurement: one row each, with a verdict."""

import re
from collections.abc import Callable

from fedscaffold.core.display import Advance
from fedscaffold.paper.verify import appendix, assumptions, convergence, experiment, remarks, stationary, table1
from fedscaffold.paper.verify.rows import StatementRow, failures
from fedscaffold.paper.verify.settings import DEFAULT, FULL, Budget, Kind, strict

__all__ = ["DEFAULT", "FULL", "Budget", "StatementRow", "failures", "verify"]


def _stationary(kind: Kind) -> Callable[[Budget], list[StatementRow]]:
    """Return the rows of one simulation, on Lemma 4.6 to Theorem 4.8, all of Section 5, and their appendices."""

    def rows(budget: Budget) -> list[StatementRow]:
        found = stationary.simulate(strict(kind), budget)
        rows = [*stationary.bound_rows(found), *stationary.expansion_rows(found, budget)]
        return [*rows, *appendix.chain_rows(found, budget)]

    return rows


PARTS: tuple[tuple[int, Callable[[Budget], list[StatementRow]]], ...] = (  # with rough shares of the time
    (1, assumptions.rows),
    (9, convergence.rows),
    (8, _stationary("ridge")),
    (12, _stationary("logistic")),
    (8, appendix.rows),
    (3, remarks.rows),
    (8, table1.rows),
    (12, experiment.rows),
    (6, experiment.figure_rows),
)
ORDER = ("A", "2", "4", "5", "B", "C", "E", "F", "Exact", "First", "Figure", "Table")  # sections, then the rest


def verify(budget: Budget = DEFAULT, *, advance: Advance = lambda done, total: None) -> list[StatementRow]:
    """Check all statements, and return their rows in the paper's order.

    Parameters
    ----------
    budget
        How much to simulate.
    advance
        Called with (done, total) after each part.

    Returns
    -------
    list of StatementRow
        One for each statement and setting; `failures` lists the ones that fail.
    """
    total, done, found = sum(share for share, _ in PARTS), 0, list[StatementRow]()
    advance(0, total)
    for share, rows in PARTS:
        found += rows(budget)
        done += share
        advance(done, total)
    return sorted(found, key=_place)


def _place(row: StatementRow) -> tuple[int, tuple[int, ...]]:
    """Return the place of a row: its section's, whatever its kind, then its number's."""
    section = re.search(r"(\w)\.\d", row.statement)
    start = section.group(1) if section else row.statement.split()[0].rstrip("123456")
    return ORDER.index(start), tuple(int(part) for part in re.findall(r"\d+", row.statement))
