"""Named vectors of equal length in one file, each with a digest, so that one is read and checked without the
others.

The file begins with eight bytes, the length of the header and its SHA-256 digest. The header is JSON: a
description, the vectors' names, their length and their digests. Then come the vectors, float64 in the byte order
of x86 and ARM.
"""

import hashlib
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedscaffold.core.files import Fields, replace_bytes
from fedscaffold.core.types import Array

MAGIC = b"fedsvec1"
NUMBERS = np.dtype("<f8")
LONGEST_HEADER = 1 << 30


class VectorFile(NamedTuple):
    """The header of a file of vectors."""

    path: Path
    description: dict[str, Any]
    names: dict[str, int]  # the position of each vector in the file
    dim: int
    digests: Sequence[str]
    begin: int  # where the first vector begins, in bytes

    def read(self, names: Iterable[str] | None = None) -> dict[str, Array]:
        """Return vectors by name, all of them by default; raise ValueError for one that is missing or damaged."""
        found, size = dict[str, Array](), self.dim * NUMBERS.itemsize
        with open(self.path, "rb") as file:
            for name in self.names if names is None else names:
                if name not in self.names:
                    raise ValueError(f"{self.path} holds no vector {name}")
                file.seek(self.begin + self.names[name] * size)
                vector = np.empty(self.dim, NUMBERS)
                complete = file.readinto(vector.data) == size
                if not complete or hashlib.sha256(vector.data).hexdigest() != self.digests[self.names[name]]:
                    raise ValueError(f"{self.path} is damaged: the digest of {name} does not match")
                found[name] = vector.astype(np.float64, copy=False)
        return found


def write_vectors(
    path: str | os.PathLike[str], vectors: Mapping[str, Array], description: Mapping[str, Any]
) -> None:
    """Write or replace the file; an interrupted write leaves the old one."""
    rows = [np.ascontiguousarray(vector, dtype=NUMBERS).reshape(-1) for vector in vectors.values()]
    dims = {row.size for row in rows} or {0}
    if len(dims) != 1:
        raise ValueError(f"vectors of one file must have one length, got {sorted(dims)}")
    header = {
        "description": dict(description),
        "names": list(vectors),
        "dim": dims.pop(),
        "digests": [hashlib.sha256(row.data).hexdigest() for row in rows],
    }
    text = json.dumps(header, allow_nan=False).encode()
    begin = (MAGIC, len(text).to_bytes(8, "little"), hashlib.sha256(text).digest(), text)
    replace_bytes(path, (*begin, *(row.data for row in rows)))


def open_vectors(path: str | os.PathLike[str]) -> VectorFile:
    """Read a file's header; raise OSError if it cannot be read, ValueError if `write_vectors` did not write it."""
    with open(path, "rb") as file:
        if file.read(len(MAGIC)) != MAGIC:
            raise ValueError(f"{os.fspath(path)} was not written by this version of fedscaffold")
        size = min(int.from_bytes(file.read(8), "little"), LONGEST_HEADER)
        digest, text = file.read(32), file.read(size)
    if hashlib.sha256(text).digest() != digest:
        raise ValueError(f"{os.fspath(path)} is damaged: the digest of its header does not match")
    try:
        fields = Fields(json.loads(text), os.fspath(path))
        names = [str(name) for name in fields.items("names")]
        digests = [str(one) for one in fields.items("digests", count=len(names))]
        description, dim = fields.fields("description"), fields.integer("dim", least=0)
    except RecursionError:
        raise ValueError(f"{os.fspath(path)} was not written by fedscaffold") from None
    begin = len(MAGIC) + 8 + 32 + len(text)
    positions = {name: k for k, name in enumerate(names)}
    return VectorFile(Path(path), {name: description.value(name) for name in description.names()}, positions, dim,
                      digests, begin)  # fmt: skip
