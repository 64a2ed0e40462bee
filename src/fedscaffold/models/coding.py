"""The coding of tables: how rows of all clients become numbers, so that models have the same coefficients."""

import json
import math
import os
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Self

import numpy as np

from fedscaffold.core.checks import not_negative, positive
from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.files import Fields, write_text
from fedscaffold.data.encoded import EncodedProblem, problem_class
from fedscaffold.data.encoding import Encoding, encode_table
from fedscaffold.data.files import read_table
from fedscaffold.problems.base import OFFSET, TARGET, WEIGHT

FORMAT = "fedscaffold agreement 3"


@dataclass(frozen=True, kw_only=True)
class Coding:
    """Columns, their scales, classes and the penalty: all that clients with tables must agree on.

    Stored as JSON, so that people at each site can read it and sign for it.

    Parameters
    ----------
    encoding
        How rows become numbers: the same features in the same order for every client.
    l2
        Strength of the l2 penalty, at least 0.
    target_shift, target_scale
        For a numeric target y: the model is fitted to (y − target_shift)/target_scale.
    client_intercepts
        Whether each client has an intercept, which it never sends; then the encoding has none.
    limit
        For an encoding from public bounds instead of statistics of the rows: encoded numbers beyond this, up or
        down, count as the limit, and unknown values of a category as none of the known ones.
    target_limits
        The public range of a numeric target, beyond which targets count as its nearer end; None for none.

    Examples
    --------
    >>> import pyarrow as pa
    >>> from fedscaffold.data.encoding import Encoding, Number
    >>> from fedscaffold.models import Coding
    >>> columns = (Number(name="age", shift=50.0, scale=10.0),)
    >>> encoding = Encoding(columns=columns, target="dose", client="site", intercept=True)
    >>> coding = Coding(encoding=encoding, l2=0.01)
    >>> coding.dim
    2
    >>> coding.problem(pa.table({"age": [40.0, 60.0], "dose": [1.0, 2.0]})).x
    array([[-1.,  1.],
           [ 1.,  1.]])
    """

    encoding: Encoding
    l2: float
    target_shift: float = 0.0
    target_scale: float = 1.0
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

    @classmethod
    def of_problem(cls, problem: EncodedProblem, **more: Any) -> Self:
        """Return the coding of a problem's rows, with `target_shift`, `target_scale` and other fields."""
        return cls(encoding=problem.encoding, l2=problem.l2, **more)

    def problem(self, table: Any) -> EncodedProblem:
        """Return the problem of one client, from its rows.

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
        """Return the problem of one client, from its .csv or .parquet file at `path`."""
        try:
            return self.problem(read_table(path))
        except InvalidInput as error:
            raise InvalidInput(f"{path}: {error}") from None

    def to_json(self) -> dict[str, Any]:
        """Return the coding as values that JSON can hold; settings that are the usual ones are left out."""
        usual = {each.name: each.default for each in fields(self)}
        values = {name: value for name, value in vars(self).items() if value != usual[name]}
        return {"format": FORMAT, **values, "encoding": json.loads(self.encoding.to_json())}

    @classmethod
    def from_json(cls, values: Any, source: str = "the agreement") -> Self:
        """Return the coding that `to_json` gave, validated field by field."""
        found = Fields(values, source)
        found.only("format", *(each.name for each in fields(cls)))
        found.choice("format", FORMAT)
        limits = None
        if "target_limits" in found:
            low, high = found.items("target_limits", count=2)
            ends = Fields({"low": low, "high": high}, f"{source}: target_limits")
            limits = ends.number("low"), ends.number("high", least=ends.number("low"))
        numbers = {name: found.number(name) for name in ("target_shift", "target_scale", "limit") if name in found}
        return cls(
            encoding=Encoding.from_json(json.dumps(found.value("encoding"))),
            l2=found.number("l2", least=0.0),
            client_intercepts=found.flag("client_intercepts") if "client_intercepts" in found else False,
            target_limits=limits,
            **numbers,
        )

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the coding to a JSON file at `path`."""
        write_text(path, json.dumps(self.to_json(), indent=1, allow_nan=False))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read a coding that `save` wrote to `path`."""
        try:
            return cls.from_json(json.loads(Path(path).read_text(encoding="utf-8")), str(path))
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            raise InvalidInput(f"{path} is not an agreement that fedscaffold wrote: {error}") from None


def standardize_target(problem: EncodedProblem) -> tuple[EncodedProblem, float, float]:
    """Return the problem with margins (z − shift)/scale in place of z, the shift and the scale.

    θ = 0 is then a sensible start. Of numbers these are the mean and the deviation; of counts and amounts the
    logarithm of the mean rate, which becomes a part of the offsets, and 1; of classes and times 0 and 1.

    Raises
    ------
    InvalidInput
        If a numeric target is the same in all rows.
    """
    family = problem.encoding.family
    if family.classes or family.baseline:
        return problem, 0.0, 1.0
    shift, scale = _mean_rate(problem) if family.log_link else _mean_and_deviation(problem)
    # in memory, also if the rows lie in a file
    return problem.with_records(y=family.standardized(problem.y, shift, scale)), shift, scale


def _mean_rate(problem: EncodedProblem) -> tuple[float, float]:
    total = exposure = 0.0
    for rows, share in problem.shares(problem.y):
        y = problem.y[rows]
        own = share * y[:, WEIGHT]
        total, exposure = total + float(own @ y[:, TARGET]), exposure + float(own @ np.exp(y[:, OFFSET]))
    return math.log(total / exposure), 1.0


def _mean_and_deviation(problem: EncodedProblem) -> tuple[float, float]:
    targets = problem.targets
    mean = sum(float(share @ targets[rows]) for rows, share in problem.shares(problem.y))
    square = sum(float(share @ (targets[rows] - mean) ** 2) for rows, share in problem.shares(problem.y))
    deviation = float(np.sqrt(square))
    if deviation <= 1e-12 * abs(mean):
        raise InvalidInput(
            f"the target {problem.encoding.target!r} is the same in all rows; choose a column that varies"
        )
    return mean, deviation


Agreement = Coding  # its name in federations of any task
