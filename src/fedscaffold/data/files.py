"""Table files: CSV and Parquet, read whole or some rows at a time."""

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.storage.files import path_of
from fedscaffold.data.arrow import BLOCK, Source, load_pyarrow
from fedscaffold.data.columns import check_names
from fedscaffold.data.reading.csv_file import CsvFormat, read_csv_file

Paths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]

COMPRESSED = (".gz", ".bz2", ".zst")
DETECTED = CsvFormat()
ROW_LABELS = re.compile(r"__index_level_\d+__")  # as pandas names an index that has no name
READ_AHEAD = 65536  # bytes per column, instead of a whole row group
LONGEST_REASON = 500  # characters of a reader's own words, which may show a whole row


def existing_file(path: str | os.PathLike[str]) -> Path:
    """A file's path, refused unless there is such a file."""
    file = path_of(path)
    if not file.is_file():
        what = "it is a folder" if file.is_dir() else "there is no such file"
        raise InvalidInput(f"cannot read {path}: {what}")
    return file


def is_parquet(path: str | os.PathLike[str]) -> bool:
    """Whether a path is a folder or a file named .parquet; False for CSV, anything else is refused."""
    if path_of(path).is_dir():
        return True
    suffixes = path_of(path).suffixes
    if suffixes and suffixes[-1] in COMPRESSED:
        suffixes.pop()
        if suffixes and suffixes[-1] == ".csv":
            return False
    elif suffixes and suffixes[-1] in (".csv", ".parquet"):
        return suffixes[-1] == ".parquet"
    raise InvalidInput(f"{path} must be a table in a file whose name ends in .csv or .parquet")


def read_table(path: str | os.PathLike[str], text: CsvFormat = DETECTED) -> Any:
    """A CSV or Parquet file as a pyarrow Table; `text` says how a CSV file is to be read."""
    if not is_parquet(path):
        return read_csv(path, text)
    from pyarrow import parquet

    file = existing_file(path)
    with _readable_errors(file, "Parquet"), parquet.ParquetFile(file) as found:
        names = _columns(found.schema_arrow)
        check_names(names)
        return found.read(columns=names)


def read_csv(path: str | os.PathLike[str], text: CsvFormat = DETECTED) -> Any:
    """A CSV file as a pyarrow Table, with types found from all rows; see `from_csv`."""
    load_pyarrow()
    file = existing_file(path)
    with _readable_errors(file, "CSV"):
        return read_csv_file(file, text)


def parquet_files(path: Paths) -> tuple[Path, ...]:
    """The files that a path, a folder of .parquet files or a list of files stands for."""
    if isinstance(path, list | tuple):
        files = tuple(existing_file(one) for one in path)
        if not files:
            raise InvalidInput("the list of Parquet files is empty; name at least one")
        return files
    folder = path_of(path)
    if not folder.is_dir():
        return (existing_file(folder),)
    files = tuple(sorted(file for file in folder.glob("*.parquet") if file.is_file()))
    if not files:
        raise InvalidInput(f"cannot read {path}: the folder has no files whose names end in .parquet")
    return files


@contextmanager
def open_parquet(files: Sequence[Path]) -> Iterator[Source]:
    """Parquet files with the same columns as one table, which is read some rows at a time."""
    pa = load_pyarrow()
    from pyarrow import parquet

    with ExitStack() as stack:
        opened: list[Any] = []
        for file in files:
            with _readable_errors(file, "Parquet"):
                opened.append(
                    stack.enter_context(parquet.ParquetFile(file, buffer_size=READ_AHEAD, pre_buffer=False))
                )
        names = tuple(_columns(opened[0].schema_arrow))
        check_names(names)
        for file, other in zip(files[1:], opened[1:], strict=True):
            _check_same_columns(files[0], opened[0].schema_arrow, file, other.schema_arrow)

        def read(columns: Sequence[str]) -> Iterable[Any]:
            for file, one in zip(files, opened, strict=True):
                with _readable_errors(file, "Parquet"):
                    for batch in one.iter_batches(batch_size=BLOCK, columns=list(columns), use_threads=False):
                        yield batch.select(list(columns))

        try:
            yield Source(names, lambda columns: read)
        except pa.ArrowException as error:
            raise InvalidInput(f"cannot read {files[0]} as Parquet: {error}") from None


@contextmanager
def _readable_errors(file: Path, kind: str) -> Iterator[None]:
    """Turn errors of reading a file into one sentence."""
    pa = load_pyarrow()
    try:
        yield
    except (pa.ArrowException, OSError) as error:
        advice = "; name what separates its fields with delimiter=..." if "columns, got" in str(error) else ""
        reason = "".join(c if c.isprintable() else " " for c in str(error))[:LONGEST_REASON]
        raise InvalidInput(f"cannot read {file} as {kind}: {reason}{advice}") from None


def _columns(schema: Any) -> list[str]:
    """Names of the columns of a Parquet file, without those in which pandas keeps labels of rows."""
    return [name for name in schema.names if not ROW_LABELS.fullmatch(name)]


def _check_same_columns(first: Path, schema: Any, file: Path, other: Any) -> None:
    """Refuse files that are not parts of one table."""
    for name in sorted(set(_columns(schema)) ^ set(_columns(other))):
        there, lacking = (first, file) if name in schema.names else (file, first)
        raise InvalidInput(
            f"{there} has a column {name!r}, which {lacking} lacks; all files need the same columns"
        )
    for name in _columns(schema):
        kinds = schema.field(name).type, other.field(name).type
        if kinds[0] != kinds[1]:
            raise InvalidInput(
                f"column {name!r} is of type {kinds[0]} in {first}, but {kinds[1]} in {file}; write it as one type"
            )
