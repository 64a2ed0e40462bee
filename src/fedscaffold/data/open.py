"""Problems from tables in files, as the command line opens them."""

import os
import sys
from collections.abc import Iterator, Sequence
from typing import Any, Unpack

from fedscaffold.core.docs import shared_parameters
from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.storage.memory_limit import memory_limit
from fedscaffold.data.arrow import frame_source, is_number, labels
from fedscaffold.data.columns import check_names, pick
from fedscaffold.data.encoded import EncodedProblem
from fedscaffold.data.files import DETECTED, is_parquet, open_parquet, parquet_files, read_csv
from fedscaffold.data.frame import from_frame
from fedscaffold.data.options import FileKeywords, Penalty, TableOptions
from fedscaffold.data.parquet import from_parquet
from fedscaffold.data.reading.csv_file import CsvFormat
from fedscaffold.problems.families import Kind

FEW_VALUES = 20  # a numeric target with more different values than this is a quantity, not a class
MEMORY_PER_TABLE = 4  # a fit takes about four times the memory of its table, where the table is held in memory


def default_max_bytes_in_memory() -> int:
    """Size in bytes up to which a table's records are better held in memory than in a file."""
    limit = memory_limit()
    return sys.maxsize if limit is None else limit // MEMORY_PER_TABLE


@shared_parameters(
    TableOptions,
    leave_out=("target", "client", "kind", "l2", "weights", "standardize", "intercept"),
)
def open_problem(
    path: str | os.PathLike[str],
    *,
    target: str,
    client: str,
    kind: Kind | None = None,
    l2: Penalty = "auto",
    cache_dir: str | os.PathLike[str] | None = None,
    max_bytes_in_memory: int = 0,
    delimiter: str | None = None,
    decimal: str | None = None,
    encoding: str | None = None,
    **options: Unpack[FileKeywords],
) -> EncodedProblem:
    r"""Σ_c w_c f_c over the rows of a table in a file, as `fedscaffold fit` minimises it.

    Features are standardised, there is an intercept, and a client's weight is its number of rows.

    Parameters
    ----------
    path
        A .csv or .parquet file, or a folder of the latter.
    target, client
        Names of the column to predict, and of the column that says to which client a row belongs.
    {TableOptions}
    kind
        "ridge", "logistic", "poisson" (counts) or "gamma" (positive amounts); by default ridge for numbers with
        more than 20 different values, else logistic.
    l2
        Strength of the penalty l2/2 ‖θ‖² on the mean loss; the intercept is not penalised. "auto": 1 divided by
        the number of rows, which is what scikit-learn's Ridge and LogisticRegression and the estimators of
        `fedscaffold.sklearn` take by default. Beside the sum of all losses it counts as ½ ‖θ‖², so that it fades
        as rows are added, and still makes the optimum unique where classes can be separated or columns are
        collinear.
    cache_dir
        Folder for the encoded records of a Parquet table that is larger than memory; see `data.from_parquet`.
    max_bytes_in_memory
        Records of at most this many bytes are held in memory although `cache_dir` is given.
    delimiter, decimal, encoding
        How to read a CSV file; detected unless given, see `data.from_csv`.

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
    text = CsvFormat(delimiter=delimiter, decimal=decimal, encoding=encoding)
    same: Any = {
        "target": target,
        "client": client,
        "l2": l2,
        "weights": "rows",
        "standardize": True,
        "intercept": True,
        **options,
    }
    TableOptions(kind=kind or "ridge", **same)  # refused before the file is read
    if is_parquet(path):
        if text != DETECTED:
            raise InvalidInput(f"delimiter=..., decimal=... and encoding=... are for CSV, but {path} is Parquet")
        return from_parquet(
            path,
            kind=kind or guess_kind(_parquet_column(path, target)),
            cache_dir=cache_dir,
            max_bytes_in_memory=max_bytes_in_memory,
            **same,
        )
    if cache_dir is not None and max_bytes_in_memory == 0:
        raise InvalidInput(f"cache_dir is for Parquet, but {path} is CSV; write the table as Parquet")
    table = read_csv(path, text)
    if kind is None:
        names = frame_source(table).names
        check_names(names)
        kind = guess_kind(table.column(target).chunks) if target in names else "ridge"
    return from_frame(table, kind=kind, **same)


def guess_kind(column: Iterator[Any] | Sequence[Any]) -> Kind:
    """Kind of problem for a target column, given as Arrow arrays.

    "ridge" for numbers with more than 20 different values, else "logistic".
    """
    seen: set[Any] = set()
    for array in column:
        if not is_number(array.type):
            return "logistic"
        seen.update(labels("target", array).unique().drop_null().to_pylist())
        if len(seen) > FEW_VALUES:
            return "ridge"
    return "logistic"


def _parquet_column(path: str | os.PathLike[str], name: str) -> Iterator[Any]:
    with open_parquet(parquet_files(path)) as source:
        wanted = [pick(source.names, name)]
        for batch in source.open(wanted)(wanted):
            yield batch.column(0)
