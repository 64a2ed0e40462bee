"""Options of the functions that make a problem from a table."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Required, TypedDict, get_args

from fedscaffold.core.checks import choice, given, not_negative, set_fields, whole_number
from fedscaffold.core.errors import InvalidInput

Kind = Literal["ridge", "logistic"]
Missing = Literal["error", "mean"]
Weights = Literal["rows", "uniform"] | Mapping[Any, float]


class LossKeywords(TypedDict, total=False):
    """The fields of `TableOptions` that do not name columns, as keyword arguments."""

    kind: Kind
    l2: float
    weights: Weights
    missing: Missing
    standardize: bool
    intercept: bool
    min_rows: int


class TableKeywords(LossKeywords, total=False):
    """The fields of `TableOptions`, as keyword arguments."""

    target: Required[str]
    client: Required[str]
    features: Sequence[str] | None
    categorical: Sequence[str]
    max_categories: int


@dataclass(frozen=True, kw_only=True)
class TableOptions:
    """How a table becomes a problem: which columns, which loss, which weights.

    Parameters
    ----------
    target
        Name of the column to predict. Ridge: numbers. Logistic: two or more different values of any kind.
    client
        Name of the column that says to which client a row belongs: text or whole numbers.
    features
        Names of the columns to predict from; by default all others. Numbers are taken as they are, booleans as 0
        and 1, text and categorical columns as one 0/1 coordinate per value.
    categorical
        Features to treat as categories although they hold whole numbers, booleans or text that looks numeric.
    kind
        "ridge" or "logistic" (multinomial where the target has more than two classes).
    l2
        Strength of the penalty l2/2 ‖θ‖², which every client's f_c includes. An intercept is not penalised.
    weights
        "rows": in proportion to the clients' numbers of rows, so that f is the loss of the pooled table.
        "uniform": the same for all clients. Or a dictionary from client name to weight.
    missing
        "error" refuses missing values. "mean" replaces a missing number by the mean over all rows that have one,
        which takes only each client's count and sum; a missing category becomes a category of its own.
    standardize
        Whether to subtract from each number its mean and divide by its standard deviation, over all rows.
    intercept
        Whether to add a last coordinate that is 1 in every row.
    min_rows
        Clients with fewer rows are refused.
    max_categories
        Text columns with more different values are refused.
    """

    target: str
    client: str
    features: Sequence[str] | None = None
    categorical: Sequence[str] = ()
    kind: Kind = "ridge"
    l2: float = 0.0
    weights: Weights = "rows"
    missing: Missing = "error"
    standardize: bool = False
    intercept: bool = False
    min_rows: int = 2
    max_categories: int = 100

    def __post_init__(self) -> None:
        choice("kind", self.kind, get_args(Kind))
        choice("missing", self.missing, get_args(Missing))
        choice("standardize", self.standardize, (True, False))
        choice("intercept", self.intercept, (True, False))
        for name in ("target", "client"):
            if not isinstance(getattr(self, name), str):
                raise InvalidInput(f"{name} must be the name of a column, got {given(getattr(self, name))}")
        for name in ("features", "categorical"):
            value = getattr(self, name)
            if value is None and name == "features":
                continue
            if isinstance(value, str):
                raise InvalidInput(f"{name} must be a list of column names, got the text {given(value)}")
            if isinstance(value, bytes | Mapping) or not isinstance(value, Iterable):
                raise InvalidInput(f"{name} must be a list of column names, got {given(value)}")
            try:
                set_fields(self, **{name: tuple(value)})
            except TypeError:  # an array without axes
                raise InvalidInput(f"{name} must be a list of column names, got {given(value)}") from None
        if self.target == self.client:
            raise InvalidInput(f"column {self.target!r} cannot be both target and client")
        if not isinstance(self.weights, Mapping):
            word: Any = self.weights
            if not isinstance(word, str) or word not in ("rows", "uniform"):
                raise InvalidInput(
                    "weights must be 'rows', 'uniform' or a dictionary from client to weight, "
                    f"got {given(self.weights)}"
                )
        set_fields(
            self,
            l2=not_negative("l2", self.l2),
            min_rows=whole_number("min_rows", self.min_rows, least=1),
            max_categories=whole_number("max_categories", self.max_categories, least=1),
        )
