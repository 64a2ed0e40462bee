"""Problems from CSV and svmlight files."""

from __future__ import annotations  # so that help() shows ArrayLike, not what it stands for

import os
from collections.abc import Callable
from typing import Any, Unpack

import numpy as np
from numpy.typing import ArrayLike

from fedscaffold.core.docs import shared_parameters
from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.optional import load_optional
from fedscaffold.data.arrow import frame_source, load_pyarrow
from fedscaffold.data.build import build_problem
from fedscaffold.data.encoded import EncodedProblem
from fedscaffold.data.files import existing_file, read_csv
from fedscaffold.data.options import LossKeywords, TableKeywords, TableOptions
from fedscaffold.data.reading.csv_file import CsvFormat

TARGET, CLIENT = "target", "client"


@shared_parameters(TableOptions)
def from_csv(
    path: str | os.PathLike[str],
    *,
    delimiter: str | None = None,
    decimal: str | None = None,
    encoding: str | None = None,
    **options: Unpack[TableKeywords],
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
    {TableOptions}
    delimiter
        The character between fields. Detected: a semicolon, tab or bar where the first line has one and no comma
        outside quotes, else a comma.
    decimal
        The decimal mark. Detected: where the delimiter is no comma, columns that hold nothing but numbers with
        decimal commas are read as numbers.
    encoding
        A name that Python knows, such as "utf-8" or "latin-1". Detected: UTF-8, or Windows' code page 1252, a
        superset of Latin-1, where the file is no UTF-8.

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
    choices, text = TableOptions(**options), CsvFormat(delimiter=delimiter, decimal=decimal, encoding=encoding)
    return build_problem(frame_source(read_csv(path, text)), choices)


@shared_parameters(
    TableOptions,
    leave_out=("target", "client", "features", "drop", "categorical", "reference", "dates", "max_categories"),
)
def from_svmlight(
    path: str | os.PathLike[str],
    *,
    clients: ArrayLike | Callable[[Any], ArrayLike],
    n_features: int | None = None,
    **options: Unpack[LossKeywords],
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
    {TableOptions}

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
    choices = TableOptions(target=TARGET, client=CLIENT, **options)
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
    table = pa.table({**columns, TARGET: y, CLIENT: pa.array(owners.tolist())})
    return build_problem(frame_source(table), choices)
