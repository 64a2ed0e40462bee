"""A client's table, encoded as all clients agreed."""

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np

from fedscaffold.core.checks import not_negative, positive
from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.files import replacing
from fedscaffold.data.arrow import labels
from fedscaffold.data.columns import check_names, pick, some
from fedscaffold.data.encoded import EncodedProblem, problem_class
from fedscaffold.data.encoding import Encoding
from fedscaffold.data.files import read_table
from fedscaffold.data.open import L2

FORMAT = "fedscaffold agreement 1"


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """What clients that hold tables must agree on before they start: columns, their scales, classes, the penalty.

    Kept as JSON, so that it can be read, signed for and handed round.

    Parameters
    ----------
    encoding
        How rows become numbers; the same features in the same order for everyone.
    l2
        Strength of the penalty.
    target_shift, target_scale
        For a numeric target: (y − shift)/scale is what is fitted.
    """

    encoding: Encoding
    l2: float = L2
    target_shift: float = 0.0
    target_scale: float = 1.0

    def __post_init__(self) -> None:
        not_negative("l2", self.l2)
        positive("target_scale", self.target_scale)
        if not np.isfinite(self.target_shift):
            raise InvalidInput(f"target_shift must be a finite number, got {self.target_shift!r}")

    @property
    def dim(self) -> int:
        """How many numbers θ has."""
        return self.encoding.dim * self.encoding.n_vectors

    def problem(self, table: Any) -> EncodedProblem:
        """The problem of one client, from its rows: a frame of any library that `data.from_frame` takes.

        The client column need not be there.
        """
        from fedscaffold.data.arrow import blocks, by_name, frame_source

        x = self.encoding.encode(table)
        if len(x) == 0:
            raise InvalidInput("the client's table has no rows")
        source = frame_source(table)
        check_names(source.names)
        target = pick(source.names, self.encoding.target)
        parts = [self._target(by_name(block)[target]) for block in blocks(source.open([target])([target]))]
        y, offsets = np.concatenate(parts), np.array([0, len(x)], dtype=np.int64)
        return problem_class(self.encoding)(
            x, y, offsets, l2=self.l2, weights=np.ones(1), client_names=("this client",), encoding=self.encoding
        )

    def read(self, path: str | os.PathLike[str]) -> EncodedProblem:
        """The problem of one client, from its .csv or .parquet file."""
        try:
            return self.problem(read_table(path))
        except InvalidInput as error:
            raise InvalidInput(f"{path}: {error}") from None

    def _target(self, column: Any) -> Any:
        out = np.empty(len(column))
        name, classes = self.encoding.target, self.encoding.classes
        if classes is not None:
            unknown = set(labels(name, column).unique().to_pylist()) - set(classes)
            if unknown:
                raise InvalidInput(
                    f"the target {name!r} has the values {some(unknown)}, agreed were {some(classes)} only"
                )
        self.encoding.put_target(column, out)
        if not np.isfinite(out).all():
            raise InvalidInput(f"the target {name!r} has missing or infinite values; drop those rows first")
        return out if classes is not None else (out - self.target_shift) / self.target_scale

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write it as JSON."""
        found = {
            "format": FORMAT,
            "l2": self.l2,
            "target_shift": self.target_shift,
            "target_scale": self.target_scale,
            "encoding": json.loads(self.encoding.to_json()),
        }
        with replacing(path) as temporary:
            temporary.write_text(json.dumps(found, indent=1, allow_nan=False), encoding="utf-8")

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read what `save` wrote."""
        try:
            found = json.loads(Path(path).read_text(encoding="utf-8"))
            if found.pop("format") != FORMAT:
                raise KeyError("format")
            encoding = Encoding.from_json(json.dumps(found.pop("encoding")))
            return cls(encoding=encoding, **found)
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            raise InvalidInput(f"{path} is not an agreement that fedscaffold wrote: {error}") from None
