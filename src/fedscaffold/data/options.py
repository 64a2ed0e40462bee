"""What readers of files share: their options, and files that must be there."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TypedDict

from fedscaffold.core.errors import InvalidInput
from fedscaffold.data.build import Kind, Missing
from fedscaffold.data.framed import Weights


class Fit(TypedDict, total=False):
    """The options that do not name columns; see `from_frame`."""

    kind: Kind
    l2: float
    weights: Weights
    missing: Missing
    standardize: bool
    intercept: bool
    min_rows: int


class Options(Fit, total=False):
    """All other options of `from_frame`."""

    features: Sequence[str] | None
    categorical: Sequence[str]
    max_categories: int


def existing(path: str | os.PathLike[str]) -> Path:
    """A file's path, refused unless there is such a file."""
    file = Path(path)
    if not file.is_file():
        what = "it is a folder" if file.is_dir() else "there is no such file"
        raise InvalidInput(f"cannot read {path}: {what}")
    return file
