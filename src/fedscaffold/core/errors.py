"""Errors that fedscaffold raises, each with a message that says what to do about it.

A message names parameters as `Option`, not as text, so that each door calls them by its own names: `min_rows=1` in
Python, `--min-rows 1` on the command line.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Union

Spelling = Callable[["Option"], str | None]


@dataclass(frozen=True)
class Option:
    """A parameter that a message names, with a value or without one.

    Parameters
    ----------
    name
        The parameter's name in Python.
    value
        The value that the message speaks of; the parameter alone unless given.

    Examples
    --------
    >>> from fedscaffold.core.errors import InvalidInput, Option
    >>> remedies = ["leave it out", ("take ", Option("min_rows", 1))]
    >>> error = InvalidInput("client 'A' has only 1 row", remedies=remedies)
    >>> print(error)
    client 'A' has only 1 row; leave it out, or take min_rows=1
    >>> error.told(lambda option: f"--{option.name.replace('_', '-')} {option.value}")
    "client 'A' has only 1 row; leave it out, or take --min-rows 1"
    >>> error.told(lambda option: None)
    "client 'A' has only 1 row; leave it out"
    """

    name: str
    value: Any = ...

    def __str__(self) -> str:
        return self.name if self.value is ... else f"{self.name}={self.value!r}"


Part = Union[str, Option, "Message"]
Remedy = str | Sequence[Part]


class Message(Exception):
    """A message of parts: text, parameters, and other messages.

    Parameters
    ----------
    parts
        What was wrong.
    remedies
        What the reader can do, each a text or a sequence of parts. Where a door lacks the parameter that one
        names, it is left out.
    """

    def __init__(self, *parts: Part, remedies: Sequence[Remedy] = ()) -> None:
        super().__init__(*parts)
        self.remedies = tuple(remedies)

    def __str__(self) -> str:
        return self.told(str)

    def told(self, spell: Spelling) -> str:
        """The message in a door's words: `spell` gives a parameter's name there, None where it is missing."""
        what = "".join(_told(part, spell) or _plain(part) for part in self.args)
        ways = []
        for remedy in self.remedies:
            parts = [_told(part, spell) for part in ([remedy] if isinstance(remedy, str) else remedy)]
            if None not in parts:
                ways.append("".join(map(str, parts)))
        if not ways:
            return what
        return f"{what}; {ways[0]}" if len(ways) == 1 else f"{what}; {', '.join(ways[:-1])}, or {ways[-1]}"


def _told(part: Any, spell: Spelling) -> str | None:
    if isinstance(part, Option):
        return spell(part)
    return part.told(spell) if isinstance(part, Message) else str(part)


def _plain(part: Any) -> str:
    """The words for a parameter that a door lacks."""
    return part.name.replace("_", " ") if isinstance(part, Option) else ""


class DataWarning(Message, UserWarning):
    """Something in a table that is probably not meant, though it can be used."""


class FedScaffoldError(Message):
    """Any error that fedscaffold raises on purpose."""


class InvalidInput(FedScaffoldError, ValueError):
    """An argument that cannot be used; raised before any work starts."""


class NoPlateau(InvalidInput):
    """A method that has no plateau, as far as theory sees: it does not contract, or its noise feeds on itself."""


class OutOfReach(InvalidInput):
    """A target that no setting within the limits of a plan reaches."""


class MissingDependency(FedScaffoldError, ImportError):
    """An optional package is needed and not installed."""


class CheckpointMismatch(FedScaffoldError):
    """The checkpoint belongs to another run, or is not a checkpoint."""


class InUse(FedScaffoldError):
    """A file or folder that another process is using."""


class NotWritten(FedScaffoldError):
    """A file that could not be written, for example since the disk is full; its earlier version is kept."""


class EngineFailed(FedScaffoldError):
    """An engine that could not start, such as Ray where no cluster answers."""


class NotStationary(FedScaffoldError):
    """A run was too short: it has not reached its stationary regime, so its limit cannot be estimated."""


class Diverged(FedScaffoldError, ArithmeticError):
    """A run whose model grew beyond all bounds, or became NaN, and was stopped.

    Attributes
    ----------
    round
        Number of the round in which it was noticed.
    client
        The client whose local model was largest.
    safe_step_size
        A step size with which the method does not diverge; 0 if none is known.
    """

    def __init__(self, message: str, *, round: int, client: int, safe_step_size: float) -> None:
        super().__init__(message)
        self.round = round
        self.client = client
        self.safe_step_size = safe_step_size


class UnreliablePrediction(UserWarning):
    """A prediction that leaves out more than a few percent; see `theory.Prediction.reliability`."""
