"""What a site would send in each phase of a study, before anything is sent."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from fedscaffold.core.errors import FedScaffoldError
from fedscaffold.federation.client.policy import SitePolicy
from fedscaffold.federation.client.rules import SiteRules
from fedscaffold.federation.client.store import MemoryStore
from fedscaffold.federation.study.private.at_site import with_budget
from fedscaffold.federation.study.report.traffic import Traffic, traffic_of_log
from fedscaffold.federation.study.settings import StudySettings
from fedscaffold.federation.study.site import StudySite
from fedscaffold.federation.study.study import InProcess, conduct_study
from fedscaffold.reports.page import format_bytes, json_text

PHASES = {
    "greet": "names and kinds of the columns; the number of rows, if the site tells it",
    "peers": "whether the site accepts the other sites' keys",
    "labels": "values of categories and classes that occur often enough, without counts",
    "prepare": "count, mean and sum of squares of each number; how often each category and class occurs",
    "agree": "whether the site accepts the encoding that all sites share",
    "measure": "four numbers: rows, smoothness, noise of the gradients, seconds per local step",
    "train": "the site's local model, once per round of Scaffold",
    "sums": "loss and gradient over all rows at a model and, where the site allows it, its Hessian",
    "evaluate": "losses on rows that training left out, and a histogram of predicted probabilities",
    "finish": "that the site received the result",
}
EXACT = ("greet", "labels", "prepare")  # phases in which a site tells the same whoever else takes part


@dataclass(frozen=True, kw_only=True, eq=False)
class DryRun:
    """What a site would send.

    Parameters
    ----------
    log
        The messages of a study in which this site is alone, as its log would have them.
    stopped
        Why such a study came to an end before its last phase; "" if it did not.

    Examples
    --------
    >>> import pandas as pd
    >>> from fedscaffold.federation import StudySettings, dry_run
    >>> table = pd.DataFrame({"x": [1.0, 2.0, 4.0] * 5, "y": [1.0, 0.0, 2.0] * 5})
    >>> found = dry_run(table, StudySettings(target="y", kind="ridge"))
    >>> found.traffic["greet"].messages
    1
    """

    log: Sequence[dict[str, Any]]
    stopped: str = ""

    @property
    def traffic(self) -> dict[str, Traffic]:
        """Messages, numbers and bytes, by phase."""
        return traffic_of_log(self.log)

    @property
    def masked(self) -> set[str]:
        """Phases whose numbers leave the site in secure sums only."""
        return {entry["phase"] for entry in self.log if "secure" in entry["values"]}

    def to_json(self) -> dict[str, Any]:
        """What would be sent as values that JSON can hold: by phase its meaning, size and largest message."""
        largest = {entry["phase"]: entry for entry in sorted(self.log, key=lambda entry: int(entry["bytes"]))}
        return {
            "stopped": self.stopped,
            "phases": [
                {
                    "phase": phase,
                    "what": PHASES[phase],
                    "exact": phase in EXACT and phase not in self.masked,
                    **vars(one),
                    "values": largest[phase]["values"],
                    "vectors": {name: vector["numbers"] for name, vector in largest[phase]["vectors"].items()},
                }
                for phase, one in self.traffic.items()
            ],
        }

    def text(self) -> str:
        """What would be sent, for people."""
        found = self.to_json()
        lines = ["What this site would send. Nothing has been sent.", ""]
        for one in found["phases"]:
            each = f"{one['messages']} message" + "s" * (one["messages"] > 1)
            size = format_bytes(one["bytes"])
            hidden = "masked, of which others learn the sum over all sites: " * (one["phase"] in self.masked)
            lines.append(f"{one['phase']}: {hidden}{one['what']} ({each}, {size})")
            vectors = ", ".join(f"{name} of {numbers:,}" for name, numbers in one["vectors"].items())
            if vectors:
                lines.append(f"  vectors in the largest message, by number of entries: {vectors}")
            if one["exact"]:
                lines += [f"  {line}" for line in json_text(one["values"]).splitlines()]
        lines += [
            "",
            "Values that are shown are as they would leave. Other messages depend on the other sites; their",
        ]
        lines.append(
            "kinds and sizes are those of a study in which this site is alone, or beside copies of itself."
        )
        if found["stopped"]:
            lines.append(f"Alone, this site could not go further: {found['stopped']}")
        return "\n".join(lines) + "\n"


def dry_run(
    table: Any, settings: StudySettings, *, rules: SiteRules | None = None, policy: SitePolicy | None = None
) -> DryRun:
    """What a site would send in each phase of a study; nothing leaves this process.

    The site's own code answers a coordinator in this process, in a study in which it is alone; with secure sums,
    which one site alone cannot make, beside copies of itself.

    Parameters
    ----------
    table
        The site's rows, a frame of any library that `data.from_frame` takes.
    settings
        What the people of the study decided.
    rules
        What the site tells.
    policy
        What it allows in training.

    Examples
    --------
    >>> import pandas as pd
    >>> from fedscaffold.federation import StudySettings, dry_run
    >>> table = pd.DataFrame({"x": [1.0, 2.0, 4.0] * 5, "y": [1.0, 0.0, 2.0] * 5})
    >>> print(dry_run(table, StudySettings(target="y", kind="ridge")).text().splitlines()[0])
    What this site would send. Nothing has been sent.
    """
    names = ("this site", "a copy", "another copy") if settings.secure else ("this site",)
    sites = {
        name: StudySite(
            name=name,
            table=table,
            rules=rules or SiteRules(),
            policy=with_budget(policy or SitePolicy(), settings),
            store=MemoryStore(),
            engine="reference",
            secure=settings.secure,
        )
        for name in names
    }
    site, stopped = sites[names[0]], ""
    settings = replace(settings, secure_threshold=None)  # of as many sites as there will be
    try:
        conduct_study(InProcess(sites), settings, name="dry-run")
    except FedScaffoldError as error:
        stopped = str(error)
    return DryRun(log=site.log, stopped=stopped)
