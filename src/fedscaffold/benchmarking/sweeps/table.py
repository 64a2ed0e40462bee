"""Rows of a sweep in one Parquet file, whose metadata say which sweep they belong to."""

import json
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedscaffold.benchmarking.sweeps.cells import SweepRow
from fedscaffold.core.errors import CheckpointMismatch
from fedscaffold.core.optional import load_optional
from fedscaffold.core.storage.files import replacing

if TYPE_CHECKING:
    import pandas as pd

MARK = b"fedscaffold sweep"  # in the file's metadata, with what its rows share as JSON


def need_packages() -> None:
    """Raise `MissingDependency` before the computation where pandas or pyarrow is missing."""
    for package in ("pandas", "pyarrow"):
        load_optional(package, f"sweeps need {package}", extra="reproduce")


def read(path: Path, identity: dict[str, Any]) -> list[SweepRow]:
    """The rows of a file; none if there is no file; refused if it is another sweep's."""
    from pyarrow import ArrowException, parquet

    if not path.exists():
        return []
    try:
        found = parquet.read_table(path)
    except (OSError, ArrowException) as error:
        raise CheckpointMismatch(f"{path} is not a table of a sweep: {error}") from None
    metadata = found.schema.metadata or {}
    if MARK not in metadata:
        raise CheckpointMismatch(f"{path} is not a table of a sweep; choose another path")
    theirs = json.loads(metadata[MARK])
    differing = [name for name in identity if theirs.get(name) != identity[name]]
    if differing:
        name = differing[0]
        raise CheckpointMismatch(
            f"{path} belongs to another sweep: {', '.join(differing)} differ "
            f"({name}: {theirs.get(name)} there, {identity[name]} here); choose another path or delete it"
        )
    return [SweepRow(**row) for row in found.to_pylist()]


def write(path: Path, identity: dict[str, Any], rows: Iterable[SweepRow]) -> None:
    """Write the rows to a new file, which then replaces the old one."""
    from pyarrow import parquet

    with replacing(path) as temporary:
        parquet.write_table(_table(rows).replace_schema_metadata({MARK: json.dumps(identity)}), temporary)


def to_frame(rows: Iterable[SweepRow]) -> "pd.DataFrame":
    """Rows as a DataFrame; columns of whole numbers that may be missing stay whole numbers."""
    import pandas as pd
    import pyarrow as pa

    return _table(rows).to_pandas(types_mapper={pa.int64(): pd.Int64Dtype()}.get)


def _table(rows: Iterable[SweepRow]) -> Any:
    import pyarrow as pa

    kinds = {int: pa.int64(), float: pa.float64(), list[float]: pa.list_(pa.float64())}
    schema = pa.schema(
        [(name, kinds.get(_plain(kind), pa.string())) for name, kind in SweepRow.__annotations__.items()]
    )
    return pa.Table.from_pylist([asdict(row) for row in rows], schema)


def _plain(kind: Any) -> Any:
    """The type without None: int for `int | None`."""
    return getattr(kind, "__args__", (kind,))[0] if type(None) in getattr(kind, "__args__", ()) else kind
