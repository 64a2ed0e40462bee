"""Problems from tables: data frames, CSV, Parquet and svmlight files."""

from __future__ import annotations  # so that help() shows ArrayLike, not what it stands for

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Unpack

import numpy as np
from numpy.typing import ArrayLike

from fedscaffold.core.checks import whole_number
from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.imports import load_optional
from fedscaffold.core.machine import memory_limit
from fedscaffold.data.encoded import EncodedProblem, build_problem, problem_in_memory, table_layout, with_kind
from fedscaffold.data.files import Paths, existing_file, is_parquet, open_parquet, parquet_files, read_csv
from fedscaffold.data.on_disk import cache_exists, cache_identity, open_cache, remove_cache, write_cache
from fedscaffold.data.settings import FitTableSettings, TableKeywords, TableSettings, shared_parameters
from fedscaffold.data.tables import frame_source, load_pyarrow

CSV = ("delimiter", "decimal", "encoding")


@shared_parameters(TableSettings, leave_out=("target", "client", *CSV))
def from_frame(frame: Any, *, target: str, client: str, **settings: Unpack[TableKeywords]) -> EncodedProblem:
    """Σ_c w_c f_c, where client c holds the rows of a data frame that name it in one column.

    Clients are sorted by name; within a client rows keep their order. The result is a `Ridge`, `Logistic` or
    `Multinomial` problem with two more attributes: `client_names`, and `encoding`, which encodes new rows the same
    way.

    Parameters
    ----------
    frame
        A pandas or polars DataFrame, a pyarrow Table, or another table with Arrow's C stream interface.
    target, client
        Names of the column to predict and of the column of each row's client.
    {TableSettings}

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
    >>> import pandas as pd
    >>> import fedscaffold as fs
    >>> visits = pd.DataFrame({
    ...     "hospital": ["A", "A", "B", "B"], "age": [50, 61, 47, 70], "ward": ["x", "y", "y", "x"],
    ...     "days": [2.0, 5.0, 4.0, 3.0],
    ... })
    >>> problem = fs.data.from_frame(visits, target="days", client="hospital", l2=0.1)
    >>> problem
    EncodedRidge(n_clients=2, dim=3, n_records=4, l2=0.1)
    >>> problem.client_names, problem.encoding.names
    (('A', 'B'), ('age', 'ward=x', 'ward=y'))
    """
    return _from_frame(frame, TableSettings(target=target, client=client, **settings))


def _from_frame(frame: Any, settings: TableSettings) -> EncodedProblem:
    settings.reject_csv_format("the table is in memory")
    return build_problem(frame_source(frame), settings)


@shared_parameters(TableSettings, leave_out=("target", "client"))
def from_csv(
    path: str | os.PathLike[str], *, target: str, client: str, **settings: Unpack[TableKeywords]
) -> EncodedProblem:
    r"""Σ_c w_c f_c, where client c holds the rows of a CSV file that name it in one column.

    The first line names the columns. Their types are found from all rows; empty fields and the usual spellings
    of a missing value (NA, NaN, null, ...) are missing. Encoding, delimiter and decimal mark are detected unless
    they are given. The whole file is held in memory besides the problem: for files larger than memory write
    Parquet.

    Parameters
    ----------
    path
        The file; compressed if its name ends in .gz, .bz2 or .zst.
    target, client
        Names of the column to predict and of the column of each row's client.
    {TableSettings}

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
    ...     _ = file.write_text("hospital,age,days\nA,50,2\nA,61,5\nB,47,4\nB,70,3\n")
    ...     fs.data.from_csv(file, target="days", client="hospital")
    EncodedRidge(n_clients=2, dim=1, n_records=4, l2=0.0)
    """
    return _from_csv(path, TableSettings(target=target, client=client, **settings))


def _from_csv(path: str | os.PathLike[str], settings: TableSettings) -> EncodedProblem:
    return build_problem(frame_source(read_csv(path, settings.csv_format)), settings)


@shared_parameters(TableSettings, leave_out=("target", "client", *CSV))
def from_svmlight(
    path: str | os.PathLike[str],
    *,
    clients: ArrayLike | Callable[[Any], ArrayLike],
    n_features: int | None = None,
    **settings: Unpack[TableKeywords],
) -> EncodedProblem:
    r"""Σ_c w_c f_c from a file in svmlight format, which does not say to which client a row belongs.

    The features become a dense array. In the encoding they are called x0, x1, ...

    Parameters
    ----------
    path
        The file.
    clients
        Each row's client, text or whole numbers; or a function that makes them from the targets, such as
        ``lambda y: partition.dirichlet(y, n_clients=10, alpha=0.5, seed=0)``.
    n_features
        Number of features, if the file may lack the last ones.
    {TableSettings}

    Returns
    -------
    EncodedProblem
        The problem.

    Raises
    ------
    InvalidInput
        If the file, the clients or the settings cannot be used.

    Examples
    --------
    >>> from pathlib import Path
    >>> from tempfile import TemporaryDirectory
    >>> import fedscaffold as fs
    >>> with TemporaryDirectory() as folder:
    ...     file = Path(folder) / "rows.svm"
    ...     _ = file.write_text("1.5 1:2 2:3\n0.5 2:1\n2.5 1:1\n1.0 1:4 2:2\n")
    ...     fs.data.from_svmlight(file, clients=["A", "A", "B", "B"], l2=0.1)
    EncodedRidge(n_clients=2, dim=2, n_records=4, l2=0.1)
    """
    chosen = TableSettings(target="target", client="client", **settings)
    pa = load_pyarrow()
    datasets = load_optional("sklearn.datasets", "svmlight files need scikit-learn", extra="data")
    file = existing_file(path)
    try:
        x, y = datasets.load_svmlight_file(str(file), n_features=n_features)
    except (ValueError, OSError) as error:
        raise InvalidInput(f"cannot read {path} as svmlight: {error}") from None
    owners = np.asarray(clients(y) if callable(clients) else clients)
    if owners.shape != y.shape:
        raise InvalidInput(f"clients must name one client for each of the {y.size} rows, got shape {owners.shape}")
    if owners.dtype.kind not in "iuUbO":
        raise InvalidInput(f"clients must be text or whole numbers, got {owners.dtype}")
    dense = x.toarray(order="F")
    columns = {f"x{j}": dense[:, j] for j in range(dense.shape[1])}
    return _from_frame(pa.table({**columns, "target": y, "client": pa.array(owners.tolist())}), chosen)


@shared_parameters(TableSettings, leave_out=("target", "client", *CSV))
def from_parquet(
    path: Paths,
    *,
    target: str,
    client: str,
    cache_dir: str | os.PathLike[str] | None = None,
    max_bytes_in_memory: int = 0,
    **settings: Unpack[TableKeywords],
) -> EncodedProblem:
    """Σ_c w_c f_c, where client c holds the rows of Parquet files that name it in one column.

    Files are read twice, some rows at a time, and never held as a whole: the first pass counts, the second
    fills the problem's array of float64. So memory is that array, 8 bytes for each row and coordinate, and some
    tens of megabytes. Clients may be interleaved in any order. The result equals that of `from_frame` to the bit.

    With `cache_dir` that array is written to a folder, client after client, and memory-mapped instead of held in
    memory: then it may be larger than memory. The folder is written once; the same call opens it at once, whatever
    `l2` and `weights` it asks for. It takes as much disk as the array, and twice that while it is written.

    Parameters
    ----------
    path
        The file; or several, as a list, or as a folder whose .parquet files are taken in the order of their names.
        All must have the same columns.
    target, client
        Names of the column to predict and of the column of each row's client.
    {TableSettings}
    cache_dir
        Folder for the encoded records: x.npy, y.npy, and records.json, which names their table and settings. It is
        made if it does not exist. A folder with the records of another table, of this one before it changed, or of
        other settings is rejected.
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
        If the table, the settings or the folder cannot be used.

    Examples
    --------
    >>> from pathlib import Path
    >>> from tempfile import TemporaryDirectory
    >>> import pandas as pd
    >>> import fedscaffold as fs
    >>> visits = pd.DataFrame({"hospital": ["A", "A", "B", "B"], "age": [50, 61, 47, 70], "days": [2, 5, 4, 3]})
    >>> with TemporaryDirectory() as folder:
    ...     visits.to_parquet(Path(folder) / "visits.parquet")
    ...     fs.data.from_parquet(Path(folder) / "visits.parquet", target="days", client="hospital")
    EncodedRidge(n_clients=2, dim=1, n_records=4, l2=0.0)
    """
    chosen = TableSettings(target=target, client=client, **settings)
    return _from_parquet(path, chosen, cache_dir, max_bytes_in_memory)


def _from_parquet(
    path: Paths, settings: TableSettings, cache_dir: str | os.PathLike[str] | None, max_bytes_in_memory: int
) -> EncodedProblem:
    settings.reject_csv_format(f"{path} is Parquet")
    whole_number("max_bytes_in_memory", max_bytes_in_memory, least=0)
    files = parquet_files(path)
    folder = None if cache_dir is None else Path(cache_dir)
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


@shared_parameters(FitTableSettings, leave_out=("target", "client"))
def open_problem(
    data: Any,
    *,
    target: str,
    client: str,
    cache_dir: str | os.PathLike[str] | None = None,
    max_bytes_in_memory: int = 0,
    **settings: Unpack[TableKeywords],
) -> EncodedProblem:
    r"""Σ_c w_c f_c over the rows of a table, as `fedscaffold fit` minimises it.

    By default features are standardised, there is an intercept, a client's weight is its number of rows, `l2` is
    "auto", and `kind` follows from the target.

    Parameters
    ----------
    data
        The path of a .csv or .parquet file, or of a folder of the latter; or a data frame as for `from_frame`.
    target, client
        Names of the column to predict and of the column of each row's client.
    {FitTableSettings}
    cache_dir
        Folder for the encoded records of a Parquet table that is larger than memory; see `data.from_parquet`.
    max_bytes_in_memory
        Records of at most this many bytes are held in memory although `cache_dir` is given.

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
    chosen = FitTableSettings(target=target, client=client, **settings)
    if isinstance(data, EncodedProblem):
        raise InvalidInput("this is a problem already; give it to fedscaffold.models.fit")
    is_file = isinstance(data, str | os.PathLike)
    if is_file and is_parquet(data):
        return _from_parquet(data, chosen, cache_dir, max_bytes_in_memory)
    if cache_dir is not None and max_bytes_in_memory == 0:
        what = f"{data} is CSV" if is_file else "the table is in memory"
        raise InvalidInput(f"cache_dir is for Parquet, but {what}; write the table as Parquet")
    return _from_csv(data, chosen) if is_file else _from_frame(data, chosen)


def default_max_bytes_in_memory() -> int:
    """Return the size in bytes up to which a table's records are better held in memory than in a file.

    A fit takes about four times the memory of a table that is held in memory.
    """
    limit = memory_limit()
    return sys.maxsize if limit is None else limit // 4
