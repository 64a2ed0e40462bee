"""Summaries as plain values that go into JSON files."""

import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np

from fedscaffold.core.errors import InvalidInput
from fedscaffold.inference.closing import FitStatistics
from fedscaffold.inference.layout import COLUMNS
from fedscaffold.inference.summary import Summary

MOST_IN_MATRIX = 100  # coefficients up to which the whole covariance matrix is kept


def summary_to_plain(summary: Summary) -> dict[str, Any]:
    """Return a summary as plain values; of many coefficients without their covariances."""
    k = len(summary.names)
    rows = zip(*(getattr(summary, name).tolist() for name in COLUMNS), strict=True)
    return {
        "level": summary.level,
        "df_resid": summary.df_resid,
        "coefficients": {
            name: dict(zip(COLUMNS, map(_finite, row), strict=True))
            for name, row in zip(summary.names, rows, strict=True)
        },
        "intercepts": [summary.names[j] for j in np.flatnonzero(summary.intercepts).tolist()],
        "covariance": summary.cov.tolist() if k <= MOST_IN_MATRIX else None,
        "statistics": {name: _finite(value) for name, value in asdict(summary.statistics).items()},
        "ratio": summary.ratio,
        "facts": dict(summary.facts),
        "notes": list(summary.notes),
    }


def summary_from_plain(found: Mapping[str, Any]) -> Summary:
    """Return the summary that `summary_to_plain` was given; raise for anything else."""
    try:
        names = tuple(found["coefficients"])
        column = {
            name: np.array([_number(found["coefficients"][own][name]) for own in names])
            for name in ("coef", "se", "optimisation_error")
        }
        k, matrix = len(names), found["covariance"]
        return Summary(
            names=names,
            cov=np.full((k, k), np.nan) if matrix is None else np.array(matrix, dtype=np.float64).reshape(k, k),
            intercepts=np.array([name in found["intercepts"] for name in names]),
            level=float(found["level"]),
            df_resid=None if found["df_resid"] is None else int(found["df_resid"]),
            statistics=FitStatistics(**{name: _number(value) for name, value in found["statistics"].items()}),
            ratio=found["ratio"],
            facts=dict(found["facts"]),
            notes=tuple(found["notes"]),
            **column,
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InvalidInput(f"these are not standard errors that fedscaffold wrote: {error}") from None


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _number(value: float | None) -> float:
    return math.nan if value is None else float(value)
