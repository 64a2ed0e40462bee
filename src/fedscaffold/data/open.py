"""Problems from tables: data frames, CSV and Parquet files."""

from __future__ import annotations  # so that help() shows ArrayLike, not what it stands for

import os
import sys
from pathlib import Path
from typing import Any, Unpack, cast

from fedscaffold.core.checks import whole_number
from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.machine import memory_limit
from fedscaffold.data.encoded import EncodedProblem, build_problem, problem_in_memory, table_layout, with_kind
from fedscaffold.data.files import Paths, is_parquet, open_parquet, parquet_files, read_csv
from fedscaffold.data.on_disk import cache_exists, cache_identity, open_cache, remove_cache, write_cache
from fedscaffold.data.settings import FitTableSettings, TableKeywords, TableSettings, shared_parameters
from fedscaffold.data.tables import frame_source


@shared_parameters(TableSettings, leave_out=("target", "client"))
def from_table(
    data: Any,
    *,
    target: str | tuple[str, str],
    client: str,
    cache_dir: str | os.PathLike[str] | None = None,
    max_bytes_in_memory: int = 0,
    **settings: Unpack[TableKeywords],
) -> EncodedProblem:
    r"""Σ_c w_c f_c, where client c holds the rows of a table that name it in one column.

    Clients are sorted by name; within a client rows keep their order. The result is a `Ridge`, `Logistic`,
    `Multinomial`, `Poisson` or `Gamma` problem with two more attributes: `client_names`, and `encoding`, which
    encodes new rows the same way. It is the same to the bit for data frames and files of the same rows.

    A CSV file is held in memory besides the problem. Its first line names the columns; their types are found from
    all rows, and empty fields and the usual spellings of a missing value (NA, NaN, null, ...) are missing.

    Parquet files are read twice, some rows at a time, and never held as a whole: memory is the problem's array of
    float64, 8 bytes for each row and coordinate, and some tens of megabytes. With `cache_dir` the array is written
    to a folder, client after client, and memory-mapped: then it may be larger than memory. The same call opens the
    folder at once, whatever `l2` and `weights` it asks for. It takes as much disk as the array, and twice that
    while it is written.

    Parameters
    ----------
    data
        A pandas or polars DataFrame, a pyarrow Table, or another table with Arrow's C stream interface. Or the
        path of a file whose name ends in .csv (then perhaps .gz, .bz2 or .zst) or .parquet; or several Parquet
        files of the same columns, as a list, or as a folder whose .parquet files are taken in the order of their
        names.
    target, client
        Names of the column to predict and of the column of each row's client.
    {TableSettings}
    cache_dir
        Folder for the encoded records of Parquet files, made if it does not exist. A folder with the records of
        another table, of this one before it changed, or of other settings is rejected.
    max_bytes_in_memory
        Records of at most this many bytes are held in memory although `cache_dir` is given, unless the folder
        holds them already.

    Returns
    -------
    EncodedProblem
        The problem.

    Raises
    ------
    InvalidInput
        If the table, the settings or the folder cannot be used, with all their problems.

    Examples
    --------
    >>> import pandas as pd
    >>> import fedscaffold as fs
    >>> visits = pd.DataFrame({
    ...     "hospital": ["A", "A", "B", "B"], "age": [50, 61, 47, 70], "ward": ["x", "y", "y", "x"],
    ...     "days": [2.0, 5.0, 4.0, 3.0],
    ... })
    >>> problem = fs.data.from_table(visits, target="days", client="hospital", l2=0.1)
    >>> problem
    EncodedRidge(n_clients=2, dim=3, n_records=4, l2=0.1)
    >>> problem.client_names, problem.encoding.names
    (('A', 'B'), ('age', 'ward=x', 'ward=y'))
    """
    chosen = TableSettings(target=cast(str, target), client=client, **settings)
    return _from_table(data, chosen, cache_dir, max_bytes_in_memory)


from_frame = from_file = from_table  # by what the table is


@shared_parameters(FitTableSettings, leave_out=("target", "client"))
def open_problem(
    data: Any,
    *,
    target: str | tuple[str, str],
    client: str,
    cache_dir: str | os.PathLike[str] | None = None,
    max_bytes_in_memory: int = 0,
    **settings: Unpack[TableKeywords],
) -> EncodedProblem:
    r"""Σ_c w_c f_c over the rows of a table, as `fedscaffold fit` minimises it.

    As `data.from_table`, but features are standardised, there is an intercept, `l2` is "auto", and `kind` follows
    from the target, unless other settings are given.

    Parameters
    ----------
    data, target, client, cache_dir, max_bytes_in_memory
        As for `data.from_table`.
    {FitTableSettings}

    Returns
    -------
    EncodedProblem
        The problem.

    Raises
    ------
    InvalidInput
        If the table or the settings cannot be used, with all their problems.

    Examples
    --------
    >>> from pathlib import Path
    >>> from tempfile import TemporaryDirectory
    >>> import fedscaffold as fs
    >>> with TemporaryDirectory() as folder:
    ...     file = Path(folder) / "visits.csv"
    ...     _ = file.write_text("hospital,age,ill\nA,50,no\nA,61,yes\nB,47,no\nB,70,yes\n")
    ...     fs.data.open_problem(file, target="ill", client="hospital")
    EncodedLogistic(n_clients=2, dim=2, n_records=4, l2=0.25)
    """
    chosen = FitTableSettings(target=cast(str, target), client=client, **settings)
    if isinstance(data, EncodedProblem):
        raise InvalidInput("this is a problem already; give it to fedscaffold.models.fit")
    return _from_table(data, chosen, cache_dir, max_bytes_in_memory)


def _from_table(
    data: Any,
    settings: TableSettings,
    cache_dir: str | os.PathLike[str] | None = None,
    max_bytes_in_memory: int = 0,
) -> EncodedProblem:
    """Return the problem of a data frame, a file or several."""
    whole_number("max_bytes_in_memory", max_bytes_in_memory, least=0)
    is_file = isinstance(data, str | os.PathLike)
    if isinstance(data, list | tuple) or (is_file and is_parquet(data)):
        return _from_parquet(data, settings, None if cache_dir is None else Path(cache_dir), max_bytes_in_memory)
    if cache_dir is not None and max_bytes_in_memory == 0:
        what = f"{data} is CSV" if is_file else "the table is in memory"
        raise InvalidInput(f"cache_dir is for Parquet, but {what}; write the table as Parquet")
    if is_file:
        return build_problem(frame_source(read_csv(data, settings.csv_format)), settings)
    settings.reject_csv_format("the table is in memory")
    return build_problem(frame_source(data), settings)


def _from_parquet(
    path: Paths, settings: TableSettings, folder: Path | None, max_bytes_in_memory: int
) -> EncodedProblem:
    settings.reject_csv_format(f"{path} is Parquet")
    files = parquet_files(path)
    with open_parquet(files) as source:
        settings = with_kind(source, settings)
        identity = cache_identity(files, settings)
        if folder is not None and cache_exists(folder):
            return open_cache(folder, identity, settings)
        layout = table_layout(source, settings)
        if folder is None or layout.nbytes <= max_bytes_in_memory:
            return problem_in_memory(layout, settings)
        write_cache(layout, folder, identity)
    if cache_identity(files, settings) != identity:
        remove_cache(folder)
        raise InvalidInput(f"{path} changed while it was being read; start again")
    return open_cache(folder, identity, settings)


def default_max_bytes_in_memory() -> int:
    """Return the size in bytes up to which a table's records are better held in memory than in a file.

    A fit takes about four times the memory of a table that is held in memory.
    """
    limit = memory_limit()
    return sys.maxsize if limit is None else limit // 4
