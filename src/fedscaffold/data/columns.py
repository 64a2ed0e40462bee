"""Which of a table's columns are wanted, refused where they are not there."""

import difflib
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from fedscaffold.core.checks import given
from fedscaffold.core.collector import Collector
from fedscaffold.core.errors import InvalidInput
from fedscaffold.data.options import TableOptions

MOST_LISTED = 12


def some(values: Iterable[Any]) -> str:
    """The first few values, for a message."""
    texts = [repr(value) for value in values]
    shown = ", ".join(texts[:MOST_LISTED])
    return shown if len(texts) <= MOST_LISTED else f"{shown} and {len(texts) - MOST_LISTED} more"


def check_names(names: Sequence[str]) -> None:
    """Refuse columns that share a name."""
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise InvalidInput(f"the table has more than one column named {some(twice)}; rename all but one")


def pick(names: Sequence[str], wanted: Any) -> str:
    """A column's name, refused unless the table has it."""
    if isinstance(wanted, str) and wanted in names:
        return wanted
    close = difflib.get_close_matches(wanted if isinstance(wanted, str) else given(wanted), names, n=1)
    hint = f"; did you mean {close[0]!r}?" if close else ";"
    raise InvalidInput(f"the table has no column {given(wanted)}{hint} it has {some(names)}")


def pick_all(names: Sequence[str], wanted: Iterable[str]) -> list[str]:
    """Names of several columns, refused unless the table has all of them; the text names all that it lacks."""
    listed = list(wanted)
    missing = [name for name in listed if name not in names]
    if len(missing) > 1:
        raise InvalidInput(f"the table has no columns {some(missing)}; it has {some(names)}")
    return [pick(names, name) for name in listed]


def pick_features(names: Sequence[str], choices: TableOptions, problems: Collector) -> tuple[str, ...]:
    """The feature columns: those named, or all but target, client and the like, without those to drop."""
    target, client = choices.target, choices.client
    taken = {name: f"holds the {role}s" for role, name in choices.record_columns.items()}
    taken |= {target: "is the target", client: "names the client"}
    dropped, named = set[str](), []
    for name in choices.drop:
        with problems.catching():
            dropped.add(pick(names, name))
    for name in names if choices.features is None else choices.features:
        with problems.catching():
            named.append(pick(names, name))
    if choices.features is None:
        chosen = [name for name in named if name not in taken]
        none = f"the table has no feature columns besides {target!r} and {client!r}"
    else:
        chosen = named
        for name in dict.fromkeys(named):
            if name in taken:
                problems.add(f"column {name!r} {taken[name]} and cannot be a feature too")
            if named.count(name) > 1:
                problems.add(f"features names column {name!r} more than once")
        if not choices.features:
            problems.add("features is an empty list; name at least one column, or omit features=... to use all")
            return ()
        none = "no features are left"
    for name in dropped & {target, client}:
        problems.add(f"drop names column {name!r}, which is the target or the client")
    kept = tuple(dict.fromkeys(name for name in chosen if name not in dropped and name not in taken))
    if not kept and not problems.problems:
        problems.add(none)
    for option, columns in (("categorical", choices.categorical), ("reference", tuple(choices.reference))):
        for name in columns:
            with problems.catching():
                if pick(names, name) not in kept:
                    problems.add(f"{option} names column {name!r}, which is not a feature")
    return kept
