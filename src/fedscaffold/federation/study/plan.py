"""The plan of a study: everything that people decide, in one document with a fingerprint that both ends show.

A site accepts one plan, by its digest. From then on a question carries a phase, a number and a vector; everything
else follows from the plan at both ends.
"""

import hashlib
import json
import math
import re
from collections.abc import Mapping
from functools import cached_property
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from fedscaffold.core.checks import in_words, shown
from fedscaffold.core.errors import InvalidInput
from fedscaffold.data.encoding import Category, Encoding, Number
from fedscaffold.data.public import PublicTarget
from fedscaffold.data.settings import parameter_entries, problems_of_status, time_and_status
from fedscaffold.inference.training import parse_tolerance
from fedscaffold.models.coding import Coding
from fedscaffold.problems.cox import problems_of_training
from fedscaffold.problems.families import FAMILIES, Kind, TargetFamily

FORMAT = "fedscaffold plan 2"
OTHER = "(other)"  # stands for all levels that are rare at a site
SITE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,39}")  # becomes a file's name, and is shown on terminals
MOST_SITES = 100_000  # sums have bits for a million
SPREAD = 6.0  # of a range in standard deviations, if nothing else is known: ± 3 cover nearly all of a normal law


def _no_controls(value: Any) -> Any:
    """Reject text that would move a terminal's cursor or hide a part of a name."""
    if isinstance(value, str) and not value.isprintable():
        raise ValueError("must not hold control characters")
    return value


Text = Annotated[str, BeforeValidator(_no_controls), Field(min_length=1, max_length=1000)]
Level = Annotated[str, BeforeValidator(lambda v: _no_controls(v if isinstance(v, str) else str(v)))]
Positive = Annotated[float, Field(gt=0.0, allow_inf_nan=False)]
Finite = Annotated[float, Field(allow_inf_nan=False)]


class Column(BaseModel):
    """An entry of the codebook: how one column is to be read.

    Parameters
    ----------
    type
        "number" or "category".
    unit
        Unit of a number, shown to the sites.
    range
        Lowest and highest possible number; a site whose mean lies outside cannot join.
    levels
        Levels of a category in their order; by default they are gathered from the sites.
    reference
        The level without a coefficient; by default the most frequent one, or the first.
    mean, sd
        Mean and standard deviation of a number; by default from sums over the sites.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    type: Literal["number", "category"] = "number"
    unit: Annotated[str, BeforeValidator(_no_controls)] = ""
    range: tuple[Finite, Finite] | None = None
    levels: tuple[Level, ...] | None = None
    reference: Level | None = None
    mean: Finite | None = None
    sd: Positive | None = None

    @model_validator(mode="before")
    @classmethod
    def _categories_have_levels(cls, values: Any) -> Any:
        if isinstance(values, Mapping) and "levels" in values and "type" not in values:
            return {**values, "type": "category"}
        return values

    @model_validator(mode="after")
    def _fits_its_type(self) -> Self:
        if self.type == "category" and (self.range or self.mean is not None or self.sd is not None):
            raise ValueError("a category has levels, not a range, mean or sd")
        if self.type == "number" and (self.levels or self.reference):
            raise ValueError("a number has no levels")
        if self.range and not self.range[0] < self.range[1]:
            raise ValueError("range must be a low and a high number")
        levels = self.levels or ()
        if len(set(levels)) < len(levels) or (self.levels is not None and len(levels) < 2):
            raise ValueError("levels must be two or more different values")
        if self.levels and self.reference is not None and self.reference not in self.levels:
            raise ValueError("reference must be one of the levels")
        return self

    @property
    def complete(self) -> bool:
        """Whether rows can be encoded without asking the sites."""
        if self.type == "category":
            return self.levels is not None
        return self.range is not None or (self.mean is not None and self.sd is not None)

    @property
    def centre(self) -> float:
        """The number that is subtracted: the mean, or the middle of the range."""
        if self.mean is not None or self.range is None:
            return self.mean or 0.0
        return 0.5 * (self.range[0] + self.range[1])

    @property
    def spread(self) -> float:
        """The number that is divided by: the standard deviation, or a sixth of the range."""
        if self.sd is not None or self.range is None:
            return self.sd or 1.0
        return (self.range[1] - self.range[0]) / SPREAD


class StudySettings(BaseModel):
    """Choices of a study; their names are the keys of its file, the flags and the keyword arguments.

    Parameters
    ----------
    target
        Name of the column to predict; for times until events two columns, ("time", "status").
    kind
        "ridge" for numbers, "logistic" for classes, "poisson" for counts, "gamma" for positive amounts, "cox" for
        times until events; by default logistic for text, ridge for numbers, cox for two columns.
    event
        The class whose log odds are modelled; by default the last one.
    columns
        The codebook: an entry for each column that is used, the target included. By default all columns of the
        sites' tables, or those in `features`.
    features, ignore, categorical
        Columns to predict from, columns to leave out, and features to treat as categories although they hold
        numbers.
    exposure, offset, weight
        Columns of exposures (of counts and amounts), offsets and weights of rows.
    status
        Column of 1 or true for an event at the time in `target`, else 0 or false; usually given in `target`.
    client_intercepts
        Whether each site has an intercept that never leaves it; training is by Newton's method.
    missing
        "error" for tables without missing values; "mean" replaces a missing number by the mean over all sites.
    l2
        Strength of the penalty l2/2 ‖θ‖² on standardised columns, intercept left out; "auto" is 1 over the rows of
        all sites.
    tolerance
        "se:0.05": every coefficient's error of optimisation is at most 5 % of its standard error. A number such as
        0.005: the distance to the pooled model relative to its norm.
    trainer
        "newton", "scaffold", or "auto", which takes what is expected to be faster.
    hessians
        Whether sites add up Hessians, which standard errors and Newton's method need. A Hessian contains all
        two-way counts of categories.
    max_exchanges
        Most questions that a site answers.
    evaluate
        Share of each site's rows that a second training leaves out to judge the model; 0 for no evaluation.
    min_cell
        Levels and classes with fewer rows at a site are merged before anything is added up. In open studies a
        site needs as many rows of each class, or with and without event.
    sums
        "secure": the coordinator gets sums over all sites and nothing else. "open": it gets every site's numbers.
    epsilon, delta
        A privacy budget: sites clip and add noise, and nothing else about their rows leaves them. All columns need
        a range or levels. There are no certificates, standard errors and evaluation.
    clip
        Largest norm of a row's gradient, or of the mean of a site's, under a budget; chosen by default.
    protect
        Unit of the budget: "rows", or "sites" with each site's table as a whole.

    Examples
    --------
    >>> from fedscaffold.federation import StudySettings
    >>> StudySettings(target="ill", min_cell=10).sums
    'secure'
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    target: Text
    kind: Kind | None = None
    event: Level | None = None
    columns: dict[Text, Column] = Field(default_factory=dict)
    features: tuple[Text, ...] | None = None
    ignore: tuple[Text, ...] = ()
    categorical: tuple[Text, ...] = ()
    exposure: Text | None = None
    offset: Text | None = None
    weight: Text | None = None
    status: Text | None = None
    client_intercepts: bool = False
    missing: Literal["error", "mean"] = "error"
    l2: Annotated[float, Field(ge=0.0, allow_inf_nan=False)] | Literal["auto"] = 0.0
    tolerance: str | float = "se:0.05"
    trainer: Literal["auto", "newton", "scaffold"] = "auto"
    hessians: bool = True
    max_exchanges: int = Field(default=500, ge=1, le=1_000_000)
    evaluate: float = Field(default=0.0, ge=0.0, lt=1.0)
    min_cell: int = Field(default=5, ge=1)
    sums: Literal["secure", "open"] = "secure"
    epsilon: Positive | None = None
    delta: Annotated[float, Field(gt=0.0, lt=1.0)] | None = None
    clip: Positive | None = None
    protect: Literal["rows", "sites"] = "rows"

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise in_words(error, "the study") from None

    @model_validator(mode="before")
    @classmethod
    def _target_may_be_two_columns(cls, values: Any) -> Any:
        return {**values, **time_and_status(values)} if isinstance(values, Mapping) else values

    @model_validator(mode="after")
    def _choices_fit(self) -> Self:
        problems = problems_of_status(self.kind, self.status, self.weight)
        if self.kind == "cox":
            problems += problems_of_training(
                self.trainer, client_intercepts=self.client_intercepts, hessians=self.hessians
            )
            problems += ["kind='cox' does not support evaluate=..."] if self.evaluate else []
        try:
            parse_tolerance(self.tolerance)
        except InvalidInput as error:
            problems.append(str(error))
        if self.client_intercepts and (self.trainer == "scaffold" or not self.hessians):
            problems.append("client_intercepts requires trainer='newton' or 'auto', and hessians=True")
        if self.exposure is not None and self.offset is not None:
            problems.append("pass either exposure=... or offset=..., its logarithm")
        if self.exposure is not None and self.kind not in ("poisson", "gamma"):
            problems.append("exposure is for kind='poisson' and kind='gamma'")
        if self.epsilon is None:
            problems += [f"{name} requires epsilon=..." for name in ("delta", "clip") if getattr(self, name)]
            problems += ["protect='sites' requires epsilon=..."] if self.protect == "sites" else []
        elif self.evaluate or self.client_intercepts or self.record_columns:
            problems.append(
                "a privacy budget does not cover kind='cox', evaluate, client_intercepts, exposure, offset, weight"
            )
        if problems:
            raise ValueError("; ".join(problems))
        return self

    @property
    def record_columns(self) -> dict[str, str]:
        """The columns of exposures, offsets, weights and events, by parameter."""
        found = {"exposure": self.exposure, "offset": self.offset, "weight": self.weight, "status": self.status}
        return {role: name for role, name in found.items() if name is not None}


class StudyPlan(StudySettings):
    """The document that sites accept: the choices of a study, its sites, and a codebook of every column.

    Parameters
    ----------
    name
        Name of the study.
    sites
        Names of the sites; sums are over exactly these.
    rows
        Rows of all sites together, once they are known; a privacy budget of rows takes them as public.

    Examples
    --------
    >>> from fedscaffold.federation import StudyPlan
    >>> columns = {"age": {"range": (0, 120)}, "ill": {"levels": ("no", "yes")}}
    >>> plan = StudyPlan(target="ill", kind="logistic", sites=("bonn", "graz", "lyon"), columns=columns)
    >>> plan.incomplete, len(plan.digest)
    ((), 64)
    """

    name: str = "study"
    sites: tuple[str, ...]
    rows: int | None = Field(default=None, ge=1)

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        problems = []
        problems += [
            f"{shown(name)} is not a name: letters, digits and . _ - are, at most 40"
            for name in (self.name, *self.sites)
            if not SITE_NAME.fullmatch(name)
        ]
        if len(set(self.sites)) < len(self.sites) or not 2 <= len(self.sites) <= MOST_SITES:
            problems.append("a study has two or more sites with different names")
        if self.sums == "secure" and len(self.sites) == 2:
            problems.append(
                "secure sums need three sites: of two, each gets the other's numbers; take sums='open'"
            )
        if self.kind is None or self.target not in self.columns:
            problems.append("a plan names the kind of model and has an entry for each column")
        elif self.family.classes != (self.columns[self.target].type == "category"):
            wanted = "a category" if self.family.classes else "a number"
            problems.append(f"the target {self.target!r} must be {wanted} for kind={self.kind!r}")
        if not self.feature_names:
            problems.append(f"there are no features besides the target {self.target!r}")
        problems += [f"{role} {name!r} is a feature too" for role, name in self.record_columns.items()
                     if name in self.columns]  # fmt: skip
        if self.epsilon is not None:
            problems += self._problems_of_budget()
        classes = self.columns[self.target].levels if self.target in self.columns else None
        if self.event is not None and classes is not None and self.event not in classes:
            problems.append(f"event {self.event!r} is not a class of {self.target!r}")
        if problems:
            raise ValueError("; ".join(problems))
        return self

    def _problems_of_budget(self) -> list[str]:
        found = [
            f"under a privacy budget column {name!r} needs a range or levels, and no mean or sd"
            for name, column in self.columns.items()
            if (column.range is None and column.levels is None) or column.mean is not None or column.sd is not None
        ]
        if self.delta is None:
            found.append("a privacy budget requires delta=...")
        if self.rows is None and (self.protect == "rows" or self.l2 == "auto"):
            found.append(
                "a privacy budget of rows requires rows=..., the rows of all sites, and so does l2='auto'"
            )
        if not found and self.kind is not None:
            try:
                self.public_target  # noqa: B018 - raises if the range does not fit the kind
            except InvalidInput as error:
                found.append(str(error))
        return found

    @property
    def public_target(self) -> PublicTarget:
        """The target's range or classes, under a privacy budget."""
        assert self.kind is not None
        goal = self.columns[self.target]
        ends = (0.0, 1.0) if goal.range is None else goal.range
        return PublicTarget(kind=self.kind, n_classes=len(goal.levels or ()), ends=ends)

    @property
    def family(self) -> TargetFamily:
        """The requirements of the kind of model on the target."""
        assert self.kind is not None
        return FAMILIES[self.kind]

    @property
    def feature_names(self) -> tuple[str, ...]:
        """The columns to predict from, in order."""
        return tuple(name for name in self.columns if name != self.target)

    @property
    def used_columns(self) -> tuple[str, ...]:
        """All columns that a site's table must have."""
        return (*self.columns, *self.record_columns.values())

    @property
    def incomplete(self) -> tuple[str, ...]:
        """The columns that need a survey before rows can be encoded."""
        times = self.target if self.family.baseline else None  # which are not encoded
        found = tuple(name for name, column in self.columns.items() if not column.complete and name != times)
        return found or (() if self.l2 != "auto" or self.rows else (self.target,))

    def to_json(self) -> dict[str, Any]:
        """Return JSON-compatible values; columns as a list, since their order counts."""
        values = self.model_dump(mode="json", exclude_defaults=True)
        columns = [{"name": name, **column} for name, column in values.pop("columns").items()]
        return {"format": FORMAT, **values, "columns": columns}

    @classmethod
    def from_json(cls, values: Any) -> Self:
        """Return the plan that `to_json` gave; raise if it is not one."""
        if not isinstance(values, Mapping) or values.get("format") != FORMAT:
            raise InvalidInput(f"this is not a plan that this version of fedscaffold knows ({FORMAT})")
        given = {str(name): value for name, value in values.items() if name != "format"}
        try:
            given["columns"] = {
                one["name"]: {k: v for k, v in one.items() if k != "name"} for one in given["columns"]
            }
        except (KeyError, TypeError, AttributeError):
            raise InvalidInput("the plan has no list of columns") from None
        return cls(**given)

    def to_toml(self) -> str:
        """Return the plan as text for people, in the format of a study's file."""
        values = self.model_dump(mode="json", exclude_defaults=True, exclude={"columns"})
        return "\n".join([*(f"{name} = {toml_value(value)}" for name, value in values.items()), self.codebook()])

    def codebook(self) -> str:
        """Return the tables of the columns in TOML."""
        lines = []
        for name, column in self.columns.items():
            said = {"type": column.type, **column.model_dump(mode="json", exclude_defaults=True)}
            lines += [
                "",
                f"[columns.{toml_value(name)}]",
                *(f"{key} = {toml_value(v)}" for key, v in said.items()),
            ]
        return "\n".join(lines) + "\n"

    @cached_property
    def layouts(self) -> dict[str, Any]:
        """The blocks of each phase's numbers that were computed so far, by `questions.blocks_of`."""
        return {}

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the plan's canonical JSON, in hexadecimal."""
        text = json.dumps(self.to_json(), sort_keys=True, separators=(",", ":"), ensure_ascii=True)
        return hashlib.sha256(text.encode()).hexdigest()

    @property
    def fingerprint(self) -> str:
        """The first digits of the digest in groups of four, for people to compare."""
        return " ".join(self.digest[k : k + 4] for k in range(0, 24, 4))

    def completes(self, earlier: "StudyPlan") -> bool:
        """Return whether this plan says the same as an earlier one, and only fills in what that left open."""
        if self.model_dump(exclude={"columns", "rows"}) != earlier.model_dump(exclude={"columns", "rows"}):
            return False
        if list(self.columns) != list(earlier.columns) or earlier.rows not in (None, self.rows):
            return False
        for name, before in earlier.columns.items():
            given = before.model_dump(exclude_none=True, exclude_defaults=True)
            now = self.columns[name].model_dump()
            if before.complete and self.columns[name] != before:
                return False
            if any(now[key] != value for key, value in given.items()):
                return False
        return True

    def coding(self) -> Coding:
        """Return how rows become numbers; raise if the codebook is not complete."""
        return self._coding

    @cached_property
    def _coding(self) -> Coding:
        if self.incomplete:
            raise InvalidInput(f"the codebook of {self.incomplete[0]!r} is not complete; a survey completes it")
        private = self.epsilon is not None
        columns: list[Number | Category] = []
        for name in self.feature_names:
            column = self.columns[name]
            if column.levels is None:
                fill = column.centre if self.missing == "mean" or private else None
                columns.append(Number(name=name, fill=fill, shift=column.centre, scale=column.spread))
            else:
                reference = column.levels[0] if column.reference is None else column.reference
                missing = (None,) if self.missing == "mean" else ()
                columns.append(Category(name=name, values=(*column.levels, *missing), reference=reference))
        goal, shift, scale, classes = self.columns[self.target], 0.0, 1.0, None
        if goal.levels is not None:
            event = goal.levels[-1] if self.event is None else self.event
            classes = (*(level for level in goal.levels if level != event), event)
        elif private:
            shift, scale = self.public_target.shift, self.public_target.scale
        elif self.family.baseline:
            pass  # only the order of times matters
        elif self.family.log_link:
            shift = math.log(max(goal.centre, 1e-300))
        else:
            shift, scale = goal.centre, goal.spread
        more: Any = {"kind": self.kind, **self.record_columns}
        encoding = Encoding(
            columns=tuple(columns), target=self.target, client="site", classes=classes,
            intercept=not (self.client_intercepts or self.family.baseline), **more,
        )  # fmt: skip
        return Coding(
            encoding=encoding, l2=1.0 / (self.rows or 1) if self.l2 == "auto" else self.l2, target_shift=shift,
            target_scale=scale, client_intercepts=self.client_intercepts,
            limit=SPREAD / 2.0 if private else None, target_limits=goal.range if private else None,
        )  # fmt: skip


def sentences(settings: type[BaseModel]) -> dict[str, str]:
    """Return the first sentence about each setting, from the documentation of its class."""
    found: dict[str, str] = {}
    for names, entry in parameter_entries(settings.__doc__ or "").items():
        sentence = " ".join(entry.partition("\n")[2].split()).split(". ")[0].rstrip(".")
        found |= dict.fromkeys(names.split(", "), sentence)
    return found


def toml_value(value: Any) -> str:
    """Return a JSON value as TOML, whose texts, numbers and lists are written alike."""
    return json.dumps(value, ensure_ascii=False)
