"""Options of the functions that make a problem from a table."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Required, TypedDict, get_args

from fedscaffold.core.checks import choice, given, not_negative, set_fields, whole_number
from fedscaffold.core.errors import InvalidInput
from fedscaffold.data.reading.dates import DatePart, check_parts
from fedscaffold.problems.families import FAMILIES, KINDS, Kind, TargetFamily

Missing = Literal["error", "mean"]
Weights = Literal["rows", "uniform"] | Mapping[Any, float]
Penalty = float | Literal["auto"]


class LossKeywords(TypedDict, total=False):
    """The fields of `TableOptions` that do not name columns, as keyword arguments."""

    kind: Kind
    l2: Penalty
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
    drop: Sequence[str]
    categorical: Sequence[str]
    reference: Mapping[str, Any]
    dates: Sequence[DatePart]
    max_categories: int
    exposure: str | None
    offset: str | None
    weight: str | None


class FileKeywords(TypedDict, total=False):
    """The fields of `TableOptions` that `open_problem` hands on, as keyword arguments."""

    features: Sequence[str] | None
    drop: Sequence[str]
    categorical: Sequence[str]
    reference: Mapping[str, Any]
    dates: Sequence[DatePart]
    missing: Missing
    min_rows: int
    max_categories: int
    exposure: str | None
    offset: str | None
    weight: str | None


@dataclass(frozen=True, kw_only=True)
class TableOptions:
    """How a table becomes a problem: which columns, which loss, which weights.

    Parameters
    ----------
    target
        Name of the column to predict. Ridge: numbers. Logistic: two or more different values of any kind. Poisson:
        counts. Gamma: positive amounts.
    client
        Name of the column that says to which client a row belongs: text or whole numbers.
    features
        Names of the columns to predict from; by default all others. Numbers are taken as they are, booleans as 0
        and 1, text and categorical columns as a 0/1 coordinate per value, of which an intercept takes one away.
    drop
        Names of columns to leave out of the features.
    categorical
        Features to treat as categories although they hold whole numbers, booleans or text that looks numeric.
    reference
        The reference level of some categories, a dictionary from column to value: it has no coordinate, and the
        others' coefficients say how they differ from it. With an intercept every category has one, the most
        frequent value unless given here; otherwise coordinates and intercept would say the same thing twice, and
        there would be no single optimum without a penalty. Without an intercept all values have a coordinate
        unless given here.
    dates
        Parts to take of columns that hold dates, some of "year", "month" and "weekday": years as numbers, months
        and weekdays as categories. Without any, dates are refused.
    kind
        "ridge", "logistic" (multinomial where the target has more than two classes), "poisson" (counts) or "gamma"
        (positive amounts such as costs); the latter two with the logarithm as link.
    l2
        Strength of the penalty l2/2 ‖θ‖², which every client's f_c includes. An intercept is not penalised.
        "auto": 1 divided by the number of rows, the default penalty of scikit-learn's Ridge and
        LogisticRegression.
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
    exposure
        Name of a column of positive numbers that the mean of a row is proportional to, such as days under
        observation; for Poisson and Gamma regression.
    offset
        Name of a column of numbers that are added to the margins xᵀθ; the logarithm of an exposure, for example.
    weight
        Name of a column of positive factors of the rows' losses, as statsmodels' `var_weights`.
    """

    target: str
    client: str
    features: Sequence[str] | None = None
    drop: Sequence[str] = ()
    categorical: Sequence[str] = ()
    reference: Mapping[str, Any] = field(default_factory=dict)
    dates: Sequence[DatePart] = ()
    kind: Kind = "ridge"
    l2: Penalty = 0.0
    weights: Weights = "rows"
    missing: Missing = "error"
    standardize: bool = False
    intercept: bool = False
    min_rows: int = 2
    max_categories: int = 100
    exposure: str | None = None
    offset: str | None = None
    weight: str | None = None

    def __post_init__(self) -> None:
        choice("kind", self.kind, KINDS)
        choice("missing", self.missing, get_args(Missing))
        choice("standardize", self.standardize, (True, False))
        choice("intercept", self.intercept, (True, False))
        for name in ("target", "client"):
            if not isinstance(getattr(self, name), str):
                raise InvalidInput(f"{name} must be the name of a column, got {given(getattr(self, name))}")
        for name in ("features", "drop", "categorical"):
            if getattr(self, name) is not None or name != "features":
                set_fields(self, **{name: _column_names(name, getattr(self, name))})
        if not isinstance(self.reference, Mapping):
            raise InvalidInput(f"reference must be a dictionary from column to value, got {given(self.reference)}")
        check_parts(self.dates)
        if self.target == self.client:
            raise InvalidInput(f"column {self.target!r} cannot be both target and client")
        self._check_record_columns()
        if not isinstance(self.weights, Mapping):
            word: Any = self.weights
            if not isinstance(word, str) or word not in ("rows", "uniform"):
                raise InvalidInput(
                    "weights must be 'rows', 'uniform' or a dictionary from client to weight, got "
                    f"{given(self.weights)}"
                )
        if not (isinstance(self.l2, str) and self.l2 == "auto"):
            set_fields(self, l2=not_negative("l2", self.l2))
        set_fields(
            self,
            min_rows=whole_number("min_rows", self.min_rows, least=1),
            max_categories=whole_number("max_categories", self.max_categories, least=1),
        )

    def _check_record_columns(self) -> None:
        roles = {"target": self.target, "client": self.client, **self.record_columns}
        for role, name in self.record_columns.items():
            if not isinstance(name, str):
                raise InvalidInput(f"{role} must be the name of a column, got {given(name)}")
            other = next(each for each, own in roles.items() if own == name)
            if other != role:
                raise InvalidInput(f"{role} names column {name!r}, which is the {other} too")
        if self.exposure is not None and self.offset is not None:
            raise InvalidInput("pass either exposure=... or offset=..., its logarithm")
        if self.exposure is not None and not self.family.log_link:
            raise InvalidInput("exposure is for kind='poisson' and kind='gamma', not for kind={self.kind!r}")

    @property
    def family(self) -> TargetFamily:
        """What the kind of model asks of the target."""
        return FAMILIES[self.kind]

    @property
    def record_columns(self) -> dict[str, str]:
        """The columns that belong to rows and are neither features, target nor client, by parameter."""
        found = {"exposure": self.exposure, "offset": self.offset, "weight": self.weight}
        return {role: name for role, name in found.items() if name is not None}

    def penalty(self, rows: int) -> float:
        """Strength of the l2 penalty for a table with this many rows."""
        return 1.0 / rows if self.l2 == "auto" else float(self.l2)


def _column_names(name: str, value: Any) -> tuple[str, ...]:
    """A parameter that lists columns, as a tuple."""
    if isinstance(value, str):
        raise InvalidInput(f"{name} must be a list of column names, got the text {given(value)}")
    if isinstance(value, bytes | Mapping) or not isinstance(value, Iterable):
        raise InvalidInput(f"{name} must be a list of column names, got {given(value)}")
    if getattr(value, "ndim", 1) != 1:
        raise InvalidInput(f"{name} must be a list of column names, got {given(value)}")
    return tuple(value)
