"""How far a prediction can be trusted: what it leaves out, in percent, and why."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from fedscaffold.core.errors import UnreliablePrediction

UNRELIABLE = 5.0  # percent left out: beyond it a prediction warns


@dataclass(frozen=True)
class Reliability:
    """What a prediction leaves out.

    Attributes
    ----------
    neglected
        About how far the predicted E‖θ − θ*‖² may be off, in percent.
    reason
        What is left out.

    Examples
    --------
    >>> import fedscaffold as fs
    >>> problem = fs.problems.paper("regression", n_clients=4)
    >>> found = fs.theory.predict(problem, fs.Scaffold(step_size=0.05, local_steps=20), batch_size=10)
    >>> found.reliability.neglected, found.reliability.reliable
    (0.0, True)
    """

    neglected: float
    reason: str

    @property
    def reliable(self) -> bool:
        """Whether less than 5 % is left out."""
        return self.neglected <= UNRELIABLE

    def __str__(self) -> str:
        return f"{self.neglected:.2g} % neglected: {self.reason}"


EXACT = Reliability(0.0, "losses are quadratic, and means and covariances exact")
NO_NOISE = Reliability(0.0, "without noise the mean follows the gradients exactly")
GAUSSIAN = Reliability(2.0, "local models are taken to be Gaussian")


@contextmanager
def measured_anyway() -> Iterator[None]:
    """No warnings about predictions that are compared with a simulation right where they are made."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UnreliablePrediction)
        yield


def warn_if_unreliable(reliability: Reliability) -> None:
    """Warn about a prediction that leaves out more than 5 %."""
    if not reliability.reliable:
        warnings.warn(
            f"this prediction may be off by about {reliability.neglected:.2g} %: {reliability.reason}; a smaller "
            "step_size or a larger batch_size makes it surer, and fedscaffold.run measures it",
            UnreliablePrediction,
            stacklevel=4,
        )
