"""How clients that hold tables encode them alike, so that their models have the same parameters."""

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np

from fedscaffold.core.checks import not_negative, positive
from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.files import Fields, write_text
from fedscaffold.data.encoded import EncodedProblem, problem_class
from fedscaffold.data.encoding import Encoding, encode_table
from fedscaffold.data.files import read_table

FORMAT = "fedscaffold agreement 2"


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """What clients that hold tables must agree on before they start: columns, their scales, classes, the penalty.

    Stored as JSON, so that people at each site can read it and sign for it.

    Parameters
    ----------
    encoding
        How rows become numbers: the same features in the same order for every client.
    l2
        Strength of the l2 penalty, at least 0.
    target_shift, target_scale
        For a numeric target y: the model is fitted to (y − target_shift)/target_scale.
    evaluate
        Share of each site's rows that a second training leaves out to judge the model.
    client_intercepts
        Whether each client has an intercept of its own, which it tells nobody; then the encoding has none.
    limit
        Where the encoding was made from public bounds instead of statistics of the rows: encoded numbers beyond
        this, up or down, count as the limit, and unknown values of a category as none of the known ones.
    target_limits
        The public range of a numeric target, beyond which targets count as its nearer end; None for none.

    Examples
    --------
    >>> import pyarrow as pa
    >>> from fedscaffold.data.encoding import Encoding, Number
    >>> from fedscaffold.federation import Agreement
    >>> columns = (Number(name="age", shift=50.0, scale=10.0),)
    >>> encoding = Encoding(columns=columns, target="dose", client="site", intercept=True)
    >>> agreement = Agreement(encoding=encoding, l2=0.01)
    >>> agreement.dim
    2
    >>> agreement.problem(pa.table({"age": [40.0, 60.0], "dose": [1.0, 2.0]})).x
    array([[-1.,  1.],
           [ 1.,  1.]])
    """

    encoding: Encoding
    l2: float
    target_shift: float = 0.0
    target_scale: float = 1.0
    evaluate: float = 0.0
    client_intercepts: bool = False
    limit: float | None = None
    target_limits: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        not_negative("l2", self.l2)
        if self.limit is not None:
            positive("limit", self.limit)
        positive("target_scale", self.target_scale)
        if not np.isfinite(self.target_shift):
            raise InvalidInput(f"target_shift must be a finite number, got {self.target_shift!r}")

    @property
    def dim(self) -> int:
        """d, the number of entries of θ: the features, for three classes or more times the classes."""
        classes = self.encoding.classes
        return self.encoding.dim * (len(classes) if classes is not None and len(classes) > 2 else 1)

    def problem(self, table: Any) -> EncodedProblem:
        """The problem of one client, from its rows.

        Parameters
        ----------
        table
            A frame of any library that `data.from_frame` takes; a column that names the client is not needed.
        """
        x, y = encode_table(
            table, self.encoding, target_shift=self.target_shift, target_scale=self.target_scale,
            limit=self.limit, limits=self.target_limits,
        )  # fmt: skip
        if len(x) == 0:
            raise InvalidInput("the client's table has no rows")
        offsets = np.array([0, len(x)], dtype=np.int64)
        return problem_class(self.encoding)(
            x, y, offsets, l2=self.l2, weights=np.ones(1), client_names=("this client",), encoding=self.encoding
        )

    def read(self, path: str | os.PathLike[str]) -> EncodedProblem:
        """The problem of one client, from its .csv or .parquet file at `path`."""
        try:
            return self.problem(read_table(path))
        except InvalidInput as error:
            raise InvalidInput(f"{path}: {error}") from None

    def to_json(self) -> dict[str, Any]:
        """The agreement as values that JSON can hold."""
        return {
            "format": FORMAT,
            "l2": self.l2,
            "target_shift": self.target_shift,
            "target_scale": self.target_scale,
            "evaluate": self.evaluate,
            **({"client_intercepts": True} if self.client_intercepts else {}),
            **({} if self.limit is None else {"limit": self.limit}),
            **({} if self.target_limits is None else {"target_limits": list(self.target_limits)}),
            "encoding": json.loads(self.encoding.to_json()),
        }

    @classmethod
    def from_json(cls, values: Any, source: str = "the agreement") -> Self:
        """The agreement that `to_json` gave, validated field by field."""
        fields = Fields(values, source)
        fields.only(
            "format", "l2", "target_shift", "target_scale", "evaluate", "encoding", "client_intercepts", "limit",
            "target_limits",
        )  # fmt: skip
        fields.choice("format", FORMAT)
        return cls(
            encoding=Encoding.from_json(json.dumps(fields.value("encoding"))),
            l2=fields.number("l2", least=0.0),
            target_shift=fields.number("target_shift"),
            target_scale=fields.number("target_scale", least=0.0),
            evaluate=fields.number("evaluate", least=0.0, most=1.0),
            client_intercepts=fields.flag("client_intercepts") if "client_intercepts" in fields else False,
            limit=fields.number("limit", least=0.0) if "limit" in fields else None,
            target_limits=_limits(fields) if "target_limits" in fields else None,
        )

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the agreement to a JSON file at `path`."""
        write_text(path, json.dumps(self.to_json(), indent=1, allow_nan=False))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read an agreement that `save` wrote to `path`."""
        try:
            return cls.from_json(json.loads(Path(path).read_text(encoding="utf-8")), str(path))
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            raise InvalidInput(f"{path} is not an agreement that fedscaffold wrote: {error}") from None


def _limits(fields: Fields) -> tuple[float, float]:
    """The public range of a numeric target."""
    value = fields.value("target_limits")
    if not isinstance(value, list | tuple) or len(value) != 2:
        raise fields.error(f"{fields.source}: target_limits must be two numbers")
    ends = Fields({"low": value[0], "high": value[1]}, f"{fields.source}: target_limits")
    low = ends.number("low")
    return low, ends.number("high", least=low)
