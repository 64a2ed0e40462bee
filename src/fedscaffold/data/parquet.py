"""Problems from Parquet files, without holding the file; and from files whose numbers exceed memory."""

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Unpack

from fedscaffold.core.checks import whole_number
from fedscaffold.core.errors import InvalidInput
from fedscaffold.data.arrow import BLOCK, Source, load_pyarrow
from fedscaffold.data.build import Choices, Problem, in_memory, lay_out
from fedscaffold.data.columns import check_names
from fedscaffold.data.on_disk import folder as stored
from fedscaffold.data.on_disk.convert import convert
from fedscaffold.data.options import Options, existing

READ_AHEAD = 65536  # bytes per column, instead of a whole row group
Paths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]


def from_parquet(
    path: Paths,
    *,
    target: str,
    client: str,
    records: str | os.PathLike[str] | None = None,
    max_bytes_in_memory: int = 0,
    **options: Unpack[Options],
) -> Problem:
    """Σ_c w_c f_c, where client c holds the rows of Parquet files that name it in one column.

    Files are read twice, some rows at a time, and never held as a whole: the first pass counts, the second
    fills the problem's array of float64. So memory is that array, 8 bytes for each row and coordinate, and some
    tens of megabytes. Clients may be interleaved in any order. All options are those of `from_frame`, and the
    result is the same to the bit.

    With `records` that array is written to a folder, client after client, and mapped into memory instead of held
    there: then it may be larger than memory. The folder is made once; the same call opens it at once, whatever
    `l2` and `weights` it asks for. It takes as much disk as the array, and twice that while it is made.

    Parameters
    ----------
    path
        The file; or several, as a list, or as a folder whose .parquet files are taken in the order of their names.
        All must have the same columns.
    target, client, **options
        As for `from_frame`.
    records
        A folder for the encoded numbers; made where it is missing. One that holds those of another table, of this
        one before it changed, or of other options is refused.
    max_bytes_in_memory
        Bytes: an array of at most so many is held in memory although `records` is given, unless there is
        such a folder already.
    """
    choices = Choices(target=target, client=client, **options)
    whole_number("max_bytes_in_memory", max_bytes_in_memory, least=0)
    files = parquet_files(path)
    folder = None if records is None else Path(records)
    made_of = stored.identity(files, choices)
    if folder is not None and stored.is_there(folder):
        return stored.open_problem(folder, made_of, choices)
    with reading(files) as source:
        layout = lay_out(source, choices)
        if folder is None or layout.nbytes <= max_bytes_in_memory:
            return in_memory(layout, choices)
        convert(layout, folder, stored.description(layout, made_of))
    if stored.identity(files, choices) != made_of:
        stored.discard(folder)
        raise InvalidInput(f"{path} changed while it was being read; start again")
    return stored.open_problem(folder, made_of, choices)


def parquet_files(path: Paths) -> tuple[Path, ...]:
    """The files that a path, a folder or a list of files stands for."""
    if not isinstance(path, str | os.PathLike):
        files = tuple(existing(one) for one in path)
        if not files:
            raise InvalidInput("the list of Parquet files is empty; name at least one")
        return files
    folder = Path(path)
    if not folder.is_dir():
        return (existing(folder),)
    files = tuple(sorted(file for file in folder.glob("*.parquet") if file.is_file()))
    if not files:
        raise InvalidInput(f"cannot read {path}: the folder has no files whose names end in .parquet")
    return files


@contextmanager
def reading(files: Sequence[Path]) -> Iterator[Source]:
    """Files of the same columns as one table, one after another; what Arrow refuses is refused in a sentence."""
    pa = load_pyarrow()
    from pyarrow import parquet

    with ExitStack() as stack:
        opened: list[Any] = []
        for file in files:
            with refusing(file, pa):
                opened.append(
                    stack.enter_context(parquet.ParquetFile(file, buffer_size=READ_AHEAD, pre_buffer=False))
                )
        names = tuple(opened[0].schema_arrow.names)
        check_names(names)
        for file, other in zip(files[1:], opened[1:], strict=True):
            _check_same(files[0], opened[0].schema_arrow, file, other.schema_arrow)

        def read(columns: Sequence[str]) -> Iterable[Any]:
            for file, one in zip(files, opened, strict=True):
                with refusing(file, pa):
                    for batch in one.iter_batches(batch_size=BLOCK, columns=list(columns), use_threads=False):
                        yield batch.select(list(columns))

        try:
            yield Source(names, lambda columns: read)
        except pa.ArrowException as error:
            raise InvalidInput(f"cannot read {files[0]} as Parquet: {error}") from None


@contextmanager
def refusing(file: Path, pa: Any) -> Iterator[None]:
    """Errors of reading a file as one sentence."""
    try:
        yield
    except (pa.ArrowException, OSError) as error:
        raise InvalidInput(f"cannot read {file} as Parquet: {error}") from None


def _check_same(first: Path, schema: Any, file: Path, other: Any) -> None:
    """Refuse files that are not parts of one table."""
    for name in sorted(set(schema.names) ^ set(other.names)):
        there, lacking = (first, file) if name in schema.names else (file, first)
        raise InvalidInput(
            f"{there} has a column {name!r}, which {lacking} lacks; all files need the same columns"
        )
    for name in schema.names:
        kinds = schema.field(name).type, other.field(name).type
        if kinds[0] != kinds[1]:
            raise InvalidInput(
                f"column {name!r} is of type {kinds[0]} in {first}, but {kinds[1]} in {file}; write it as one type"
            )
