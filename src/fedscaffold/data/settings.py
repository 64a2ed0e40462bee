"""Settings that turn a table into a problem, declared once for Python, the command line and files."""

import codecs
import csv
import inspect
import textwrap
import tomllib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Literal, TypedDict, TypeVar, get_args

from fedscaffold.core.checks import choice, given, not_negative, set_fields, whole_number
from fedscaffold.core.errors import Collector, InvalidInput
from fedscaffold.problems.families import FAMILIES, KINDS, Kind, TargetFamily

T = TypeVar("T")
DatePart = Literal["year", "month", "weekday"]
DATE_PARTS: tuple[DatePart, ...] = get_args(DatePart)
Missing = Literal["error", "mean"]
Weights = Literal["rows", "uniform"] | Mapping[Any, float]
Penalty = float | Literal["auto"]


@dataclass(frozen=True, kw_only=True)
class CsvFormat:
    """The format of a CSV file: `delimiter`, `decimal` and `encoding` of `TableSettings`; None is detected."""

    delimiter: str | None = None
    decimal: str | None = None
    encoding: str | None = None

    def __post_init__(self) -> None:
        found = Collector("the CSV format")
        marks: dict[str, Any] = {"delimiter": self.delimiter, "decimal": self.decimal}
        for name, value in marks.items():
            if value is not None and not (isinstance(value, str) and len(value) == 1):
                found.add(f"{name} must be one character, got {given(value)}")
        if self.decimal is not None and self.decimal == self.delimiter:
            found.add(f"delimiter={self.delimiter!r} and decimal={self.decimal!r} must differ")
        if self.encoding is not None:
            try:
                codecs.lookup(self.encoding)
            except (LookupError, TypeError, ValueError):
                found.add(f"encoding is not known: {self.encoding!r}; names are such as utf-8 and latin-1")
        found.raise_any()


DETECTED = CsvFormat()


class TableKeywords(TypedDict, total=False):
    """The optional settings of `TableSettings` as keyword arguments, for type checkers."""

    features: Sequence[str] | None
    drop: Sequence[str]
    categorical: Sequence[str]
    reference: Mapping[str, Any]
    dates: Sequence[DatePart]
    kind: Kind | None
    l2: Penalty
    weights: Weights
    missing: Missing
    standardize: bool
    intercept: bool
    min_rows: int
    max_categories: int
    exposure: str | None
    offset: str | None
    weight: str | None
    status: str | None
    delimiter: str | None
    decimal: str | None
    encoding: str | None


@dataclass(frozen=True, kw_only=True)
class TableSettings:
    """Settings of a table: its columns, its loss, its weights. All problems are reported at once.

    The first sentence of each parameter is also the help text of its command-line option.

    Parameters
    ----------
    target
        Name of the column to predict. Ridge: numbers. Logistic: two or more different values of any kind. Poisson:
        counts. Gamma: positive amounts. Cox: two columns, ("time", "status"), the time of an event or of the last
        visit, and 1 or true for an event, else 0 or false.
    client
        Name of the column of each row's client. It holds text or whole numbers.
    features
        Columns to predict from; by default all others. Numbers are taken as they are, booleans as 0 and 1, text
        and categorical columns as a 0/1 coordinate per value; with an intercept, one value has no coordinate.
    drop
        Columns to leave out of the features.
    categorical
        Features to treat as categories although they hold numbers, booleans or text that looks numeric.
    reference
        Reference level of some categories, a dictionary from column to value. It has no coordinate, and the
        coefficients of the other values are differences from it. With an intercept every category has one, by
        default the most frequent value; otherwise coordinates and intercept would be collinear, and without a
        penalty the optimum would not be unique. Without an intercept all values have a coordinate by default.
    dates
        Parts to take of columns of dates: some of "year", "month" and "weekday". Years become numbers, months and
        weekdays categories. By default dates are rejected.
    kind
        Kind of model: "ridge", "logistic", "poisson", "gamma" or "cox". Logistic is multinomial for more than two
        classes; Poisson (counts) and Gamma (positive amounts such as costs) have a logarithmic link; Cox
        regression (times until events) has a baseline hazard for each client and no intercept. None: ridge for
        numbers with more than 20 different values, else logistic; cox for two columns.
    l2
        Strength of the penalty l2/2 ‖θ‖² on the mean loss, or "auto", which is 1/rows. Every client's f_c includes
        it; an intercept is not penalised. "auto" is the default penalty of scikit-learn's Ridge and
        LogisticRegression: beside the sum of all losses it is ½ ‖θ‖², so it fades as rows are added, and still
        makes the optimum unique if classes are separable or columns collinear.
    weights
        "rows": in proportion to the clients' numbers of rows, so that f is the loss of the pooled table.
        "uniform": the same for all clients. Or a dictionary from client name to weight.
    missing
        Treatment of missing values: "error", or "mean" to fill in the mean of the column. The mean is over all
        rows that have a value and takes only each client's count and sum; a missing category becomes a category.
    standardize
        Whether to subtract from each number its mean and divide by its standard deviation, over all rows.
    intercept
        Whether to add a last coordinate that is 1 in every row.
    min_rows
        Smallest number of rows of a client; smaller clients are rejected.
    max_categories
        Largest number of different values of a text column; columns with more are rejected.
    exposure
        Column of positive exposures, such as days under observation, for Poisson and Gamma regression. The mean of
        a row is proportional to it.
    offset
        Column of numbers that are added to the margins xᵀθ, such as the logarithm of an exposure.
    weight
        Column of positive factors of the rows' losses, as statsmodels' `var_weights`; not for Cox regression.
    status
        Column that says whether a row's time is that of an event, for Cox regression; usually given in `target`.
    delimiter
        Character between fields of a CSV file; by default detected, as are the next two. A semicolon, tab or bar
        if the first line has one and has no comma outside quotes, else a comma.
    decimal
        Decimal mark of a CSV file. Detected: unless the delimiter is a comma, columns that hold only numbers with
        decimal commas are read as numbers.
    encoding
        Text encoding of a CSV file, such as "utf-8" or "latin-1". Detected: UTF-8, or Windows' code page 1252, a
        superset of Latin-1.

    Examples
    --------
    >>> from fedscaffold.data.settings import TableSettings
    >>> TableSettings(target="days", client="hospital", l2=-1, min_rows=0)
    Traceback (most recent call last):
        ...
    fedscaffold.core.errors.InvalidInput: the table's setup has 2 problems:
    - min_rows must be a whole number of at least 1, got 0
    - l2 must be a number of at least 0, got -1
    """

    target: str
    client: str
    features: Sequence[str] | None = None
    drop: Sequence[str] = ()
    categorical: Sequence[str] = ()
    reference: Mapping[str, Any] = field(default_factory=dict)
    dates: Sequence[DatePart] = ()
    kind: Kind | None = "ridge"
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
    status: str | None = None
    delimiter: str | None = None
    decimal: str | None = None
    encoding: str | None = None

    def __post_init__(self) -> None:
        set_fields(self, **time_and_status(vars(self)))
        found = Collector("the table's setup")
        for name, allowed in (
            ("kind", KINDS), ("missing", get_args(Missing)), ("standardize", (True, False)),
            ("intercept", (True, False)),
        ):  # fmt: skip
            if getattr(self, name) is not None or name != "kind":
                with found.catching():
                    choice(name, getattr(self, name), allowed)
        for name in ("features", "drop", "categorical"):
            if getattr(self, name) is not None or name != "features":
                with found.catching():
                    set_fields(self, **{name: _column_names(name, getattr(self, name))})
        for name in ("min_rows", "max_categories"):
            with found.catching():
                set_fields(self, **{name: whole_number(name, getattr(self, name), least=1)})
        if not (isinstance(self.l2, str) and self.l2 == "auto"):
            with found.catching():
                set_fields(self, l2=not_negative("l2", self.l2))
        if not isinstance(self.reference, Mapping):
            found.add(f"reference must be a dictionary from column to value, got {given(self.reference)}")
        word: Any = self.weights
        if not isinstance(word, Mapping) and not (isinstance(word, str) and word in ("rows", "uniform")):
            found.add(
                f"weights must be 'rows', 'uniform' or a dictionary from client to weight, got {given(word)}"
            )
        with found.catching():
            set_fields(self, dates=check_date_parts(self.dates))
        with found.catching():
            self.csv_format  # noqa: B018 - raises if it is not valid
        self._check_roles(found)
        found.raise_any()

    def _check_roles(self, found: Collector) -> None:
        """Collect columns that are not named by text, or that have two roles."""
        roles: dict[str, Any] = {"target": self.target, "client": self.client, **self.record_columns}
        taken: dict[str, str] = {}
        for role, name in roles.items():
            if not isinstance(name, str):
                found.add(f"{role} must be the name of a column, got {given(name)}")
            elif name not in taken:
                taken[name] = role
            elif role == "client":
                found.add(f"column {name!r} cannot be both target and client")
            else:
                found.add(f"{role} names column {name!r}, which is the {taken[name]} too")
        for problem in problems_of_status(self.kind, self.status, self.weight):
            found.add(problem)
        if self.exposure is not None and self.offset is not None:
            found.add("pass either exposure=... or offset=..., its logarithm")
        if self.exposure is not None and (self.kind is None or (self.kind in KINDS and not self.family.log_link)):
            other = "pass kind=..." if self.kind is None else f"kind is {self.kind!r}"
            found.add(f"exposure is for kind='poisson' and kind='gamma', whose mean it multiplies; {other}")

    @property
    def family(self) -> TargetFamily:
        """The requirements of the kind of model on the target."""
        assert self.kind is not None  # chosen by the target before it is needed
        return FAMILIES[self.kind]

    @property
    def csv_format(self) -> CsvFormat:
        """The format of a CSV file."""
        return CsvFormat(delimiter=self.delimiter, decimal=self.decimal, encoding=self.encoding)

    @property
    def record_columns(self) -> dict[str, str]:
        """The columns that belong to rows and are neither features, target nor client, by parameter."""
        found = {"exposure": self.exposure, "offset": self.offset, "weight": self.weight, "status": self.status}
        return {role: name for role, name in found.items() if name is not None}

    def penalty(self, rows: int) -> float:
        """Return the strength of the l2 penalty for a table of this many rows."""
        return 1.0 / rows if self.l2 == "auto" else float(self.l2)

    def reject_csv_format(self, what: str) -> None:
        """Raise if the format of a CSV file is given for another table."""
        if self.csv_format != DETECTED:
            raise InvalidInput(f"delimiter=..., decimal=... and encoding=... are for CSV, but {what}")


def time_and_status(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return target, status and kind of settings whose target may be two columns, as a list or as text.

    Examples
    --------
    >>> from fedscaffold.data.settings import time_and_status
    >>> time_and_status({"target": ("days", "died")})
    {'target': 'days', 'status': 'died', 'kind': 'cox'}
    """
    target, kind = given.get("target"), given.get("kind")
    is_cox = isinstance(kind, str) and kind == "cox"
    if isinstance(target, str) and is_cox and given.get("status") is None and "," in target:
        target = split_names(target)
    if isinstance(target, list | tuple) and len(target) == 2:
        return {"target": target[0], "status": target[1], "kind": "cox" if kind is None else kind}
    return {}


def problems_of_status(kind: Any, status: Any, weight: Any) -> list[str]:
    """Return what is wrong with the columns of Cox regression, and of other kinds that have some of them."""
    if not isinstance(kind, str) or kind != "cox":
        return [] if status is None else ["two columns as target, a time and a status, are for kind='cox'"]
    found = [] if status is not None else ["kind='cox' needs two columns as target: target=('time', 'status')"]
    return found + ([] if weight is None else ["kind='cox' does not support weight=..."])


def shared_parameters(source: Any, *, leave_out: Collection[str] = ()) -> Callable[[T], T]:
    """Return a decorator that shows the documented parameters of a class of settings in a function or class.

    A line {Name} in the decorated docstring, with the name of the class, is replaced by the entries of its section
    Parameters, and **settings in a function's signature by its parameters with their defaults.

    Parameters
    ----------
    source
        The class of settings.
    leave_out
        Names of parameters that are not shown.
    """

    def decorate(target: Any) -> Any:
        entries = parameter_entries(source.__doc__ or "")
        shown = "\n".join(entry for name, entry in entries.items() if name not in leave_out)
        target.__doc__ = inspect.cleandoc(target.__doc__ or "").replace(f"{{{source.__name__}}}", shown)
        if not isinstance(target, type):
            signature = inspect.signature(target)
            own = [one for one in signature.parameters.values() if one.kind is not one.VAR_KEYWORD]
            hidden = {*leave_out, *(one.name for one in own)}
            added = [one for one in inspect.signature(source).parameters.values() if one.name not in hidden]
            target.__signature__ = signature.replace(parameters=[*own, *added])
        return target

    return decorate


def parameter_entries(docstring: str) -> dict[str, str]:
    """Return the entries of the section Parameters of a numpydoc docstring, not indented, by name."""
    _, _, after = inspect.cleandoc(docstring).partition("Parameters\n----------\n")
    found: dict[str, str] = {}
    name = ""
    for line in textwrap.dedent(after.partition("\n\n")[0]).splitlines():
        if line.startswith(" "):
            found[name] += f"\n{line}"
        else:
            name = line
            found[name] = line
    return found


@shared_parameters(TableSettings)
@dataclass(frozen=True, kw_only=True)
class FitTableSettings(TableSettings):
    """Settings of a table with the defaults of a fit: kind by the target, l2 "auto", standardized, an intercept.

    Parameters
    ----------
    {TableSettings}
    """

    kind: Kind | None = None
    l2: Penalty = "auto"
    standardize: bool = True
    intercept: bool = True


def check_date_parts(parts: Any) -> tuple[DatePart, ...]:
    """Return the parts of dates to take; raise unless they are some of year, month and weekday, each once."""
    try:
        listed = (parts,) if isinstance(parts, str) else tuple(parts)
    except TypeError:  # not iterable
        listed = (parts,)
    if not all(isinstance(part, str) and part in DATE_PARTS for part in listed) or len(set(listed)) < len(listed):
        raise InvalidInput(f"dates must be some of {', '.join(DATE_PARTS)}, got {given(parts)}")
    return listed


def _column_names(name: str, value: Any) -> tuple[str, ...]:
    """Return a parameter that lists columns as a tuple."""
    if isinstance(value, str):
        raise InvalidInput(f"{name} must be a list of column names, got the text {given(value)}")
    if isinstance(value, bytes | Mapping) or not isinstance(value, Iterable) or getattr(value, "ndim", 1) != 1:
        raise InvalidInput(f"{name} must be a list of column names, got {given(value)}")
    return tuple(value)


LISTS = {each.name for each in fields(TableSettings) if "Sequence" in str(each.type)} | {"ignore"}
"""Settings that list names; the last is a setting of studies."""
TEXTS = {each.name for each in fields(TableSettings) if each.type in (str, str | None)} | {"event"}
"""Settings that are text, such as names of columns; the last is a setting of studies."""


def parse_setting(name: str, text: str) -> Any:
    """Return the value of a setting from text, not yet checked.

    Names in a list are separated by commas, levels of `reference` are COLUMN=LEVEL, and other text that is not
    valid TOML, such as poisson, is taken as it is.

    Examples
    --------
    >>> from fedscaffold.data.settings import parse_setting
    >>> parse_setting("drop", "id, name"), parse_setting("min_rows", "1"), parse_setting("kind", "poisson")
    (['id', 'name'], 1, 'poisson')
    >>> parse_setting("reference", "ward=north,sex=f")
    {'ward': 'north', 'sex': 'f'}
    """
    if name in LISTS:
        return split_names(text)
    if name == "reference":
        return _parse_levels(text)
    if name == "delimiter" and text in ("tab", "\\t"):
        return "\t"
    if name in TEXTS:
        return text
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def split_names(text: str) -> list[str]:
    """Return names separated by commas, without the spaces around them; a name with a comma stands in quotes."""
    (row,) = csv.reader([text], skipinitialspace=True)
    return [name.strip() for name in row if name.strip()]


def _parse_levels(text: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for part in split_names(text):
        column, equals, level = part.partition("=")
        if not equals or not column or column in found:
            raise InvalidInput(f"reference must be COLUMN=LEVEL, each column once; got {text!r}")
        found[column] = level
    return found
