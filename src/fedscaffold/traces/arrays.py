"""Arrays and a description in one file: NumPy's npz, read back without pickle."""

import json
import os
import zipfile
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedscaffold.core.files import replacing

DESCRIPTION = "description"


def write(path: str | os.PathLike[str], arrays: Mapping[str, NDArray[Any]], description: dict[str, Any]) -> None:
    """Write or replace the file, in one go."""
    text = np.frombuffer(json.dumps(description, allow_nan=False).encode(), dtype=np.uint8)
    with replacing(path) as temporary, open(temporary, "wb") as file:
        np.savez(file, allow_pickle=False, **{DESCRIPTION: text}, **arrays)


def read(path: str | os.PathLike[str]) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
    """(arrays, description); ValueError when it is not such a file."""
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        description = json.loads(arrays.pop(DESCRIPTION).tobytes())
    except (zipfile.BadZipFile, KeyError, AttributeError, EOFError) as error:
        raise ValueError(f"{os.fspath(path)} was not written by fedscaffold: {error}") from None
    return arrays, description
