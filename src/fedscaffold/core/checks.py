"""Checks of arguments, so that nonsense is refused before work starts."""

import math
from collections.abc import Sequence
from numbers import Integral, Real
from typing import Any

from fedscaffold.core.errors import InvalidInput, Option


def whole_number(name: str, value: Any, *, least: int) -> int:
    """Value as an int, refused unless it is a whole number >= least."""
    if isinstance(value, bool) or not isinstance(value, Integral) or value < least:
        raise InvalidInput(_named(name), f" must be a whole number of at least {least}, got {value!r}")
    return int(value)


def positive(name: str, value: Any) -> float:
    """Value as a float, refused unless it is finite and > 0."""
    if isinstance(value, bool) or not isinstance(value, Real) or not 0 < float(value) < math.inf:
        raise InvalidInput(_named(name), f" must be a positive number, got {value!r}")
    return float(value)


def not_negative(name: str, value: Any) -> float:
    """Value as a float, refused unless it is finite and >= 0."""
    if isinstance(value, bool) or not isinstance(value, Real) or not 0 <= float(value) < math.inf:
        raise InvalidInput(_named(name), f" must be a number of at least 0, got {value!r}")
    return float(value)


def seed_number(name: str, value: Any) -> int:
    """Value as an int, refused unless it is a whole number from 0 to 2⁶⁴ − 1."""
    if whole_number(name, value, least=0) >= 2**64:
        raise InvalidInput(_named(name), f" must be below 2**64, got {value}")
    return int(value)


def one_of(name: str, value: Any, allowed: Sequence[str]) -> None:
    """Refuse a value that is not among the allowed words."""
    if value not in allowed:
        words = [repr(word) for word in allowed]
        raise InvalidInput(_named(name), f" must be {', '.join(words[:-1])} or {words[-1]}, got {value!r}")


def _named(name: str) -> Option | str:
    """A parameter, which each door calls by its own name; "the weight of client 3" and the like as they are."""
    return Option(name) if name.isidentifier() else name


def check_problem_and_method(problem: Any, method: Any) -> None:
    """Refuse arguments that are not a problem and a method, in this order."""
    if hasattr(problem, "update_clients") and hasattr(method, "n_clients"):
        raise InvalidInput(
            f"the problem comes first and the method second; got {type(problem).__name__} and "
            f"{type(method).__name__} the other way round"
        )
    check_problem(problem)
    if not hasattr(method, "update_clients") or isinstance(method, type):
        raise InvalidInput(
            f"method must be a method such as Scaffold(step_size=0.05, local_steps=100), got {method!r}"
        )


def check_problem(problem: Any) -> None:
    """Refuse what is not a problem."""
    if not hasattr(problem, "n_clients"):
        raise InvalidInput(f"problem must be a problem such as fedscaffold.problems.Ridge(X, y), got {problem!r}")
