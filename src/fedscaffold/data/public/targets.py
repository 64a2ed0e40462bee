"""What is publicly known of a target: its range, or its classes."""

import math
from dataclasses import dataclass

from fedscaffold.core.errors import InvalidInput
from fedscaffold.problems.families import FAMILIES, Kind

LIMIT = 3.0  # of encoded numbers: half of a range over a sixth of it


@dataclass(frozen=True, kw_only=True)
class PublicTarget:
    """The kind of model of a target, and its range or its number of classes; refused where they do not fit.

    Parameters
    ----------
    kind
        "ridge", "logistic", "poisson" or "gamma".
    n_classes
        Number of classes; 0 for numbers.
    ends
        Lowest and highest number, which say nothing for classes.

    Examples
    --------
    >>> import math
    >>> from fedscaffold.data.public.targets import PublicTarget
    >>> PublicTarget(kind="ridge", ends=(0.0, 12.0)).scale
    2.0
    >>> visits = PublicTarget(kind="poisson", ends=(0.0, 16.0))
    >>> round(math.exp(visits.shift), 6)  # the mean at θ = 0
    4.0
    """

    kind: Kind
    n_classes: int = 0
    ends: tuple[float, float] = (0.0, 1.0)

    def __post_init__(self) -> None:
        if self.kind == "logistic" and self.n_classes < 2:
            raise InvalidInput(f"the target must have two classes or more, got {self.n_classes}")
        family, (low, high) = FAMILIES[self.kind], self.ends
        what = f"the range of {family.target}"
        if family.least is not None and family.out_of_range(low) is not None:
            raise InvalidInput(f"{what} must {family.out_of_range(low)}, got ({low:g}, {high:g})")
        if family.whole and not (low.is_integer() and high.is_integer()):
            raise InvalidInput(f"{what} must be whole numbers, got ({low:g}, {high:g})")

    @property
    def vectors(self) -> int:
        """Number of vectors in θ: one per class where there are more than two, else one."""
        return self.n_classes if self.n_classes > 2 else 1

    @property
    def shift(self) -> float:
        """The middle of a range, for counts and amounts the logarithm of √(low · high); 0 for classes.

        Counts have their middle between 1 and the highest, since a mean of 0 has no logarithm.
        """
        family, (low, high) = FAMILIES[self.kind], self.ends
        if family.classes:
            return 0.0
        if family.log_link:
            return 0.5 * (math.log(max(low, 1.0) if family.whole else low) + math.log(high))
        return low + 0.5 * (high - low)

    @property
    def scale(self) -> float:
        """A sixth of the range that a ridge model is fitted to; 1 for other kinds."""
        return (self.ends[1] - self.ends[0]) / (2.0 * LIMIT) if self.kind == "ridge" else 1.0

    @property
    def limits(self) -> tuple[float, float] | None:
        """Numbers beyond which targets count as the nearer one; None for classes."""
        return None if FAMILIES[self.kind].classes else self.ends
