"""The kinds of model that a table can be fitted with, and what each asks of the table's target.

A family's loss is in its problem, the parts of its standard errors in `inference.families`; this table
says the rest, so that doors and studies look a kind up instead of asking which one it is.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from fedscaffold.core.types import Array
from fedscaffold.problems.base import OFFSET, TARGET, expit
from fedscaffold.problems.glm import Gamma, Logistic, Poisson, Ridge

Kind = Literal["ridge", "logistic", "poisson", "gamma"]
KINDS: tuple[Kind, ...] = get_args(Kind)


@dataclass(frozen=True, kw_only=True)
class TargetFamily:
    """One kind of model, as tables see it.

    Examples
    --------
    >>> from fedscaffold.problems.families import FAMILIES
    >>> FAMILIES["poisson"].log_link
    True
    """

    kind: Kind  # its name in options
    problem: type[Ridge | Logistic | Poisson | Gamma]  # with one margin; more classes make it multinomial
    mean: Callable[[Array], Array]  # of the target for margins z; for classes the probability of the second
    classes: bool = False  # whether the target holds classes; numbers otherwise
    log_link: bool = False  # whether the mean is the exponential of the margin, so that rows may have exposures
    least: float | None = None  # lower limit of the target; None for no limit
    above: bool = False  # whether it must lie above `least` instead of reaching it
    whole: bool = False  # whether the target must hold whole numbers
    target: str  # description of the target, in words
    loss: str  # in words
    effect: str | None = None  # quantity that a coefficient changes, in words; None if it is the target itself

    def out_of_range(self, smallest: float) -> str | None:
        """Return what a target must be, if it must not reach down to `smallest`; None if it may."""
        if self.least is None or smallest > self.least or (smallest == self.least and not self.above):
            return None
        return "be positive" if self.above else "not be negative"

    def standardized(self, y: Array, shift: float, scale: float) -> Array:
        """Return targets, offsets and weights for margins (z − shift)/scale instead of z."""
        if self.classes:
            return y
        if y.ndim == 1:
            found = y - shift
            found /= scale
            return found
        found = np.array(y)
        if self.log_link:
            found[:, OFFSET] += shift
        else:
            found[:, TARGET] -= shift
            found[:, [TARGET, OFFSET]] /= scale
        return found


FAMILIES: dict[Kind, TargetFamily] = {
    "ridge": TargetFamily(
        kind="ridge", problem=Ridge, mean=lambda z: z, target="numbers", loss="half the squared error"
    ),
    "logistic": TargetFamily(
        kind="logistic",
        problem=Logistic,
        mean=expit,
        classes=True,
        target="classes",
        loss="negative log-likelihood",
        effect="log odds",
    ),
    "poisson": TargetFamily(
        kind="poisson",
        problem=Poisson,
        mean=np.exp,
        log_link=True,
        least=0.0,
        whole=True,
        target="counts",
        loss="negative log-likelihood without its constant",
        effect="logarithm of the rate",
    ),
    "gamma": TargetFamily(
        kind="gamma",
        problem=Gamma,
        mean=np.exp,
        log_link=True,
        least=0.0,
        above=True,
        target="positive amounts",
        loss="negative log-likelihood without its constant",
        effect="logarithm of the mean",
    ),
}
