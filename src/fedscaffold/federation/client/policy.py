"""A site's policy: the requests that it allows, from a file at the site."""

import dataclasses
import hashlib
import os
import tomllib
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Literal, Self

import numpy as np

from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.files import Fields
from fedscaffold.federation.client.task import LocalTask, ProblemTask
from fedscaffold.federation.messages import TrainRequest
from fedscaffold.federation.refusals import Refusal, RefusalCode

MOST = 2**63 - 1
DELTA_SHARE = 0.1  # δ of a privacy budget in units of one over the rows, unless given


@dataclass(frozen=True, kw_only=True)
class SitePolicy:
    """The limits of a site for requests of any server; a request that breaks one is rejected before any work.

    The defaults are meant to be safe for tables of people: no update is made from fewer than ten records at a
    time, and the server cannot know which records a batch holds. They do not prove privacy; see the page on
    security.

    Parameters
    ----------
    min_batch_size
        Least number of records in a minibatch. Steps on all rows are always allowed.
    min_rows
        Least number of rows with which this site takes part.
    max_local_steps
        Largest number of local steps in a round.
    max_rounds
        Largest number of different requests of one run that are answered.
    max_runs
        Largest number of runs that this site takes part in, over all time.
    methods
        Names of the methods that are allowed, such as ("Scaffold",); empty for all that the site knows.
    run_names
        Patterns of names of runs that are allowed, such as ``("pilot-*",)``.
    keep_back
        Share of the rows that is never used for training, chosen by a secret of the site; in [0, 1).
    tell_rows
        Whether the server receives the number of rows.
    tell_state
        Whether the server receives the client state if its backup of it is damaged. A server that keeps backups
        can compute the state from what it received anyway.
    draws
        "secret": which records a batch holds depends on a secret of the site, so that the server cannot know it.
        "seed": on the run's seed, as in a simulation, so that a federated run can be compared with one.
    changed_data
        After a change of the data since the site joined a run, "refuse" its requests, or "warn" in the
        site's log.
    epsilon, delta
        A privacy budget for all runs together: only requests with noise are answered, their cost is recorded in
        the site's folder, and a request that would exceed ε is rejected. δ is a tenth of one over the number of
        rows by default, and must be given to protect the site; without ε nothing is budgeted.
    protect
        The subject of the budget: "rows", every row of the table, or "site", the table as a whole.
    run_epsilon
        The part of ε that a single run may spend; all of it by default. In a study at most the study's ε.

    Examples
    --------
    >>> from fedscaffold.federation import SitePolicy
    >>> policy = SitePolicy(min_batch_size=50, run_names=("pilot-*",))
    >>> policy.max_local_steps
    10000
    >>> SitePolicy(min_batch_size=0)
    Traceback (most recent call last):
    ...
    fedscaffold.core.errors.InvalidInput: the policy: min_batch_size must be a whole number of at least 1, got 0
    """

    min_batch_size: int = 10
    min_rows: int = 10
    max_local_steps: int = 10_000
    max_rounds: int = 1_000
    max_runs: int = 20
    methods: tuple[str, ...] = ()
    run_names: tuple[str, ...] = ("*",)
    keep_back: float = 0.0
    tell_rows: bool = True
    tell_state: bool = True
    draws: Literal["secret", "seed"] = "secret"
    changed_data: Literal["refuse", "warn"] = "refuse"
    epsilon: float | None = None
    delta: float | None = None
    protect: Literal["rows", "site"] = "rows"
    run_epsilon: float | None = None

    def __post_init__(self) -> None:
        fields = Fields(dict(vars(self)), "the policy")
        for name in ("min_batch_size", "min_rows", "max_local_steps", "max_rounds", "max_runs"):
            fields.integer(name, least=1)
        for name in ("methods", "run_names"):
            if not all(isinstance(item, str) and len(item) <= 100 for item in fields.items(name)):
                raise InvalidInput(f"the policy: {name} must be a list of names")
        if fields.number("keep_back", least=0.0) >= 1.0:
            raise InvalidInput("the policy: keep_back must be a share of the rows below 1")
        fields.flag("tell_rows")
        fields.flag("tell_state")
        fields.choice("draws", "secret", "seed")
        fields.choice("changed_data", "refuse", "warn")
        for name in ("epsilon", "delta", "run_epsilon"):
            if fields.value(name) is not None and fields.number(name, least=0.0) == 0.0:
                raise InvalidInput(f"the policy: {name} must be above 0")
        if self.delta is not None and (self.epsilon is None or self.delta >= 1.0):
            raise InvalidInput("the policy: delta must be below 1, beside epsilon")
        fields.choice("protect", "rows", "site")
        tells = self.tell_rows or self.tell_state
        if self.protect == "site" and (self.epsilon is None or self.delta is None or tells):
            raise InvalidInput(
                'the policy: protect = "site" needs epsilon and delta, tell_rows = false and tell_state = false'
            )
        if self.run_epsilon is not None and self.epsilon is None:
            raise InvalidInput("the policy: run_epsilon is a part of epsilon, which is missing")

    @classmethod
    def for_simulation(cls) -> Self:
        """Return a policy that allows everything and draws by the run's seed, for tests on public data."""
        return cls(
            min_batch_size=1, min_rows=1, max_local_steps=MOST, max_rounds=MOST, max_runs=MOST, draws="seed"
        )  # fmt: skip

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read a policy from a TOML file with the parameters as keys, all of them optional.

        A table [study] in the file is for `federation.study.site.SiteRules`.

        Parameters
        ----------
        path
            For example a file with the lines ``min_batch_size = 50`` and ``run_names = ["pilot-*"]``.
        """
        try:
            found = tomllib.loads(Path(path).read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            raise InvalidInput(f"cannot read the policy {os.fspath(path)}: {error}") from None
        found.pop("study", None)  # for `SiteRules.load`
        names = [field.name for field in dataclasses.fields(cls)]
        unknown = sorted(set(found) - set(names))
        if unknown:
            raise InvalidInput(f"{os.fspath(path)} has {unknown}, which a policy has not; it may have {names}")
        for name in ("methods", "run_names"):
            if isinstance(found.get(name), list):
                found[name] = tuple(found[name])
        try:
            return cls(**found)
        except InvalidInput as error:
            raise InvalidInput(f"{os.fspath(path)}: {error}") from None

    def delta_for(self, n_rows: int) -> float:
        """Return δ of the budget of a table with `n_rows` rows."""
        return DELTA_SHARE / n_rows if self.delta is None else self.delta

    def check_name(self, name: str) -> None:
        """Raise if the name of a run or study is not allowed."""
        if not any(fnmatchcase(name, pattern) for pattern in self.run_names):
            raise Refusal(RefusalCode.POLICY_RUN_NAME, f"the policy allows no run called {name}")

    def check_request(self, request: TrainRequest) -> None:
        """Raise if a request breaks a rule, before the site's data are read."""
        config = request.config
        self.check_name(config.name)
        method = type(config.method).__name__
        if self.methods and method not in self.methods:
            raise Refusal(RefusalCode.POLICY_METHOD, f"the policy does not allow the method {method}")
        steps = config.local_steps_of(request.client, request.round)
        if steps > self.max_local_steps:
            raise Refusal(
                RefusalCode.POLICY_LOCAL_STEPS,
                f"{steps} local steps are asked for, the policy allows {self.max_local_steps}",
            )

    def check_task(self, request: TrainRequest, task: LocalTask) -> None:
        """Raise if a request breaks a rule that depends on the number of the site's rows."""
        if task.n_rows < self.min_rows:
            raise Refusal(
                RefusalCode.POLICY_ROWS, f"there are {task.n_rows} rows, the policy asks for {self.min_rows}"
            )
        size = request.config.batches.size
        if size is not None and size < min(self.min_batch_size, task.n_rows):
            raise Refusal(
                RefusalCode.POLICY_BATCH,
                f"batches of {size} records are asked for, the policy allows {self.min_batch_size} or more",
            )

    def usable(self, task: LocalTask, secret: bytes) -> LocalTask:
        """Return the task without the rows to keep back, which depend on the site's secret and their positions."""
        if self.keep_back == 0.0:
            return task
        if not isinstance(task, ProblemTask):
            raise Refusal(RefusalCode.POLICY_KEEP_BACK)
        digest = hashlib.sha256(b"rows kept back" + secret).digest()
        uniform = np.random.Generator(np.random.Philox(key=np.frombuffer(digest[:16], np.uint64))).random(
            task.n_rows
        )
        return task.without_rows(uniform < self.keep_back)

    def seed_of(self, request: TrainRequest, secret: bytes) -> int:
        """Return the seed of the site's draws of records."""
        if self.draws == "seed":
            return request.config.seed
        text = f"{request.run} {request.config.seed}".encode()
        return int.from_bytes(hashlib.sha256(b"draws" + secret + text).digest()[:8], "little")
