"""What the people of a study decide before it begins."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self, get_args

from fedscaffold.core.checks import not_negative, seed_number, whole_number
from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.storage.fields import Fields, shown
from fedscaffold.inference.tolerance import parse_tolerance
from fedscaffold.problems.families import FAMILIES, KINDS, Kind, TargetFamily

Trainer = Literal["auto", "scaffold", "newton"]


@dataclass(frozen=True, kw_only=True)
class StudySettings:
    """Target, model and tolerance of a study, and what sites tell about small groups.

    Parameters
    ----------
    target
        Name of the column to predict.
    kind
        "ridge" for numbers, "logistic" for classes, "poisson" for counts, "gamma" for positive amounts.
    features
        Names of the columns to predict from; by default all that the sites' tables have besides the target.
    ignore
        Columns that are not used.
    categorical
        Features to treat as categories although they hold numbers.
    l2
        Strength of the penalty l2/2 ‖θ‖² on standardised columns; the intercept is not penalised.
    tolerance
        "se:0.05": every coefficient's error of optimisation is at most 5 % of its standard error. A number such as
        0.005: the distance to the pooled model relative to its norm, intercept left out.
    missing
        "error" refuses missing values, "mean" replaces a missing number by the mean over all sites.
    min_cell
        A site tells no count of a category or class below this; such categories are merged into one.
    trainer
        "scaffold"; "newton", where sites send Hessians; or "auto", which takes what needs less time.
    batch_size
        Rows of a batch in Scaffold's local steps; "all" for all of a site's rows; or "auto", which takes batches
        where steps on all rows would take longer than what else a round costs.
    max_rounds
        Most exchanges of training before the study stops with what it has.
    evaluate
        Share of each site's rows that a second training leaves out to judge the model; 0 for no evaluation.
    seed
        Seed of batches and of the rows that are left out.
    classes
        Classes of the target, where sites might have fewer than `min_cell` rows of one; by default those that
        sites tell.
    exposure, offset, weight
        Names of the columns of exposures (of counts and amounts), offsets and weights of rows.
    client_intercepts
        Whether each site has an intercept of its own, as with one indicator column per site in pooled rows. It
        never leaves the site; training is by Newton's method.

    Examples
    --------
    >>> from fedscaffold.federation.study.settings import StudySettings
    >>> StudySettings(target="ill", kind="logistic").relative_tolerance is None
    True
    """

    target: str
    kind: Kind = "logistic"
    features: Sequence[str] | None = None
    ignore: Sequence[str] = ()
    categorical: Sequence[str] = ()
    l2: float = 0.01
    tolerance: str | float = "se:0.05"
    missing: Literal["error", "mean"] = "error"
    min_cell: int = 5
    trainer: Trainer = "auto"
    batch_size: int | Literal["auto", "all"] = "auto"
    max_rounds: int = 500
    evaluate: float = 0.2
    seed: int = 0
    classes: Sequence[Any] | None = None
    exposure: str | None = None
    offset: str | None = None
    weight: str | None = None
    client_intercepts: bool = False

    def __post_init__(self) -> None:
        problems = []
        target: Any = self.target
        if not isinstance(target, str) or not target:
            problems.append(f"target must be the name of a column, got {shown(self.target)}")
        for name, choices in (
            ("kind", KINDS),
            ("trainer", get_args(Trainer)),
            ("missing", ("error", "mean")),
        ):
            if getattr(self, name) not in choices:
                problems.append(f"{name} must be one of {', '.join(choices)}, got {shown(getattr(self, name))}")
        problems += [
            f"{name} must be a list of column names, got the text {shown(getattr(self, name))}"
            for name in ("ignore", "categorical")
            if isinstance(getattr(self, name), str)
        ]
        if isinstance(self.features, str) or (self.features is not None and not len(self.features)):
            problems.append(f"features must be a list of column names, got {shown(self.features)}")
        for name in ("features", "ignore", "categorical", "classes"):
            if isinstance(getattr(self, name), list):
                object.__setattr__(self, name, tuple(getattr(self, name)))
        try:
            object.__setattr__(self, "l2", not_negative("l2", self.l2))
            object.__setattr__(self, "min_cell", whole_number("min_cell", self.min_cell, least=1))
            if self.batch_size not in ("auto", "all"):
                object.__setattr__(self, "batch_size", whole_number("batch_size", self.batch_size, least=1))
            object.__setattr__(self, "max_rounds", whole_number("max_rounds", self.max_rounds, least=1))
            object.__setattr__(self, "seed", seed_number("seed", self.seed))
            share = not_negative("evaluate", self.evaluate)
            if not share < 1.0:
                problems.append(f"evaluate must be a share of the rows below 1, got {self.evaluate!r}")
        except InvalidInput as error:
            problems.append(str(error))
        try:
            parse_tolerance(self.tolerance)
        except InvalidInput as error:
            problems.append(str(error))
        problems += self._problems_of_columns() if not problems else []
        if problems:
            raise InvalidInput("; ".join(problems))

    def to_json(self) -> dict[str, Any]:
        """The settings as values that JSON can hold."""
        return {name: list(v) if isinstance(v, tuple) else v for name, v in vars(self).items()}

    @classmethod
    def from_json(cls, values: Any) -> Self:
        """The settings that `to_json` gave."""
        fields = Fields(values, "the study's settings")
        fields.only(*cls.__dataclass_fields__)
        try:
            return cls(**fields.as_dict())
        except TypeError as error:
            raise InvalidInput(f"the study's settings are incomplete: {error}") from None

    def _problems_of_columns(self) -> list[str]:
        found = []
        taken = [self.target, *(self.features or ())]
        for role, name in self.record_columns.items():
            known: Any = name
            if not isinstance(known, str) or name in taken:
                found.append(f"{role} must be the name of a column that has no other part, got {shown(name)}")
            taken.append(name)
        if self.client_intercepts not in (True, False):
            found.append(f"client_intercepts must be True or False, got {shown(self.client_intercepts)}")
        if self.client_intercepts and self.trainer == "scaffold":
            found.append("with client_intercepts training is by Newton's method; take trainer 'auto' or 'newton'")
        if self.exposure is not None and self.offset is not None:
            found.append("give either exposure or offset, its logarithm")
        if self.exposure is not None and not self.family.log_link:
            found.append(
                f"exposure is for kind 'poisson' and 'gamma', where it multiplies the mean, not {self.kind!r}"
            )
        return found

    @property
    def family(self) -> TargetFamily:
        """What the kind of model asks of the target."""
        return FAMILIES[self.kind]

    @property
    def record_columns(self) -> dict[str, str]:
        """The columns of exposures, offsets and weights, by parameter."""
        found = {"exposure": self.exposure, "offset": self.offset, "weight": self.weight}
        return {role: name for role, name in found.items() if name is not None}

    @property
    def se_tolerance(self) -> float | None:
        """The tolerance as a share of each coefficient's standard error; None if it is relative to the norm."""
        unit, value = parse_tolerance(self.tolerance)
        return value if unit == "se" else None

    @property
    def relative_tolerance(self) -> float | None:
        """The tolerance relative to the norm of the coefficients; None if it is in standard errors."""
        return None if isinstance(self.tolerance, str) else float(self.tolerance)
