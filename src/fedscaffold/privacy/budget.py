"""What a client has left of its privacy budget, kept in a file of its own and never given back.

A step is paid for before it is taken: what was lost with a crash stays spent. The file holds numbers of steps and
the noise that they had, nothing of the records.
"""

import json
import math
import os
from dataclasses import asdict, dataclass
from pathlib import Path

from fedscaffold.core.checks import positive, set_fields, whole_number
from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.random.batches import Sampling
from fedscaffold.core.storage.fields import Fields
from fedscaffold.core.storage.files import json_value, read_text, write_text
from fedscaffold.core.storage.lock import exclusive
from fedscaffold.privacy.accounting import Adjacency
from fedscaffold.privacy.accounting import epsilon as epsilon_of

WHAT = "a client's privacy budget"
LOCK_WAIT = 10.0  # seconds


class BudgetSpent(InvalidInput):
    """A request that would exceed a client's privacy budget; nothing has been computed for it."""


@dataclass(frozen=True, kw_only=True)
class PrivacyBudget:
    """A privacy budget whose spending is kept in a file.

    All steps have the same noise, batches and table: the file of another setting is refused, so that nothing is
    forgotten by changing one of them.

    Parameters
    ----------
    file
        Where the number of steps so far is kept; made by the first `spend`.
    epsilon, delta
        The budget, for everything that is ever computed from the table with this file.
    noise_multiplier, batch_size, records, sampling, adjacency
        As for `fedscaffold.privacy.epsilon`.

    Examples
    --------
    >>> import tempfile, pathlib
    >>> import fedscaffold as fs
    >>> file = pathlib.Path(tempfile.mkdtemp()) / "budget.json"
    >>> budget = fs.privacy.PrivacyBudget(file=file, epsilon=1.0, delta=1e-3, noise_multiplier=40.0, records=500)
    >>> budget.spend(10)
    >>> round(budget.spent, 2), budget.steps_left
    (0.34, 50)
    >>> budget.spend(60)
    Traceback (most recent call last):
    fedscaffold.privacy.budget.BudgetSpent: 60 more steps would spend ε = 1.09 of a budget of 1; 50 are left
    """

    file: str | os.PathLike[str]
    epsilon: float
    delta: float
    noise_multiplier: float
    records: int
    batch_size: int | None = None
    sampling: Sampling = "without_replacement"
    adjacency: Adjacency = "replace"

    def __post_init__(self) -> None:
        set_fields(self, epsilon=positive("epsilon", self.epsilon))
        self._after(1)  # which checks all the rest

    def spend(self, steps: int) -> None:
        """Write down that so many steps are taken, before they are; `BudgetSpent` where that is too much."""
        steps = whole_number("steps", steps, least=1)
        with exclusive(f"{os.fspath(self.file)}.lock", f"the budget {os.fspath(self.file)}", wait=LOCK_WAIT):
            total = self.steps + steps
            after = self._after(total)
            if after > self.epsilon:
                raise BudgetSpent(
                    f"{steps:,} more steps would spend ε = {after:.3g} of a budget of {self.epsilon:g}; "
                    f"{self.steps_left:,} are left"
                )
            write_text(self.file, json.dumps({"what": WHAT, "setting": self._setting(), "steps": total}) + "\n")

    @property
    def steps(self) -> int:
        """Number of steps so far."""
        if not Path(self.file).exists():
            return 0
        name = os.fspath(self.file)
        try:
            found = Fields(json_value(read_text(self.file, "the budget")), name)
        except ValueError as error:
            raise InvalidInput(f"{name} is no privacy budget: {error}") from None
        found.only("what", "setting", "steps")
        if found.value("what") != WHAT or found.value("setting") != self._setting():
            raise InvalidInput(
                f"{name} is the budget of another table or other noise; spending cannot be moved between them"
            )
        return found.integer("steps", least=0)

    @property
    def spent(self) -> float:
        """ε that has been spent so far."""
        return self._after(self.steps) if self.steps else 0.0

    @property
    def steps_left(self) -> int:
        """How many more steps the budget allows."""
        low, high = 0, 1
        done = self.steps
        while self._after(done + high) <= self.epsilon:
            low, high = high, 2 * high
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self._after(done + middle) <= self.epsilon else (low, middle)
        return low

    def _after(self, steps: int) -> float:
        """ε of so many steps in all."""
        found = epsilon_of(
            noise_multiplier=self.noise_multiplier, delta=self.delta, steps=steps, batch_size=self.batch_size,
            records=self.records, sampling=self.sampling, adjacency=self.adjacency,
        )  # fmt: skip
        return found if math.isfinite(found) else math.inf

    def _setting(self) -> dict[str, object]:
        return {name: value for name, value in asdict(self).items() if name != "file"}
