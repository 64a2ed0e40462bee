"""A client's privacy budget, whose spending is kept in a file and never given back.

A step is paid for before it is taken: steps that a crash lost stay spent. The file holds numbers of steps and
their noise, nothing of the records. Lines are only ever added to it, and the file itself is locked meanwhile:
whatever name or link it is reached by, the same part is never spent twice. A last line without an end does not
count: its step was not taken.
"""

import json
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, get_args

from fedscaffold.core.checks import positive, set_fields, whole_number
from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.files import Fields, exclusive, json_value, read_text
from fedscaffold.core.random.stream import Sampling
from fedscaffold.privacy.accounting import Adjacency, NoisySteps, composed_epsilon

WHAT = "a client's privacy budget"
LOCK_WAIT = 10.0  # seconds; another process holds the lock for milliseconds
Spent = dict[tuple[str, NoisySteps], NoisySteps]  # by run, noise and batches


class BudgetSpent(InvalidInput):
    """A request that would exceed a client's privacy budget; nothing has been computed for it."""


@dataclass(frozen=True, kw_only=True)
class PrivacyBudget:
    """A privacy budget whose spending is kept in a file.

    Steps may have different noise and batches, and are counted together. The file belongs to one table and δ; with
    another table or δ, reading it raises, so nothing is forgotten by changing one of them. ε may change: all past
    spending counts towards the new one.

    Parameters
    ----------
    file
        The file of all steps so far; created by the first `spend`.
    epsilon, delta
        The budget, for everything that is ever computed from the table with this file.
    noise_multiplier, batch_size, sampling
        Of the steps that are spent next, as for `fedscaffold.privacy.epsilon`.
    records, adjacency
        As there; no number of records if whole tables are protected.
    run, run_epsilon
        The run that steps are spent for next, and the ε that this run alone may spend; `epsilon` unless given.

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
    records: int | None
    batch_size: int | None = None
    sampling: Sampling = "without_replacement"
    adjacency: Adjacency = "replace"
    run: str = ""
    run_epsilon: float | None = None

    def __post_init__(self) -> None:
        set_fields(self, epsilon=positive("epsilon", self.epsilon))
        if self.run_epsilon is not None:
            set_fields(self, run_epsilon=positive("run_epsilon", self.run_epsilon))
        self._after([], 1)  # which checks all the rest

    def spend(self, steps: int) -> None:
        """Record steps before they are taken.

        Parameters
        ----------
        steps
            Number of steps.

        Raises
        ------
        BudgetSpent
            If they would exceed the budget; nothing is recorded then.
        """
        steps = whole_number("steps", steps, least=1)
        new = not Path(self.file).exists()
        with exclusive(self.file, f"the budget {os.fspath(self.file)}", wait=LOCK_WAIT) as file:
            text = file.read().decode(errors="replace")
            if new and not text:
                text = _add(file, "", {"what": WHAT, "budget": self._budget()})
            spent = self._parse(text)
            for parts, limit, whose in self._limits(spent):
                after = self._after(parts, steps)
                if after > limit:
                    raise BudgetSpent(
                        f"{steps:,} more steps would spend ε = {after:.3g} of {whose} of {limit:g}; "
                        f"{self._left(spent):,} are left"
                    )
            _add(file, text, {"run": self.run, **self._next(steps)._asdict()})

    @property
    def parts(self) -> list[NoisySteps]:
        """All steps so far; steps of a run with the same noise and batches are one part."""
        return list(self._spent().values())

    @property
    def steps(self) -> int:
        """Number of steps so far, of any noise."""
        return sum(part.steps for part in self.parts)

    @property
    def spent(self) -> float:
        """ε spent so far."""
        return self._epsilon(self.parts)

    @property
    def steps_left(self) -> int:
        """Number of further steps with this noise and these batches that the budget allows."""
        return self._left(self._spent())

    def _spent(self) -> Spent:
        return self._parse(read_text(self.file, "the budget")) if Path(self.file).exists() else {}

    def _parse(self, text: str) -> Spent:
        """Return the steps in the lines of a file, by run, noise and batches."""
        name, spent = os.fspath(self.file), Spent()
        lines = text.split("\n")[:-1]
        if not lines:
            raise InvalidInput(f"{name} is not a privacy budget, or is damaged")
        for k, line in enumerate(lines):
            try:
                fields = Fields(json_value(line), name)
            except ValueError as error:
                raise InvalidInput(f"{name} is not a privacy budget: {error}") from None
            if k == 0:
                fields.only("what", "budget")
                if fields.value("what") != WHAT or fields.value("budget") != self._budget():
                    raise InvalidInput(
                        f"{name} is the budget of another table, δ or adjacency; spending cannot be moved between "
                        "budgets"
                    )
                continue
            fields.only("run", *NoisySteps._fields)
            batch = None if fields.value("batch_size") is None else fields.integer("batch_size", least=1)
            sampling: Any = fields.choice("sampling", *get_args(Sampling))
            one = NoisySteps(fields.number("noise_multiplier", least=0.0), 0, batch, sampling)
            before = spent.get((fields.text("run"), one), one).steps
            spent[fields.text("run"), one] = one._replace(steps=before + fields.integer("steps", least=1))
        return spent

    def _limits(self, spent: Spent) -> list[tuple[list[NoisySteps], float, str]]:
        """Return the steps that are counted together, the ε that they may spend, and its name in messages."""
        limits = [(list(spent.values()), self.epsilon, "a budget")]
        if self.run_epsilon is not None:
            own = [part for (run, _), part in spent.items() if run == self.run]
            limits.append((own, self.run_epsilon, "a run's part"))
        return limits

    def _left(self, spent: Spent) -> int:
        low, high = 0, 1
        limits = self._limits(spent)

        def allowed(steps: int) -> bool:
            return all(self._after(parts, steps) <= limit for parts, limit, _ in limits)

        while allowed(high):
            low, high = high, 2 * high
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if allowed(middle) else (low, middle)
        return low

    def _next(self, steps: int) -> NoisySteps:
        return NoisySteps(self.noise_multiplier, steps, self.batch_size, self.sampling)

    def _after(self, parts: Sequence[NoisySteps], steps: int) -> float:
        """Return ε of some steps and further ones of this budget's noise and batches."""
        return self._epsilon([*parts, self._next(steps)])

    def _epsilon(self, parts: Sequence[NoisySteps]) -> float:
        found = composed_epsilon(parts, delta=self.delta, records=self.records, adjacency=self.adjacency)
        return found if math.isfinite(found) else math.inf

    def _budget(self) -> dict[str, object]:
        return {name: getattr(self, name) for name in ("delta", "records", "adjacency")}


def _add(file: BinaryIO, text: str, line: dict[str, Any]) -> str:
    """Write a line after the last whole one of a file, and return the file's new text."""
    whole, new = text[: text.rfind("\n") + 1], json.dumps(line) + "\n"
    file.seek(len(whole.encode()))
    file.truncate()
    file.write(new.encode())
    file.flush()
    os.fsync(file.fileno())
    return whole + new
