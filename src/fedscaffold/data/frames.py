"""Problems from tables in memory."""

from collections.abc import Sequence
from typing import Any

from fedscaffold.data.arrow import frame_source
from fedscaffold.data.build import Choices, Kind, Missing, build
from fedscaffold.data.framed import FramedLogistic, FramedMultinomial, FramedRidge, Weights


def from_frame(
    frame: Any,
    *,
    target: str,
    client: str,
    features: Sequence[str] | None = None,
    categorical: Sequence[str] = (),
    kind: Kind = "ridge",
    l2: float = 0.0,
    weights: Weights = "rows",
    missing: Missing = "error",
    standardize: bool = False,
    intercept: bool = False,
    min_rows: int = 2,
    max_categories: int = 100,
) -> FramedRidge | FramedLogistic | FramedMultinomial:
    """Σ_c w_c f_c, where client c holds the rows that name it in one column of a table.

    Clients are sorted by name; within a client rows keep their order. The result is a `Ridge` or `Logistic`
    problem with two attributes more: `client_names`, and `encoding`, which encodes new rows the same way.

    Parameters
    ----------
    frame
        A pandas or polars DataFrame, a pyarrow Table, or another table with Arrow's C stream interface.
    target
        The column to predict. Ridge: numbers. Logistic: two or more values of any kind.
    client
        The column that says whose row it is: text or whole numbers.
    features
        The columns to predict from; by default all others. Numbers are taken as they are, booleans as 0 and 1,
        text and categorical columns as one 0/1 coordinate per value.
    categorical
        Features to treat as categories although they hold whole numbers, booleans or text that looks numeric.
    kind
        "ridge" or "logistic".
    l2
        Strength of the penalty l2/2 ‖θ‖², which every client's f_c includes (not the intercept's).
    weights
        "rows": in proportion to the clients' numbers of rows, so that f is the loss of the pooled table.
        "uniform": every client counts the same. Or a dictionary from client name to weight.
    missing
        "error", or "mean": a missing number becomes the mean over all rows that have one, which takes only
        each client's count and sum; a missing category becomes a category of its own.
    standardize
        Subtract from each number its mean and divide by its standard deviation, over all rows.
    intercept
        Add a last coordinate that is 1 in every row.
    min_rows
        Refuse clients with fewer rows.
    max_categories
        Refuse text columns with more different values.
    """
    choices = Choices(
        target=target,
        client=client,
        features=features,
        categorical=categorical,
        kind=kind,
        l2=l2,
        weights=weights,
        missing=missing,
        standardize=standardize,
        intercept=intercept,
        min_rows=min_rows,
        max_categories=max_categories,
    )
    return build(frame_source(frame), choices)
