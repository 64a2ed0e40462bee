"""Settings of a fit under a privacy budget."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedscaffold.core.checks import positive, set_fields, whole_number
from fedscaffold.core.errors import Collector, InvalidInput

OF_ROWS = ("exposure", "offset", "weight", "sample_weight", "class_weight")


@dataclass(frozen=True, kw_only=True)
class PrivacySettings:
    """A privacy budget, and settings of the training; settings that are None are chosen for the budget.

    Parameters
    ----------
    epsilon
        ε > 0 of every row, for everything that the fit publishes; or of every client.
    delta
        δ, below one over the number of rows of every client; by default a tenth of that of the largest client.
    clip
        The largest norm of one row's gradient, or of what one client sends.
    step_size, rounds
        γ and T.

    Examples
    --------
    >>> from fedscaffold.privacy.settings import PrivacySettings
    >>> PrivacySettings(epsilon=3.0).delta_for([500, 200])
    0.0002
    """

    epsilon: float
    delta: float | None = None
    clip: float | None = None
    step_size: float | None = None
    rounds: int | None = None

    def __post_init__(self) -> None:
        found = Collector("the privacy budget")
        for name in ("epsilon", "delta", "clip", "step_size", "rounds"):
            value: Any = getattr(self, name)
            if value is None and name != "epsilon":
                continue
            with found.catching():
                checked = whole_number(name, value, least=1) if name == "rounds" else positive(name, value)
                set_fields(self, **{name: checked})
                if name == "delta" and value >= 1.0:
                    raise InvalidInput(f"delta must be below 1, got {value:g}")
        found.raise_any()

    def delta_for(self, sizes: NDArray[np.int64] | list[int], what: str = "rows of the largest client") -> float:
        """Return δ for clients of these sizes; raise unless it is below one over the size of each.

        Parameters
        ----------
        sizes
            Numbers of rows, or of something else, which `what` names.
        what
            Name of the largest size in the error message.
        """
        largest = int(np.max(sizes))
        if self.delta is None:
            return 0.1 / largest
        if self.delta >= 1.0 / largest:
            raise InvalidInput(
                f"delta must be below {1.0 / largest:.3g}, one over the {largest:,} {what}; got {self.delta:g}"
            )
        return self.delta


def refuse_beside_epsilon(given: dict[str, Any], usual: dict[str, Any]) -> None:
    """Raise if options would publish something that no budget covers; the message names all of them."""
    found = [name for name, value in given.items() if name not in usual or not _same(value, usual[name])]
    if found:
        listed = ", ".join(f"{name}=..." for name in found)
        why = "it would read rows outside of the budget, or has no meaning here"
        if set(found) <= set(OF_ROWS):
            why = "weights of rows change the largest curvature of the loss, which the bounds do not cover"
        raise InvalidInput(f"epsilon cannot be combined with {listed}: {why}")


def _same(value: Any, usual: Any) -> bool:
    """Return whether an option has its usual value; arrays never do."""
    plain = isinstance(value, tuple) or np.ndim(value) == 0
    return value is usual or (plain and bool(value == usual))
