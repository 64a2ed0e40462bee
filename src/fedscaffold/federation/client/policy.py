"""A site's policy, from a file at the site: the requests that it allows, and the noise that they need."""

import os
import tomllib
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from fedscaffold.core.checks import in_words
from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.privacy import ClientLevel
from fedscaffold.federation.client.task import LocalTask
from fedscaffold.federation.messages import TrainRequest
from fedscaffold.federation.refusals import Refusal, RefusalCode
from fedscaffold.federation.run_config import RunConfig
from fedscaffold.methods import FedAvg, GradientScaffold, Scaffold
from fedscaffold.privacy.grid import CLIP, MOST
from fedscaffold.simulation.protection import check_client_level

CLIPS = 1e-100, 1e100  # beyond, numbers lose digits
DELTA_SHARE = 0.1  # δ of a privacy budget in units of one over the rows, unless given
UNLIMITED = 2**63 - 1

Count = Annotated[int, Field(ge=1, le=UNLIMITED)]
Positive = Annotated[float, Field(gt=0.0, allow_inf_nan=False)]
Names = Annotated[tuple[Annotated[str, Field(max_length=100)], ...], Field(strict=False)]  # TOML has lists


class SitePolicy(BaseModel):
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
    fedscaffold.core.errors.InvalidInput: min_batch_size must be greater than or equal to 1, got 0
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    min_batch_size: Count = 10
    min_rows: Count = 10
    max_local_steps: Count = 10_000
    max_rounds: Count = 1_000
    max_runs: Count = 20
    methods: Names = ()
    run_names: Names = ("*",)
    keep_back: float = Field(default=0.0, ge=0.0, lt=1.0)
    tell_rows: bool = True
    tell_state: bool = True
    draws: Literal["secret", "seed"] = "secret"
    changed_data: Literal["refuse", "warn"] = "refuse"
    epsilon: Positive | None = None
    delta: Annotated[float, Field(gt=0.0, lt=1.0)] | None = None
    protect: Literal["rows", "site"] = "rows"
    run_epsilon: Positive | None = None

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise in_words(error, "the policy") from None

    @model_validator(mode="after")
    def _budget_is_whole(self) -> Self:
        for name in ("delta", "run_epsilon"):
            if getattr(self, name) is not None and self.epsilon is None:
                raise ValueError(f"{name} requires epsilon=...")
        if self.protect == "site" and (self.delta is None or self.tell_rows or self.tell_state):
            raise ValueError('protect = "site" needs epsilon and delta, tell_rows = false and tell_state = false')
        return self

    @classmethod
    def for_simulation(cls) -> Self:
        """Return a policy that allows everything and draws by the run's seed, for tests on public data."""
        limits = dict.fromkeys(("max_local_steps", "max_rounds", "max_runs"), UNLIMITED)
        return cls(min_batch_size=1, min_rows=1, draws="seed", **limits)

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
        try:
            return cls(**found)
        except InvalidInput as error:
            raise InvalidInput(f"{os.fspath(path)}: {error}") from None

    def delta_for(self, n_rows: int) -> float:
        """Return δ of the budget of a table with `n_rows` rows."""
        return DELTA_SHARE / n_rows if self.delta is None else self.delta

    def check_request(self, request: TrainRequest) -> None:
        """Raise if a request breaks a rule, before the site's data are read."""
        config = request.config
        method = type(config.method).__name__
        if not any(fnmatchcase(config.name, pattern) for pattern in self.run_names):
            raise Refusal(RefusalCode.POLICY_RUN_NAME, f"the policy allows no run called {config.name}")
        if self.methods and method not in self.methods:
            raise Refusal(RefusalCode.POLICY_METHOD, f"the policy does not allow the method {method}")
        steps = config.local_steps_of(request.client, request.round)
        if steps > self.max_local_steps:
            raise Refusal(
                RefusalCode.POLICY_LOCAL_STEPS,
                f"{steps} local steps are asked for, the policy allows {self.max_local_steps}",
            )
        self._check_noise(request)

    def _check_noise(self, request: TrainRequest) -> None:
        """Raise if a request is without noise although the policy has a budget, or its noise would not suffice."""
        config, privacy = request.config, request.config.privacy
        whole_site = isinstance(privacy, ClientLevel)
        if self.epsilon is not None and (privacy is None or whole_site != (self.protect == "site")):
            asked = "is for steps without noise" if privacy is None else "protects something else"
            what = "its table as a whole" if self.protect == "site" else "every row"
            raise Refusal(
                RefusalCode.ONLY_PRIVATE,
                f"the site has a privacy budget that protects {what}, and the request {asked}",
            )
        if privacy is not None:
            check_noise(config)
            if request.phase == "gradient":
                raise Refusal(RefusalCode.POLICY_METHOD, "under a privacy budget no gradients are exchanged")

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


def check_noise(config: RunConfig) -> None:
    """Raise a `Refusal` if the noise of a run would not protect what it is meant to.

    Messages of Scaffold and FedAvg are computed from noisy steps alone; other methods also send gradients, or
    count records twice. Steps on all rows need no secret batches.
    """
    privacy, method = config.privacy, config.method
    if privacy is None:
        return
    if type(method) not in (Scaffold, GradientScaffold, FedAvg):
        raise Refusal(
            RefusalCode.POLICY_METHOD, f"with privacy use Scaffold or FedAvg, not {type(method).__name__}"
        )
    if not (CLIPS[0] <= privacy.clip <= CLIPS[1] and privacy.noise_multiplier <= MOST / CLIP):
        raise Refusal(
            RefusalCode.POLICY_METHOD,
            f"the clip must be between {CLIPS[0]:g} and {CLIPS[1]:g}, the noise below {MOST // CLIP:,} times that",
        )
    if not isinstance(privacy, ClientLevel):
        if config.batches.size is not None:
            raise Refusal(
                RefusalCode.POLICY_BATCH, "with privacy of records steps must be on all rows; leave batch_size out"
            )
        return
    if privacy.summed:
        raise Refusal(
            RefusalCode.ONLY_SECURE,
            "this server sees every message, each of which needs all of the noise: take "
            "privacy=ClientLevel(summed=False), or a study with secure sums and protect='sites'",
        )
    try:
        check_client_level(privacy, method, config.n_clients)
    except InvalidInput as error:
        raise Refusal(RefusalCode.POLICY_METHOD, str(error)) from None
