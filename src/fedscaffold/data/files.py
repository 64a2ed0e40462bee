"""Table files: CSV and Parquet, read whole or some rows at a time."""

import codecs
import logging
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.files import path_of, replacing
from fedscaffold.data.settings import DETECTED, CsvFormat
from fedscaffold.data.tables import BLOCK, Source, check_names, is_text, load_pyarrow, some

Paths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]

COMPRESSED = (".gz", ".bz2", ".zst")
ENCODINGS = ("utf-8", "cp1252", "latin-1")  # tried in this order; the last takes any bytes
ROW_LABELS = re.compile(r"__index_level_\d+__")  # as pandas names an index that has no name
DECIMAL_COMMA = re.compile(r"\s*[+-]?\d*,\d+([eE][+-]?\d+)?\s*|\s*[+-]?\d+([eE][+-]?\d+)?\s*")
THOUSANDS = re.compile(r"\s*[+-]?\d{1,3}(,\d{3})*\s*")
LOGGER = logging.getLogger(__name__)


def existing_file(path: str | os.PathLike[str]) -> Path:
    """Return a file's path; raise unless the file exists."""
    file = path_of(path)
    if not file.is_file():
        what = "it is a folder" if file.is_dir() else "there is no such file"
        raise InvalidInput(f"cannot read {path}: {what}")
    return file


def is_parquet(path: str | os.PathLike[str]) -> bool:
    """Return True for a folder or a file named .parquet, False for CSV; raise for other names."""
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
    """Return a CSV or Parquet file as a pyarrow Table; `text` is the format of a CSV file."""
    if not is_parquet(path):
        return read_csv(path, text)
    from pyarrow import parquet

    file = existing_file(path)
    with _readable_errors(file, "Parquet"), parquet.ParquetFile(file) as found:
        names = _columns(found.schema_arrow)
        check_names(names)
        return found.read(columns=names)


# CSV


def read_csv(path: str | os.PathLike[str], text: CsvFormat = DETECTED) -> Any:
    """Return a CSV file as a pyarrow Table, with types found from all rows; see `from_file`.

    A detected format other than UTF-8 with commas between fields is logged as information.
    """
    load_pyarrow()
    file = existing_file(path)
    with _readable_errors(file, "CSV"):
        return _read_csv(file, text)


def _read_csv(file: Path, given: CsvFormat) -> Any:
    from pyarrow import csv

    encodings = ENCODINGS if given.encoding is None else (given.encoding,)
    with load_pyarrow().input_stream(os.fspath(file), compression="detect") as stream:
        start = bytes(stream.read(1 << 16))  # more than any header line
    if given.encoding is None and start.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        encodings = ("utf-16",)
    for encoding in encodings:
        try:
            header = codecs.getincrementaldecoder(encoding)().decode(start).splitlines()[:1]
            delimiter = given.delimiter or detect_delimiter(header[0] if header else "")
            table = csv.read_csv(
                file,
                read_options=csv.ReadOptions(encoding=encoding),
                parse_options=csv.ParseOptions(delimiter=delimiter),
                convert_options=csv.ConvertOptions(strings_can_be_null=True, decimal_point=given.decimal or "."),
            )
        except UnicodeError:
            continue
        if encoding != "utf-8" or not _has_binary(table):
            break
    else:
        raise InvalidInput(
            f"cannot read {file} as CSV: it is not in the encoding {encodings[0]!r}; name the right one with "
            "encoding=..."
        )
    before = table
    if given.decimal is None and delimiter != ",":
        table = with_decimal_commas(table)
    changed = [new.name for new, old in zip(table.schema, before.schema, strict=True) if new != old]
    notes = [f"as {encoding}"] if given.encoding is None and encoding != "utf-8" else []
    marks = [f"{delimiter!r} between fields"] if given.delimiter is None and delimiter != "," else []
    marks += [f"decimal commas in {some(changed)}"] if changed else []
    notes += [f"with {' and '.join(marks)}"] if marks else []
    if notes:
        LOGGER.info(
            f"{file} was read {', '.join(notes)}; if that is wrong, pass encoding=..., delimiter=... and "
            "decimal=..."
        )
    return table


def detect_delimiter(header: str) -> str:
    """Return the delimiter of a file, by its first line.

    Examples
    --------
    >>> from fedscaffold.data.files import detect_delimiter
    >>> detect_delimiter('site;"dose, mg";age'), detect_delimiter("site,age")
    (';', ',')
    """
    outside = re.sub(r'"[^"]*"', "", header)
    if "," in outside:
        return ","
    return next((mark for mark in (";", "\t", "|") if mark in outside), ",")


def with_decimal_commas(table: Any) -> Any:
    """Return the table with text columns that hold only numbers with decimal commas as numbers.

    Columns whose every comma could separate thousands, such as 1,234, stay text.
    """
    pa = load_pyarrow()
    for place, name in enumerate(table.column_names):
        column = table.column(place)
        if not is_text(column.type):
            continue
        values = column.unique().drop_null().to_pylist()
        sure = [value for value in values if not THOUSANDS.fullmatch(value)]
        if sure and all(DECIMAL_COMMA.fullmatch(value) for value in values):
            numbers = pa.compute.replace_substring(pa.compute.utf8_trim_whitespace(column), ",", ".")
            table = table.set_column(place, name, numbers.cast(pa.float64()))
    return table


def _has_binary(table: Any) -> bool:
    """Return whether a column's text is not UTF-8, which pyarrow then reads as bytes."""
    types = load_pyarrow().types
    return any(types.is_binary(field.type) or types.is_large_binary(field.type) for field in table.schema)


# Parquet


def parquet_files(path: Paths) -> tuple[Path, ...]:
    """Return the files of a path, a folder of .parquet files or a list of files."""
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
    """Open Parquet files with the same columns as one table, which is read some rows at a time."""
    pa = load_pyarrow()
    from pyarrow import parquet

    with ExitStack() as stack:
        opened: list[Any] = []
        for file in files:
            with _readable_errors(file, "Parquet"):  # 64 KiB per column are read ahead, not a whole row group
                one = parquet.ParquetFile(file, buffer_size=1 << 16, pre_buffer=False)
                opened.append(stack.enter_context(one))
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
            yield Source(names, read)
        except pa.ArrowException as error:
            raise InvalidInput(f"cannot read {files[0]} as Parquet: {error}") from None


@contextmanager
def _readable_errors(file: Path, kind: str) -> Iterator[None]:
    """Turn errors of reading a file into one sentence."""
    pa = load_pyarrow()
    try:
        yield
    except (pa.ArrowException, OSError) as error:
        advice = (
            "; name the character between its fields with delimiter=..." if "columns, got" in str(error) else ""
        )
        reason = "".join(c if c.isprintable() else " " for c in str(error))[:500]  # it may show a whole row
        raise InvalidInput(f"cannot read {file} as {kind}: {reason}{advice}") from None


def _columns(schema: Any) -> list[str]:
    """Return the names of a Parquet file's columns, without those in which pandas keeps labels of rows."""
    return [name for name in schema.names if not ROW_LABELS.fullmatch(name)]


def _check_same_columns(first: Path, schema: Any, file: Path, other: Any) -> None:
    """Raise if files are not parts of one table."""
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


def write_table(table: Any, path: Path) -> None:
    """Write a pyarrow Table to a .csv or .parquet file, which is replaced only once the new one is complete."""
    from pyarrow import csv, parquet

    with replacing(path) as temporary:
        if path.suffix == ".csv":
            csv.write_csv(table, temporary)
        else:
            parquet.write_table(table, temporary)
