"""Rows of a sweep in one Parquet file, whose metadata say which sweep they belong to."""

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedscaffold.benchmarking.sweeps.cells import SweepRow
from fedscaffold.benchmarking.sweeps.grid import Key
from fedscaffold.core.errors import CheckpointMismatch
from fedscaffold.core.optional import load_optional
from fedscaffold.core.storage.fields import Fields, shown
from fedscaffold.core.storage.files import json_value, path_of, replacing
from fedscaffold.core.storage.lock import exclusive

if TYPE_CHECKING:
    import pandas as pd

MARK = b"fedscaffold sweep"  # in the file's metadata, with what its rows share and their digest as JSON
SECONDS_FOR_OTHERS = 60.0  # to wait for another sweep that writes its rows


def need_packages() -> None:
    """Raise `MissingDependency` before the computation where pandas or pyarrow is missing."""
    for package in ("pandas", "pyarrow"):
        load_optional(package, f"sweeps need {package}", extra="reproduce")


def read(path: Path, identity: dict[str, Any]) -> list[SweepRow]:
    """The rows of a file; none if there is no file; refused if it is another sweep's or damaged."""
    from pyarrow import ArrowException, parquet, py_buffer

    if not path_of(path).exists():
        return []
    try:
        whole = py_buffer(path.read_bytes())  # in one go: another sweep may put a new file in its place meanwhile
        found = parquet.read_table(whole, page_checksum_verification=True)
        metadata = found.schema.metadata or {}
        if MARK not in metadata:
            raise ValueError("it has no mark of one")
        content = Fields(json_value(metadata[MARK]), str(path), error=CheckpointMismatch)
        rows = found.replace_schema_metadata().cast(_schema()).to_pylist()
    except (OSError, ArrowException, ValueError, MemoryError) as error:
        raise CheckpointMismatch(f"{path} is not a table of a sweep: {shown(str(error), longest=200)}") from None
    theirs = content.fields("identity")
    differing = [name for name in identity if name not in theirs or theirs.value(name) != identity[name]]
    if differing:
        name = differing[0]
        there = shown(theirs.value(name)) if name in theirs else "missing"
        raise CheckpointMismatch(
            f"{path} belongs to another sweep: {', '.join(differing)} differ "
            f"({name}: {there} there, {shown(identity[name])} here); choose another path or delete it"
        )
    if content.text("digest") != _digest(identity, rows):
        raise CheckpointMismatch(f"{path} does not match its digest: it was damaged or changed; delete it")
    return [SweepRow(**row) for row in rows]


def merge(path: Path, identity: dict[str, Any], rows: Mapping[Key, SweepRow]) -> dict[Key, SweepRow]:
    """Add rows to a file, and return all rows that it then has; other sweeps may add theirs meanwhile."""
    from pyarrow import parquet

    lock = path.parent / f".{path.name}.lock"
    with exclusive(lock, f"the table {path}", wait=SECONDS_FOR_OTHERS):
        together = {row.key(): row for row in read(path, identity)} | dict(rows)
        table = _table(together.values())
        content = {"identity": identity, "digest": _digest(identity, table.to_pylist())}
        marked = table.replace_schema_metadata({MARK: json.dumps(content)})
        with replacing(path) as temporary:
            parquet.write_table(marked, temporary, write_page_checksum=True)
    return together


def _digest(identity: dict[str, Any], rows: list[dict[str, Any]]) -> str:
    """SHA-256 of what the rows share and of all of them."""
    return hashlib.sha256(json.dumps([identity, rows], sort_keys=True).encode()).hexdigest()


def to_frame(rows: Iterable[SweepRow]) -> "pd.DataFrame":
    """Rows as a DataFrame; columns of whole numbers that may be missing stay whole numbers."""
    import pandas as pd
    import pyarrow as pa

    return _table(rows).to_pandas(types_mapper={pa.int64(): pd.Int64Dtype()}.get)


def _table(rows: Iterable[SweepRow]) -> Any:
    import pyarrow as pa

    return pa.Table.from_pylist([asdict(row) for row in rows], _schema())


def _schema() -> Any:
    """The columns of a table: the fields of `SweepRow`."""
    import pyarrow as pa

    kinds = {int: pa.int64(), float: pa.float64(), list[float]: pa.list_(pa.float64())}
    return pa.schema(
        [(name, kinds.get(_plain(kind), pa.string())) for name, kind in SweepRow.__annotations__.items()]
    )


def _plain(kind: Any) -> Any:
    """The type without None: int for `int | None`."""
    return getattr(kind, "__args__", (kind,))[0] if type(None) in getattr(kind, "__args__", ()) else kind
