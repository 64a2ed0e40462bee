"""What the people of a study decide before it begins."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, Self, get_args

from fedscaffold.core.checks import choice, not_negative, seed_number, set_fields, shown, whole_number
from fedscaffold.core.errors import Collector, InvalidInput
from fedscaffold.core.files import Fields
from fedscaffold.data.public import Bounds
from fedscaffold.inference.tolerance import parse_tolerance
from fedscaffold.privacy.settings import PrivacySettings, refuse_beside_epsilon
from fedscaffold.problems.families import FAMILIES, KINDS, TargetFamily

Trainer = Literal["auto", "scaffold", "newton"]


def _share_of_rows(name: str, value: Any) -> float:
    """Value as a float, refused unless it is at least 0 and below 1."""
    share = not_negative(name, value)
    if not share < 1.0:
        raise InvalidInput(f"{name} must be a share of the rows below 1, got {value!r}")
    return share


NOT_PRIVATE = (
    "features", "ignore", "tolerance", "missing", "trainer", "batch_size", "evaluate", "classes", "exposure",
    "offset", "weight", "client_intercepts",
)  # settings that stay as they are under a privacy budget  # fmt: skip
WORDS = {"batch_size": ("auto", "all"), "l2": ("auto",)}  # in place of numbers
_NUMBERS: dict[str, Callable[[str, Any], float]] = {
    "l2": not_negative,
    "min_cell": partial(whole_number, least=1),
    "batch_size": partial(whole_number, least=1),
    "max_rounds": partial(whole_number, least=1),
    "seed": seed_number,
    "evaluate": _share_of_rows,
}


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
        Strength of the penalty l2/2 ‖θ‖² on standardised columns; the intercept is not penalised. "auto" is 1 over
        the number of rows of all sites.
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
    secure
        Whether the coordinator learns only sums over all sites (`federation.secure_sum`).
    epsilon, delta
        A privacy budget: sites clip and add noise themselves, and nothing else about their rows leaves them. δ is
        a tenth of one over the rows of the largest site unless given. Training is by Scaffold on all rows, without
        certificate, standard errors and evaluation.
    protect
        What the budget is of: "rows", every row of every site; or "sites", each site's table as a whole, its
        number of rows included: sites then count alike, and `l2` and `delta` must be given. It takes many sites.
    clip
        The largest norm of a row's gradient under a budget, or of the change of the model that a site sends;
        chosen unless given.
    bounds
        Under a budget, the public range (low, high) or the possible values of the target and of every feature, by
        column; of counts whole numbers from 0 on, of positive amounts with a low end above 0.
    secure_threshold
        Number of sites that must be there to the end of a secure sum, and that would have to work together with
        the coordinator to learn a single site's numbers; more than half, and two thirds of them unless given.

    Examples
    --------
    >>> from fedscaffold.federation.study.settings import StudySettings
    >>> StudySettings(target="ill", kind="logistic").relative_tolerance is None
    True
    """

    target: str
    kind: str = "logistic"
    features: Sequence[str] | None = None
    ignore: Sequence[str] = ()
    categorical: Sequence[str] = ()
    l2: float | Literal["auto"] = "auto"
    tolerance: str | float = "se:0.05"
    missing: str = "error"
    min_cell: int = 5
    trainer: str = "auto"
    batch_size: int | Literal["auto", "all"] = "auto"
    max_rounds: int = 500
    evaluate: float = 0.2
    seed: int = 0
    classes: Sequence[Any] | None = None
    exposure: str | None = None
    offset: str | None = None
    weight: str | None = None
    client_intercepts: bool = False
    secure: bool = False
    secure_threshold: int | None = None
    epsilon: float | None = None
    delta: float | None = None
    clip: float | None = None
    bounds: Mapping[str, Sequence[Any]] | None = None
    protect: str = "rows"

    def __post_init__(self) -> None:
        found = Collector("the study")
        target: Any = self.target
        if not isinstance(target, str) or not target:
            found.add(f"target must be the name of a column, got {shown(self.target)}")
        for name, choices in (
            ("kind", KINDS),
            ("trainer", get_args(Trainer)),
            ("missing", ("error", "mean")),
            ("protect", ("rows", "sites")),
        ):
            with found.catching():
                choice(name, getattr(self, name), choices)
        for name in ("features", "ignore", "categorical", "classes"):
            value = getattr(self, name)
            if value is None and name in ("features", "classes"):
                continue
            plain = isinstance(value, list | tuple) and all(isinstance(item, str | int | float) for item in value)
            if not plain or (name == "features" and not value):
                found.add(f"{name} must be a list, got {shown(value)}")
            else:
                set_fields(self, **{name: tuple(value)})
        for name, check in _NUMBERS.items():
            value = getattr(self, name)
            if not isinstance(value, str) or value not in WORDS.get(name, ()):
                with found.catching():
                    set_fields(self, **{name: check(name, value)})
        with found.catching():
            unit, value = parse_tolerance(self.tolerance)
            set_fields(self, tolerance=self.tolerance if unit == "se" else value)
        with found.catching():
            choice("secure", self.secure, (True, False))
        if self.secure_threshold is not None:
            with found.catching():
                set_fields(self, secure_threshold=whole_number("secure_threshold", self.secure_threshold, least=2))
            if self.secure is False:
                found.add("secure_threshold requires secure=True")
        if not found.problems:
            self._check_columns(found)
            self._check_privacy(found)
        found.raise_any()

    def penalty(self, n_rows: int) -> float:
        """Strength of the l2 penalty where sites have this many rows together."""
        return 1.0 / max(n_rows, 1) if isinstance(self.l2, str) else self.l2

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

    def _check_columns(self, found: Collector) -> None:
        if self.classes is not None and len(set(self.classes)) < max(2, len(self.classes)):
            found.add(f"classes must be two or more different classes, got {shown(self.classes)}")
        taken = [self.target, *(self.features or ())]
        for role, name in self.record_columns.items():
            known: Any = name
            if not isinstance(known, str) or name in taken:
                found.add(f"{role} must be the name of a column that has no other part, got {shown(name)}")
            taken.append(name)
        with found.catching():
            choice("client_intercepts", self.client_intercepts, (True, False))
        if self.client_intercepts is True and self.trainer == "scaffold":
            found.add("client_intercepts requires trainer='auto' or trainer='newton'")
        if self.exposure is not None and self.offset is not None:
            found.add("pass either exposure=... or offset=..., its logarithm")
        if self.exposure is not None and not self.family.log_link:
            found.add(f"exposure is for models 'poisson' and 'gamma', not {self.kind!r}")

    def _check_privacy(self, found: Collector) -> None:
        if self.epsilon is None:
            for name in ("delta", "clip", "bounds"):
                if getattr(self, name) is not None:
                    found.add(f"{name} requires epsilon=...")
            if self.protect != "rows":
                found.add("protect requires epsilon=...")
            return
        if self.protect == "sites" and isinstance(self.l2, str):
            found.add(
                "protect='sites' requires l2=...: the default, one over the number of rows, reveals that number"
            )
        if self.protect == "sites" and self.delta is None:
            found.add("protect='sites' requires delta=..., below one over the number of sites")
        usual = {name: field.default for name, field in StudySettings.__dataclass_fields__.items()}
        given = {name: getattr(self, name) for name in NOT_PRIVATE}
        if self.evaluate == 0.0:
            del given["evaluate"]
        if isinstance(self.bounds, Mapping) and {self.target, *(self.features or ())} == set(self.bounds):
            del given["features"]  # as a study's file and messages have them
        with found.catching():
            refuse_beside_epsilon(given, usual)
        with found.catching():
            budget: Any = self.budget
            set_fields(self, epsilon=budget.epsilon, delta=budget.delta, clip=budget.clip, evaluate=0.0)
        with found.catching():
            known = Bounds.parse(
                self.bounds, target=self.target, kind=self.kind, categorical=self.categorical, as_text=True
            )
            columns = {name: list(value) for name, value in known.columns.items()}
            features = self.features or tuple(name for name in columns if name != self.target)
            if self.protect == "sites" and (known.public_target.vectors > 1 or self.family.log_link):
                raise InvalidInput("studies that protect sites predict a number or one of two classes")
            set_fields(self, bounds=columns, features=features)

    @property
    def known_tolerance(self) -> str:
        """The tolerance as text; "" under a privacy budget, where the distance to the pooled model is unknown."""
        return "" if self.epsilon is not None else str(self.tolerance)

    @property
    def budget(self) -> PrivacySettings | None:
        """The privacy budget; None without one."""
        if self.epsilon is None:
            return None
        return PrivacySettings(epsilon=self.epsilon, delta=self.delta, clip=self.clip)

    @property
    def public_bounds(self) -> Bounds | None:
        """What is publicly known of the columns under a privacy budget; None without one."""
        if self.epsilon is None:
            return None
        return Bounds.parse(
            self.bounds, target=self.target, kind=self.kind, categorical=self.categorical, as_text=True
        )

    @property
    def family(self) -> TargetFamily:
        """What the kind of model asks of the target."""
        kind: Any = self.kind  # checked to be one of them
        return FAMILIES[kind]

    def check_number_of_sites(self, n_sites: int) -> None:
        """Refuse settings that do not fit so many sites, all problems at once."""
        found = Collector("the study")
        if self.secure:
            with found.catching():
                self.threshold(n_sites)
        if self.budget is not None and self.protect == "sites":
            with found.catching():
                self.budget.delta_for([n_sites], "sites")
        found.raise_any()

    def threshold(self, n_sites: int) -> int:
        """The threshold of secure sums over so many sites; refused if there are too few or too many for it."""
        given = self.secure_threshold
        found = max(2, -(-2 * n_sites // 3)) if given is None else given
        if not n_sites // 2 < found <= n_sites:
            raise InvalidInput(
                f"secure_threshold must be more than half of the {n_sites} sites, and at most all, got {found}"
            )
        return found

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
