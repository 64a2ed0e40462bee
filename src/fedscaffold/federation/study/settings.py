"""What the people of a study decide before it begins."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self, get_args

from fedscaffold.core.checks import not_negative, seed_number, whole_number
from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.storage.fields import Fields, shown

Kind = Literal["ridge", "logistic"]
Trainer = Literal["auto", "scaffold", "newton"]
TOLERANCE = re.compile(r"se:(0?\.\d+|\d+(\.\d*)?)")


@dataclass(frozen=True, kw_only=True)
class StudySettings:
    """Target, model and tolerance of a study, and what sites tell about small groups.

    Parameters
    ----------
    target
        Name of the column to predict.
    kind
        "ridge" for numbers, "logistic" for classes.
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
    max_rounds
        Most exchanges of training before the study stops with what it has.
    evaluate
        Share of each site's rows that a second training leaves out to judge the model; 0 for no evaluation.
    seed
        Seed of batches and of the rows that are left out.
    classes
        Classes of the target, where sites might have fewer than `min_cell` rows of one; by default those that
        sites tell.

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
    max_rounds: int = 500
    evaluate: float = 0.2
    seed: int = 0
    classes: Sequence[Any] | None = None

    def __post_init__(self) -> None:
        problems = []
        target: Any = self.target
        if not isinstance(target, str) or not target:
            problems.append(f"target must be the name of a column, got {shown(self.target)}")
        for name, choices in (
            ("kind", get_args(Kind)),
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
            object.__setattr__(self, "max_rounds", whole_number("max_rounds", self.max_rounds, least=1))
            object.__setattr__(self, "seed", seed_number("seed", self.seed))
            share = not_negative("evaluate", self.evaluate)
            if not share < 1.0:
                problems.append(f"evaluate must be a share of the rows below 1, got {self.evaluate!r}")
        except InvalidInput as error:
            problems.append(str(error))
        text = isinstance(self.tolerance, str)
        if text and not (TOLERANCE.fullmatch(str(self.tolerance)) and self._in_standard_errors() > 0):
            problems.append(f"tolerance must be a number or text such as 'se:0.05', got {shown(self.tolerance)}")
        elif not text and not (isinstance(self.tolerance, int | float) and 0 < self.tolerance < 1):
            problems.append(f"tolerance must be between 0 and 1, got {shown(self.tolerance)}")
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

    def _in_standard_errors(self) -> float:
        return float(str(self.tolerance).removeprefix("se:"))

    @property
    def se_tolerance(self) -> float | None:
        """The tolerance as a share of each coefficient's standard error; None if it is relative to the norm."""
        return self._in_standard_errors() if isinstance(self.tolerance, str) else None

    @property
    def relative_tolerance(self) -> float | None:
        """The tolerance relative to the norm of the coefficients; None if it is in standard errors."""
        return None if isinstance(self.tolerance, str) else float(self.tolerance)
