"""Collects the values of a run's observers, round after round."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from fedscaffold.core.protocols import Observer
from fedscaffold.core.types import Array


class Recorder:
    """The observers' values so far; those kept for every round grow along axis 1."""

    def __init__(self, observers: Iterable[Observer], problem: Any, earlier: Mapping[str, Array]) -> None:
        self._watches = [(observer.name, observer.keep, observer.watch(problem)) for observer in observers]
        self._values: dict[str, list[Array]] = {}
        for name, keep, _ in self._watches:
            if name in earlier:
                self._values[name] = list(np.moveaxis(earlier[name], 1, 0)) if keep == "every" else [earlier[name]]

    def record(self, round: int, theta: Array) -> None:
        """Let every observer see θ at the end of a round (round 0: the start)."""
        for name, keep, watch in self._watches:
            values = self._values.setdefault(name, [])
            value = watch(round, theta, values[-1] if values else None)
            if keep == "last":
                values.clear()
            values.append(value)

    def metrics(self) -> dict[str, Array]:
        """The recorded arrays, by the observers' names."""
        return {
            name: np.stack(self._values[name], axis=1) if keep == "every" else self._values[name][0]
            for name, keep, _ in self._watches
        }
