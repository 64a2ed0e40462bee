"""A folder with a table's encoded records: x.npy, y.npy, and records.json, which says of which table they are.

The folder is written under another name and renamed when it is complete, so that it is complete or missing.
"""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedscaffold.core.errors import InvalidInput, Option
from fedscaffold.core.types import Array
from fedscaffold.data.build import encoded_problem
from fedscaffold.data.encode_rows import TableLayout
from fedscaffold.data.encoded import EncodedProblem
from fedscaffold.data.encoding import Encoding
from fedscaffold.data.options import TableOptions

FORMAT = "fedscaffold records 1"
X, Y, DESCRIPTION = "x.npy", "y.npy", "records.json"
AGAIN = "choose another folder, or remove this one to convert the table again"


class CacheMismatch(InvalidInput):
    """A cache folder holds other records than those of the table and options that were given."""


def cache_identity(files: Sequence[Path], choices: TableOptions) -> dict[str, Any]:
    """What makes two folders the same: the files, by name, size and time of change, and the columns' options."""
    sources = []
    for file in files:
        known = file.stat()
        sources.append({"name": file.name, "size": known.st_size, "modified": known.st_mtime_ns})
    options = {
        "target": choices.target,
        "client": choices.client,
        "features": None if choices.features is None else list(choices.features),
        "drop": sorted(choices.drop),
        "categorical": list(choices.categorical),
        "reference": dict(choices.reference),
        "dates": list(choices.dates),
        "kind": choices.kind,
        "missing": choices.missing,
        "standardize": bool(choices.standardize),
        "intercept": bool(choices.intercept),
        "min_rows": int(choices.min_rows),
        "max_categories": int(choices.max_categories),
    }
    return {"source": sources, "options": options}


def description(layout: TableLayout, identity: dict[str, Any]) -> str:
    """Content of records.json: the identity, the encoding, and the clients' names and sizes."""
    content = {
        "format": FORMAT,
        **identity,
        "encoding": json.loads(layout.encoding.to_json()),
        "clients": layout.names,
        "sizes": layout.sizes.tolist(),
    }
    return json.dumps(content, indent=1, allow_nan=False)


def cache_exists(folder: Path) -> bool:
    """Whether there are records to open; False where they can be written, anything else is refused."""
    if folder.is_dir():
        if (folder / DESCRIPTION).is_file():
            return True
        if any(folder.iterdir()):
            raise InvalidInput(
                f"{folder} holds files, but no records that fedscaffold wrote; choose another folder for records"
            )
    elif folder.exists():
        raise InvalidInput(f"cannot write records to {folder}: it is a file, but must be a folder")
    return False


def open_cache(folder: Path, identity: dict[str, Any], choices: TableOptions) -> EncodedProblem:
    """The problem on a folder's numbers, memory-mapped; refused unless they are those of `identity`."""
    try:
        found = json.loads((folder / DESCRIPTION).read_text(encoding="utf-8"))
        if found["format"] != FORMAT:
            raise CacheMismatch(f"{folder} holds records of another format than {FORMAT!r}; {AGAIN}")
        _check(folder, found, identity)
        encoding = Encoding.from_json(json.dumps(found["encoding"]))
        names = tuple(found["clients"])
        sizes = np.array(found["sizes"], dtype=np.int64)
        rows = int(sizes.sum())
        x, y = _mapped(folder / X, (rows, encoding.dim)), _mapped(folder / Y, (rows,))
        return encoded_problem(x, y, encoding, names, sizes, choices)
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        if isinstance(error, InvalidInput):
            raise
        raise CacheMismatch(f"{folder} holds records that are damaged ({error}); {AGAIN}") from None


def remove_cache(folder: Path) -> None:
    """Remove a folder's records, and nothing else."""
    if cache_exists(folder):
        for name in (DESCRIPTION, X, Y):
            (folder / name).unlink(missing_ok=True)
        if not any(folder.iterdir()):
            shutil.rmtree(folder)


def _mapped(file: Path, shape: tuple[int, ...]) -> Array:
    """A file's array as it lies there; a plain view, since operations on numpy.memmap take longer."""
    found = np.asarray(np.load(file, mmap_mode="r", allow_pickle=False))
    if found.shape != shape or found.dtype != np.float64 or not found.flags.c_contiguous:
        raise ValueError(f"{file.name} should hold float64 numbers of shape {shape}")
    return found


def _check(folder: Path, found: dict[str, Any], identity: dict[str, Any]) -> None:
    """Refuse what was made of another table, of this one before it changed, or with other options."""
    theirs, ours = found["source"], identity["source"]
    if [file["name"] for file in theirs] != [file["name"] for file in ours]:
        which = ", ".join(file["name"] for file in theirs[:3]) + (", ..." if len(theirs) > 3 else "")
        raise CacheMismatch(f"{folder} holds the records of another table, {which}; {AGAIN}")
    for old, new in zip(theirs, ours, strict=True):
        if old != new:
            raise CacheMismatch(f"{new['name']} has changed since its records were written to {folder}; {AGAIN}")
    differ = [name for name, value in identity["options"].items() if found["options"][name] != value]
    if differ:
        name = differ[0]
        raise CacheMismatch(
            f"{folder} holds this table's records with ",
            Option(name, found["options"][name]),
            f", not {identity['options'][name]!r}; {AGAIN}",
        )
