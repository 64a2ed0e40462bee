"""CSV files: encoding, delimiter and decimal mark are detected unless they are given."""

import codecs
import logging
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedscaffold.core.errors import InvalidInput
from fedscaffold.data.arrow import is_text, load_pyarrow
from fedscaffold.data.columns import some

OTHER_DELIMITERS = (";", "\t", "|")
ENCODINGS = ("utf-8", "cp1252", "latin-1")  # tried in this order; the last takes any bytes
HEADER_BYTES = 1 << 16
DECIMAL_COMMA = re.compile(r"\s*[+-]?\d*,\d+([eE][+-]?\d+)?\s*|\s*[+-]?\d+([eE][+-]?\d+)?\s*")
LOGGER = logging.getLogger(__name__)
THOUSANDS = re.compile(r"\s*[+-]?\d{1,3}(,\d{3})*\s*")


@dataclass(frozen=True, kw_only=True)
class CsvFormat:
    """How the text of a CSV file is to be read; what is None is detected.

    Parameters
    ----------
    delimiter
        The character between fields. Detected: a semicolon, tab or bar where the first line has one and no comma
        outside quotes, else a comma.
    decimal
        The decimal mark. Detected: in files with another delimiter than a comma, columns that hold nothing but
        numbers with decimal commas are read as numbers.
    encoding
        A name that Python knows, such as "utf-8" or "latin-1". Detected: UTF-8, or Windows' code page 1252, a
        superset of Latin-1, where the file is no UTF-8.

    Examples
    --------
    >>> from fedscaffold.data.reading.csv_file import CsvFormat
    >>> CsvFormat(delimiter=";", decimal=",").delimiter
    ';'
    """

    delimiter: str | None = None
    decimal: str | None = None
    encoding: str | None = None

    def __post_init__(self) -> None:
        for name, value in (("delimiter", self.delimiter), ("decimal", self.decimal)):
            if value is not None and len(value) != 1:
                raise InvalidInput(f"{name} must be one character, got {value!r}")
        if self.decimal is not None and self.decimal == self.delimiter:
            raise InvalidInput(f"delimiter={self.decimal!r} and decimal={self.decimal!r} must differ")
        if self.encoding is not None:
            try:
                codecs.lookup(self.encoding)
            except (LookupError, TypeError, ValueError):
                raise InvalidInput(
                    f"encoding is not known: {self.encoding!r}; names are such as utf-8 and latin-1"
                ) from None


def read_csv_file(file: Path, given: CsvFormat) -> Any:
    """A CSV file as a pyarrow Table; errors are those of pyarrow and of files.

    What was detected, where it is not UTF-8 with commas between fields, is logged as information.
    """
    encodings = ENCODINGS if given.encoding is None else (given.encoding,)
    start = _first_bytes(file)
    if given.encoding is None and start.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        encodings = ("utf-16",)
    for encoding in encodings:
        try:
            header = codecs.getincrementaldecoder(encoding)().decode(start).splitlines()[:1]
            delimiter = given.delimiter or detect_delimiter(header[0] if header else "")
            table = _read(file, delimiter, given.decimal, encoding)
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
    _tell_detected(
        file,
        encoding=encoding if given.encoding is None else None,
        delimiter=delimiter if given.delimiter is None else None,
        decimal_commas=changed,
    )
    return table


def _tell_detected(file: Path, *, encoding: str | None, delimiter: str | None, decimal_commas: list[str]) -> None:
    """Log how a file was read, in so far as that was detected and is not the usual."""
    found = [f"as {encoding}"] if encoding not in (None, "utf-8") else []
    marks = [f"{delimiter!r} between fields"] if delimiter not in (None, ",") else []
    if decimal_commas:
        marks.append(f"decimal commas in {some(decimal_commas)}")
    found += [f"with {' and '.join(marks)}"] if marks else []
    if found:
        LOGGER.info(
            f"{file} was read {', '.join(found)}; if that is wrong, pass "
            "encoding=..., delimiter=... and decimal=..."
        )


def detect_delimiter(header: str) -> str:
    """The delimiter of a file, from its first line.

    Examples
    --------
    >>> from fedscaffold.data.reading.csv_file import detect_delimiter
    >>> detect_delimiter('site;"dose, mg";age'), detect_delimiter("site,age")
    (';', ',')
    """
    outside = re.sub(r'"[^"]*"', "", header)
    if "," in outside:
        return ","
    return next((mark for mark in OTHER_DELIMITERS if mark in outside), ",")


def with_decimal_commas(table: Any) -> Any:
    """The table with text columns that hold nothing but numbers with decimal commas as numbers.

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


def _first_bytes(file: Path) -> bytes:
    with load_pyarrow().input_stream(os.fspath(file), compression="detect") as stream:
        return bytes(stream.read(HEADER_BYTES))


def _read(file: Path, delimiter: str, decimal: str | None, encoding: str) -> Any:
    from pyarrow import csv

    return csv.read_csv(
        file,
        read_options=csv.ReadOptions(encoding=encoding),
        parse_options=csv.ParseOptions(delimiter=delimiter),
        convert_options=csv.ConvertOptions(strings_can_be_null=True, decimal_point=decimal or "."),
    )


def _has_binary(table: Any) -> bool:
    """Whether a column's text is not in UTF-8, which pyarrow then reads as bytes."""
    types = load_pyarrow().types
    return any(types.is_binary(field.type) or types.is_large_binary(field.type) for field in table.schema)
