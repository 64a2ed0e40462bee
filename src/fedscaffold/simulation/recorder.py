"""Collects what the observers see, round after round."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from fedscaffold.core.types import Array, Observer


class Recorder:
    """The observers' values so far; those kept for every round grow along axis 1."""

    def __init__(self, observers: Iterable[Observer], problem: Any, earlier: Mapping[str, Array]) -> None:
        self._watches = [(observer.name, observer.keep, observer.watch(problem)) for observer in observers]
        self._values: dict[str, list[Array]] = {}
        self.round: int | None = None  # the last one seen; None while looking
        for name, keep, _ in self._watches:
            if name in earlier:
                self._values[name] = list(np.moveaxis(earlier[name], 1, 0)) if keep == "every" else [earlier[name]]

    def see(self, round: int, theta: Array) -> None:
        """Let every observer see θ at the end of a round (round 0: the start)."""
        self.round = None
        for name, keep, watch in self._watches:
            values = self._values.setdefault(name, [])
            value = watch(round, theta, values[-1] if values else None)
            if keep == "last":
                values.clear()
            values.append(value)
        self.round = round

    def records(self) -> dict[str, Array]:
        """Arrays by name."""
        return {
            name: np.stack(self._values[name], axis=1) if keep == "every" else self._values[name][0]
            for name, keep, _ in self._watches
        }
