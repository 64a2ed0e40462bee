"""Problems from data frames in memory."""

from typing import Any, Unpack

from fedscaffold.core.docs import shared_parameters
from fedscaffold.data.arrow import frame_source
from fedscaffold.data.build import build_problem
from fedscaffold.data.encoded import EncodedProblem
from fedscaffold.data.options import TableKeywords, TableOptions


@shared_parameters(TableOptions)
def from_frame(frame: Any, **options: Unpack[TableKeywords]) -> EncodedProblem:
    """Σ_c w_c f_c, where client c holds the rows of a data frame that name it in one column.

    Clients are sorted by name; within a client rows keep their order. The result is a `Ridge`, `Logistic` or
    `Multinomial` problem with two more attributes: `client_names`, and `encoding`, which encodes new rows the same
    way.

    Parameters
    ----------
    frame
        A pandas or polars DataFrame, a pyarrow Table, or another table with Arrow's C stream interface.
    {TableOptions}

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
    return build_problem(frame_source(frame), TableOptions(**options))
