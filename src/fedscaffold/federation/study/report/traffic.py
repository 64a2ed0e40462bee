"""How much left each site, by phase."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedscaffold.federation.payloads import Payload

BYTES_PER_NUMBER = 8


@dataclass(frozen=True, kw_only=True)
class Traffic:
    """Messages of one kind, and their size.

    Parameters
    ----------
    messages
        How many.
    numbers
        Numbers in their vectors.
    bytes
        Bytes of vectors and values, without what a transport adds.

    Examples
    --------
    >>> from fedscaffold.federation.study.report.traffic import Traffic
    >>> Traffic(messages=1, numbers=3, bytes=30) + Traffic(messages=1, numbers=0, bytes=12)
    Traffic(messages=2, numbers=3, bytes=42)
    """

    messages: int = 0
    numbers: int = 0
    bytes: int = 0

    def __add__(self, other: "Traffic") -> "Traffic":
        return Traffic(
            messages=self.messages + other.messages,
            numbers=self.numbers + other.numbers,
            bytes=self.bytes + other.bytes,
        )

    @property
    def numbers_per_message(self) -> float:
        """Mean number of numbers in the vectors of a message."""
        return self.numbers / self.messages

    @classmethod
    def of(cls, payload: Payload) -> "Traffic":
        """One message: eight bytes for each number of its vectors, and its values as JSON text."""
        numbers = sum(int(np.size(array)) for array in payload.arrays.values())
        text = len(json.dumps(dict(payload.values), default=str).encode())
        return cls(messages=1, numbers=numbers, bytes=BYTES_PER_NUMBER * numbers + text)


ByPhase = Mapping[str, Traffic]


def traffic_of_log(log: Iterable[Mapping[str, Any]]) -> dict[str, Traffic]:
    """What left a site, by phase, from its log."""
    found: dict[str, Traffic] = {}
    for entry in log:
        numbers = sum(int(vector["numbers"]) for vector in entry["vectors"].values())
        one = Traffic(messages=1, numbers=numbers, bytes=int(entry["bytes"]))
        found[entry["phase"]] = found.get(entry["phase"], Traffic()) + one
    return found
