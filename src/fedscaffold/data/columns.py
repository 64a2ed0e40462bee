"""Which of a table's columns are wanted, refused where they are not there."""

import difflib
from collections.abc import Iterable, Sequence
from typing import Any

from fedscaffold.core.checks import given
from fedscaffold.core.errors import InvalidInput

MOST_LISTED = 12


def some(values: Iterable[Any]) -> str:
    """The first few values, for a message."""
    texts = [repr(value) for value in values]
    shown = ", ".join(texts[:MOST_LISTED])
    return shown if len(texts) <= MOST_LISTED else f"{shown} and {len(texts) - MOST_LISTED} more"


def check_names(names: Sequence[str]) -> None:
    """Refuse two columns of one name."""
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise InvalidInput(f"the table has more than one column named {name!r}; rename one of them")
        seen.add(name)


def pick(names: Sequence[str], wanted: Any) -> str:
    """A column's name, refused unless the table has it."""
    if isinstance(wanted, str) and wanted in names:
        return wanted
    close = difflib.get_close_matches(wanted if isinstance(wanted, str) else given(wanted), names, n=1)
    hint = f"; did you mean {close[0]!r}?" if close else ";"
    raise InvalidInput(f"the table has no column {given(wanted)}{hint} it has {some(names)}")


def pick_features(
    names: Sequence[str], features: Sequence[str] | None, *, target: str, client: str
) -> tuple[str, ...]:
    """The feature columns: those named, or all but target and client."""
    if features is None:
        chosen = tuple(name for name in names if name not in (target, client))
        if not chosen:
            raise InvalidInput(f"the table has no feature columns besides {target!r} and {client!r}")
        return chosen
    if isinstance(features, str):
        raise InvalidInput(f"features must be a list of column names, got the text {features!r}")
    chosen = tuple(pick(names, name) for name in features)
    if not chosen:
        raise InvalidInput("features is an empty list; name at least one column, or leave it out for all")
    for name in chosen:
        if name == target:
            raise InvalidInput(f"column {name!r} is the target and cannot be a feature too")
        if name == client:
            raise InvalidInput(f"column {name!r} names the client and cannot be a feature too")
        if chosen.count(name) > 1:
            raise InvalidInput(f"features names column {name!r} more than once")
    return chosen
