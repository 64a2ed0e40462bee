"""Tolerances of fits and studies: in standard errors, or relative to the pooled coefficients."""

import math
from typing import Any, Literal

from fedscaffold.core.checks import given, positive
from fedscaffold.core.errors import InvalidInput


def parse_tolerance(tolerance: Any) -> tuple[Literal["se", "relative"], float]:
    """Return the unit and the number of a tolerance: ("se", 0.05) of "se:0.05", ("relative", 0.005) of 0.005."""
    if isinstance(tolerance, str):
        unit, _, number = tolerance.partition(":")
        try:
            value = float(number)
        except ValueError:
            value = math.nan
        if unit.strip() != "se" or not 0.0 < value < math.inf:
            raise InvalidInput(f"tolerance must be a number below 1, or such as 'se:0.05', got {given(tolerance)}")
        return "se", value
    if not positive("tolerance", tolerance) < 1.0:
        raise InvalidInput(f"tolerance must be below 1, got {given(tolerance)}")
    return "relative", float(tolerance)
