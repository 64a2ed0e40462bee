"""Which rows belong to which client."""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.validation import check_array, check_consistent_length

from fedscaffold.core.errors import InvalidInput


def rows_of_clients(clients: Any, n_rows: int, min_rows: int) -> tuple[NDArray[Any], list[NDArray[np.int64]]]:
    """Ids of the clients in ascending order, and the positions of each one's rows.

    Parameters
    ----------
    clients
        One id per row, all text or all numbers.
    n_rows
        Number of rows.
    min_rows
        Clients with fewer rows are refused.
    """
    ids = check_array(clients, ensure_2d=False, dtype=None, input_name="clients", ensure_all_finite="allow-nan")
    if ids.ndim != 1:
        raise InvalidInput(f"clients must be one id per row, got an array of shape {ids.shape}")
    check_consistent_length(ids, np.empty(n_rows))
    missing = sum(each is None or each != each for each in ids.tolist())
    if missing:
        raise InvalidInput(
            f"clients holds None or NaN in {missing} of {n_rows} rows; name a client for each row, or give no "
            "clients at all for one"
        )
    try:
        names, index = np.unique(ids, return_inverse=True)
    except TypeError:
        raise InvalidInput("clients must be all text or all numbers, not some of each") from None
    sizes = np.bincount(index)
    small = np.flatnonzero(sizes < min_rows)
    if small.size:
        others = f" ({small.size} clients are that small)" if small.size > 1 else ""
        rows = int(sizes[small[0]])
        raise InvalidInput(
            f"client {names[small[0]]!s} has only {rows} row{'s' * (rows > 1)}{others}; leave out the rows of "
            f"such clients, or accept them with min_rows={rows}"
        )
    return names, np.split(np.argsort(index, kind="stable"), np.cumsum(sizes)[:-1])
