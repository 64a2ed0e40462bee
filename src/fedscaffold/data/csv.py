"""Problems from CSV and svmlight files."""

import os
from collections.abc import Callable
from typing import Any, Unpack

import numpy as np
from numpy.typing import ArrayLike

from fedscaffold.core.errors import InvalidInput, MissingDependency
from fedscaffold.data.arrow import frame_source, load_pyarrow
from fedscaffold.data.build import Choices, Problem, build
from fedscaffold.data.options import Fit, Options, existing

TARGET, CLIENT = "target", "client"


def from_csv(
    path: str | os.PathLike[str], *, target: str, client: str, delimiter: str = ",", **options: Unpack[Options]
) -> Problem:
    """Σ_c w_c f_c, where client c holds the rows of a CSV file that name it in one column.

    The first line names the columns. Their types are found from all rows; empty fields and the usual spellings
    of a missing value (NA, NaN, null, ...) are missing. The whole file is held in memory besides the problem: for
    files larger than memory write Parquet.

    Parameters
    ----------
    path
        The file; compressed if its name ends in .gz, .bz2 or .zst.
    target, client, **options
        As for `from_frame`.
    delimiter
        What separates fields.
    """
    choices = Choices(target=target, client=client, **options)
    return build(frame_source(read_csv(path, delimiter=delimiter)), choices)


def read_csv(path: str | os.PathLike[str], *, delimiter: str = ",") -> Any:
    """A CSV file as a pyarrow Table, types found from all rows; see `from_csv`."""
    if len(delimiter) != 1:
        raise InvalidInput(f"delimiter must be one character, got {delimiter!r}")
    pa = load_pyarrow()
    from pyarrow import csv

    file = existing(path)
    try:
        return csv.read_csv(
            file,
            parse_options=csv.ParseOptions(delimiter=delimiter),
            convert_options=csv.ConvertOptions(strings_can_be_null=True),
        )
    except (pa.ArrowException, OSError) as error:
        raise InvalidInput(f"cannot read {path} as CSV: {error}") from None


def from_svmlight(
    path: str | os.PathLike[str],
    *,
    clients: ArrayLike | Callable[[Any], ArrayLike],
    n_features: int | None = None,
    **options: Unpack[Fit],
) -> Problem:
    """Σ_c w_c f_c from a file in svmlight format, which does not say whose row it is.

    The features become a dense array. In the encoding they are called x0, x1, ...

    Parameters
    ----------
    path
        The file.
    clients
        Each row's client, text or whole numbers; or a function that makes them from the targets, such as
        ``lambda y: partition.dirichlet(y, n_clients=10, alpha=0.5, seed=0)``.
    n_features
        How many features there are, if the file may lack the last ones.
    **options
        As for `from_frame`: kind, l2, weights, missing, standardize, intercept, min_rows.
    """
    choices = Choices(target=TARGET, client=CLIENT, **options)
    pa = load_pyarrow()
    try:
        from sklearn.datasets import load_svmlight_file
    except ImportError as error:
        raise MissingDependency(
            "svmlight files need scikit-learn; install it with: pip install 'fedscaffold[data]'"
        ) from error
    file = existing(path)
    try:
        x, y = load_svmlight_file(str(file), n_features=n_features)
    except (ValueError, OSError) as error:
        raise InvalidInput(f"cannot read {path} as svmlight: {error}") from None
    owners = np.asarray(clients(y) if callable(clients) else clients)
    if owners.shape != y.shape:
        raise InvalidInput(f"clients must name one client for each of the {y.size} rows, got shape {owners.shape}")
    if owners.dtype.kind not in "iuUbO":
        raise InvalidInput(f"clients must be text or whole numbers, got {owners.dtype}")
    dense = x.toarray(order="F")
    columns = {f"x{j}": dense[:, j] for j in range(dense.shape[1])}
    return build(frame_source(pa.table({**columns, TARGET: y, CLIENT: pa.array(owners.tolist())})), choices)
