"""The page that a site gets: exactly what left it, the plan and the roster that it accepted, and the result."""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from fedscaffold.core.errors import FedScaffoldError
from fedscaffold.core.files import write_text
from fedscaffold.federation.client.store import SiteStore
from fedscaffold.federation.study.plan import StudyPlan
from fedscaffold.federation.study.roster import Roster
from fedscaffold.federation.study.site import PLAN, RESULT, ROSTER
from fedscaffold.inference import Summary
from fedscaffold.inference.summary import summary_from_plain
from fedscaffold.models.model import Model, column_spread
from fedscaffold.reports.page import render

MODEL = "model.json"


class ResultDocument(BaseModel):
    """The result as the coordinator sends it to all sites; other keys are left alone."""

    stopped: str = ""  # why the study stopped without a result
    rows: int | None = None  # of all sites together, if they are known
    reached: bool | None = None  # whether the certified error is within the tolerance
    certified_error: dict[str, float | None] = {}  # "relative" and in "standard_errors"; empty under a budget
    model: dict[str, Any] | None = None  # as `Model.to_json` writes it
    summary: dict[str, Any] | None = None  # standard errors, as `summary_to_plain` gives them


@dataclass(frozen=True, kw_only=True)
class SiteRecord:
    """Everything that a site's store says about its study."""

    sent: list[Mapping[str, Any]] = field(default_factory=list)  # log entries of messages that left, in order
    troubles: list[Mapping[str, Any]] = field(default_factory=list)  # of rejected messages, and of failures
    plan: StudyPlan | None = None  # that it accepted
    roster: Roster | None = None  # that it accepted
    result: ResultDocument | None = None  # that it received, with the model and the standard errors in it
    model: Model | None = None
    summary: Summary | None = None

    @classmethod
    def of(cls, store: SiteStore) -> "SiteRecord":
        """Return the record of a site, from its store."""
        log = list(store.audit.read())
        plan, roster, result = (store.load_note(name) for name in (PLAN, ROSTER, RESULT))
        accepted = None if plan is None else StudyPlan.from_json(plan)
        model, summary, document = None, None, None
        try:
            document = None if result is None else ResultDocument(**result)
            if document is not None and document.model is not None:
                model = Model.from_json(json.dumps(document.model))
            if document is not None and document.summary is not None and accepted is not None:
                summary = summary_from_plain(document.summary)
                column_spread(summary, accepted.coding().encoding)  # raises if it is of other coefficients
        except (FedScaffoldError, ValidationError, KeyError, ValueError, TypeError):
            model, summary = None, None  # whatever the coordinator sent, it is not a result of this plan
        return cls(
            sent=[entry for entry in log if entry["event"] == "sent"],
            troubles=[entry for entry in log if entry["event"] in ("rejected", "failed")],
            plan=accepted,
            roster=None if roster is None else Roster.from_json(roster),
            result=document,
            model=model,
            summary=summary,
        )

    @property
    def site(self) -> str:
        """The site's name, from the key that it sent with the plan."""
        keys = [str(entry["values"]["key"]) for entry in self.sent if "key" in entry["values"]]
        return keys[-1].split()[-1] if keys else "A site"

    @property
    def plans(self) -> list[str]:
        """Fingerprints of the plans that it accepted: the first one, and the one that a survey completed."""
        digests = [str(entry["values"]["accepted"]) for entry in self.sent if entry["phase"] == "plan"]
        return [" ".join(one[k : k + 4] for k in range(0, 24, 4)) for one in dict.fromkeys(digests)]

    @property
    def answers(self) -> list[Mapping[str, Any]]:
        """The messages with numbers."""
        return [entry for entry in self.sent if "numbers" in entry]


def write_site_page(store: SiteStore, path: str | os.PathLike[str]) -> None:
    """Write a site's page and, once it has the result, the model as `model.json` beside it.

    Parameters
    ----------
    store
        The site's store: its log, the plan and the roster that it accepted, and the result.
    path
        The page, an HTML file that needs no other one.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> from fedscaffold.federation import write_site_page
    >>> from fedscaffold.federation.client.store import MemoryStore
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_site_page(MemoryStore(), Path(folder) / "site.html")
    ...     "Nothing has left this site" in (Path(folder) / "site.html").read_text()
    True
    """
    record = SiteRecord.of(store)
    spread = encoding = None
    if record.summary is not None and record.plan is not None:
        encoding = record.plan.coding().encoding
        spread = column_spread(record.summary, encoding)
    write_text(path, render("site", record=record, spread=spread, encoding=encoding))
    if record.model is not None:
        record.model.save(Path(path).parent / MODEL)
