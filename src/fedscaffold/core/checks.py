"""Checks of arguments, so that nonsense is refused before work starts."""

import math
from numbers import Integral, Real
from typing import Any

from fedscaffold.core.errors import InvalidInput


def whole_number(name: str, value: Any, *, least: int) -> int:
    """Value as an int, refused unless it is a whole number >= least."""
    if isinstance(value, bool) or not isinstance(value, Integral) or value < least:
        raise InvalidInput(f"{name} must be a whole number of at least {least}, got {value!r}")
    return int(value)


def positive(name: str, value: Any) -> float:
    """Value as a float, refused unless it is finite and > 0."""
    if isinstance(value, bool) or not isinstance(value, Real) or not 0 < float(value) < math.inf:
        raise InvalidInput(f"{name} must be a positive number, got {value!r}")
    return float(value)


def not_negative(name: str, value: Any) -> float:
    """Value as a float, refused unless it is finite and >= 0."""
    if isinstance(value, bool) or not isinstance(value, Real) or not 0 <= float(value) < math.inf:
        raise InvalidInput(f"{name} must be a number of at least 0, got {value!r}")
    return float(value)


def seed_number(name: str, value: Any) -> int:
    """Value as an int, refused unless it is a whole number from 0 to 2⁶⁴ − 1."""
    if whole_number(name, value, least=0) >= 2**64:
        raise InvalidInput(f"{name} must be below 2**64, got {value}")
    return int(value)
