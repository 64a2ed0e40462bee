"""Tables in files, and the problems they hold."""

import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.memory_limit import memory_limit
from fedscaffold.data.arrow import frame_source, is_number, labels, load_pyarrow
from fedscaffold.data.build import Kind, Missing
from fedscaffold.data.columns import check_names, pick
from fedscaffold.data.csv import read_csv
from fedscaffold.data.framed import FramedLogistic, FramedMultinomial, FramedRidge
from fedscaffold.data.frames import from_frame
from fedscaffold.data.options import existing
from fedscaffold.data.parquet import from_parquet, parquet_files, reading

Framed = FramedRidge | FramedLogistic | FramedMultinomial
L2 = 0.01
FEW_VALUES = 20  # a numeric target with more different values than this is a quantity, not a class
COMPRESSED = (".gz", ".bz2", ".zst")
COMFORTABLE = 4  # times its size: what a fit takes of memory where its table is held there


def is_parquet(path: str | os.PathLike[str]) -> bool:
    """Whether a file's name says Parquet, as a folder does; refused unless it says that or CSV."""
    if Path(path).is_dir():
        return True
    suffixes = Path(path).suffixes
    if suffixes and suffixes[-1] in COMPRESSED:
        suffixes.pop()
        if suffixes and suffixes[-1] == ".csv":
            return False
    elif suffixes and suffixes[-1] in (".csv", ".parquet"):
        return suffixes[-1] == ".parquet"
    raise InvalidInput(f"{path} must be a table in a file whose name ends in .csv or .parquet")


def read_table(path: str | os.PathLike[str]) -> Any:
    """A CSV or Parquet file as a pyarrow Table."""
    if not is_parquet(path):
        return read_csv(path)
    pa = load_pyarrow()
    from pyarrow import parquet

    file = existing(path)
    try:
        with parquet.ParquetFile(file) as found:
            check_names(found.schema_arrow.names)
            return found.read()
    except (pa.ArrowException, OSError) as error:
        raise InvalidInput(f"cannot read {path} as Parquet: {error}") from None


def comfortable() -> int:
    """Bytes of numbers up to which a table is better held in memory than in a file."""
    limit = memory_limit()
    return sys.maxsize if limit is None else limit // COMFORTABLE


def open_problem(
    path: str | os.PathLike[str],
    *,
    target: str,
    client: str,
    kind: Kind | None = None,
    features: Sequence[str] | None = None,
    l2: float = L2,
    missing: Missing = "error",
    records: str | os.PathLike[str] | None = None,
    max_bytes_in_memory: int = 0,
) -> Framed:
    """Σ_c w_c f_c over the rows of a table in a file, as `fedscaffold fit` sees it.

    Features are standardised, there is an intercept, and a client's weight is its number of rows.

    Parameters
    ----------
    path
        A .csv or .parquet file, or a folder of the latter.
    target, client, features, l2, missing
        As for `data.from_frame`.
    kind
        "ridge" or "logistic"; by default as `guess_kind` says.
    records, max_bytes_in_memory
        As for `data.from_parquet`: where to keep the numbers of a table that is larger than memory.
    """
    options: Any = {
        "target": target,
        "client": client,
        "features": features,
        "l2": l2,
        "missing": missing,
        "weights": "rows",
        "standardize": True,
        "intercept": True,
    }
    if is_parquet(path):
        return from_parquet(
            path,
            kind=kind or guess_kind(_parquet_column(path, target)),
            records=records,
            max_bytes_in_memory=max_bytes_in_memory,
            **options,
        )
    if records is not None and max_bytes_in_memory == 0:
        raise InvalidInput(f"records in a folder are for Parquet, but {path} is CSV; write the table as Parquet")
    table = read_csv(path)
    if kind is None:
        names = frame_source(table).names
        check_names(names)
        kind = guess_kind(table.column(pick(names, target)).chunks)
    return from_frame(table, kind=kind, **options)


def guess_kind(column: Iterator[Any] | Sequence[Any]) -> Kind:
    """Ridge for numbers with more than 20 different values, else logistic; the column as Arrow arrays."""
    seen: set[Any] = set()
    for array in column:
        if not is_number(array.type):
            return "logistic"
        seen.update(labels("target", array).unique().drop_null().to_pylist())
        if len(seen) > FEW_VALUES:
            return "ridge"
    return "logistic"


def _parquet_column(path: str | os.PathLike[str], name: str) -> Iterator[Any]:
    with reading(parquet_files(path)) as source:
        wanted = [pick(source.names, name)]
        for batch in source.open(wanted)(wanted):
            yield batch.column(0)
