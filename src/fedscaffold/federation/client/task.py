"""The tasks that clients train."""

from contextlib import AbstractContextManager
from typing import Any, Protocol, runtime_checkable

import numpy as np

from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.privacy import RecordLevel
from fedscaffold.core.protocols import Engine, LocalSgd, Problem
from fedscaffold.core.random.stream import Batches
from fedscaffold.core.types import IntArray
from fedscaffold.engines import Reference, choose_engine
from fedscaffold.engines.clippable import check_clippable
from fedscaffold.federation.refusals import Refusal, RefusalCode
from fedscaffold.privacy.grid import OnGrid


@runtime_checkable
class LocalTask(Protocol):
    """A client's task: a model of `dim` parameters on `n_rows` rows of data.

    Examples
    --------
    >>> import numpy as np
    >>> import fedscaffold as fs
    >>> from fedscaffold.federation import ProblemTask, LocalTask
    >>> isinstance(ProblemTask(fs.problems.Ridge([np.ones((4, 2))], [np.ones(4)])), LocalTask)
    True
    """

    @property
    def dim(self) -> int:
        """d, the number of parameters."""

    @property
    def n_rows(self) -> int:
        """n_c, the number of rows, to which the client's weight is proportional by default."""

    def open(self, batches: Batches, *, seed: int, client: int) -> AbstractContextManager[LocalSgd]:
        """Return the local steps of this client, as a block of one client; see `core.protocols.LocalSgd`."""


@runtime_checkable
class HasFingerprint(Protocol):
    """A task whose data have a digest."""

    def fingerprint(self) -> str:
        """Return a digest of the data, which changes with them."""


@runtime_checkable
class OpensPrivately(Protocol):
    """A task whose local steps can protect single records."""

    def open_privately(
        self, batches: Batches, *, privacy: RecordLevel, seed: int, client: int
    ) -> AbstractContextManager[LocalSgd]:
        """Return local steps with clipped gradients and noise from the operating system's generator."""


@runtime_checkable
class SelectsRows(Protocol):
    """A problem of which some records can be left out."""

    def take_rows(self, rows: IntArray) -> Problem:
        """Return the same problem on some of its records."""


class ProblemTask:
    """A problem with one client as a client's task; local steps are computed by one of the engines.

    Client c draws the records that client c of a simulation with the same seed draws.

    Parameters
    ----------
    problem
        A problem with one client, for example `problem.subset([c])` or `Ridge([X], [y])`.
    engine
        As for `fedscaffold.run`.

    Examples
    --------
    >>> import numpy as np
    >>> import fedscaffold as fs
    >>> from fedscaffold.federation import ProblemTask
    >>> task = ProblemTask(fs.problems.Ridge([np.ones((4, 2))], [np.ones(4)]), engine="reference")
    >>> task.dim, task.n_rows
    (2, 4)
    """

    def __init__(self, problem: Problem, engine: str | Engine = "auto") -> None:
        if problem.n_clients != 1:
            raise InvalidInput(
                f"a client of a federation needs a problem with one client, but this one has {problem.n_clients}; "
                "take problem.subset([c])"
            )
        self.problem, self.engine = problem, choose_engine(engine, problem)

    @property
    def dim(self) -> int:
        """d, the number of parameters."""
        return int(self.problem.dim)

    @property
    def n_rows(self) -> int:
        """The number of records of the problem's client."""
        return int(self.problem.sizes[0])

    def fingerprint(self) -> str:
        """Return a digest of the problem's records and settings."""
        return str(self.problem.fingerprint())

    def open(self, batches: Batches, *, seed: int, client: int) -> AbstractContextManager[LocalSgd]:
        """Return the engine's local steps on the problem."""
        batches.check_fits(self.problem.sizes)
        return self.engine.open(self.problem, batches, seed=seed, first_client=client)

    def open_privately(
        self, batches: Batches, *, privacy: RecordLevel, seed: int, client: int
    ) -> AbstractContextManager[LocalSgd]:
        """Return the reference engine's steps, with clipped gradients and noise from the operating system."""
        batches.check_fits(self.problem.sizes)
        check_clippable(self.problem)
        noisy: Any = OnGrid(self.problem, privacy) if privacy.noise_multiplier > 0.0 else self.problem
        return Reference().open(noisy, batches, seed=seed, first_client=client, privacy=privacy)

    def without_rows(self, kept_back: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> "ProblemTask":
        """Return the same task on the rows that are not kept back."""
        if not isinstance(self.problem, SelectsRows):
            raise Refusal(RefusalCode.POLICY_KEEP_BACK)
        return ProblemTask(self.problem.take_rows(np.flatnonzero(~kept_back)), self.engine)
