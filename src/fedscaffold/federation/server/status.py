"""The status of a run from its server's folder, for people, scripts and Prometheus."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.files import is_locked, write_text
from fedscaffold.federation.log import AuditLog
from fedscaffold.federation.run_config import RunConfig
from fedscaffold.federation.server.round import RoundResult

METRICS, LOCK = "metrics.prom", "lock"
STATES = {"run-started": "running", "run-continued": "running", "round-closed": "running",
          "run-stopped": "stopped", "run-finished": "finished"}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class RunStatus:
    """The status of a run, from its server's folder.

    Parameters
    ----------
    name
        Name of the run.
    run
        Its random identity.
    state
        "running", "finished", "stopped" by an error or a signal, or "killed" if the server's process is gone and
        left no reason.
    round
        Number of rounds that are complete.
    resets
        How often all client states were reset.
    counted
        Clients whose updates the newest round counted.
    refused
        Reasons by client that the newest round rejected, or that rejected its request.
    shortened
        Share of the length that is left, by client whose update the newest round shortened.
    limited
        Share of the length that is left, by client whose control variate the newest round shortened.
    since
        When the newest line was written, in UTC.
    error
        Why the run stopped; "" if it did not.

    Examples
    --------
    >>> from fedscaffold.federation import RunStatus
    >>> RunStatus(name="pilot", run="0" * 32, state="finished", round=40).round
    40
    """

    name: str
    run: str
    state: str
    round: int
    resets: int = 0
    counted: tuple[int, ...] = ()
    refused: dict[str, str] | None = None
    shortened: dict[str, float] | None = None
    limited: dict[str, float] | None = None
    since: str = ""
    error: str = ""


def run_status(folder: str | os.PathLike[str]) -> RunStatus:
    """Return the status of the run in a server's folder, from its audit log.

    Parameters
    ----------
    folder
        The server's folder.

    Examples
    --------
    >>> import tempfile
    >>> from fedscaffold.federation import AuditLog, run_status
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     AuditLog(f"{folder}/audit.jsonl").write("run-started", name="pilot", run="0" * 32, round=0)
    ...     run_status(folder).state
    'killed'
    """
    path = Path(folder).expanduser()
    facts: dict[str, Any] = {}
    newest: dict[str, Any] = {}
    for entry in AuditLog(path / "audit.jsonl").read():
        if entry.get("event") not in STATES:
            continue
        newest = entry
        facts |= {key: entry[key] for key in ("name", "run", "round", "resets") if key in entry}
        if entry["event"] == "round-closed":
            facts |= {key: entry.get(key) for key in ("counted", "refused", "shortened", "limited")}
    if not newest or not {"name", "run", "round"} <= set(facts):
        raise InvalidInput(f"{os.fspath(folder)} is not the folder of a server that has begun a run")
    state = STATES[newest["event"]]
    if state == "running" and not is_locked(path / LOCK):
        state = "killed"
    return RunStatus(
        name=str(facts["name"]), run=str(facts["run"]), state=state, round=int(facts["round"]),
        resets=int(facts.get("resets", 0)), counted=tuple(facts.get("counted") or ()),
        **{key: dict(facts.get(key) or {}) for key in ("refused", "shortened", "limited")},
        since=str(newest.get("time", "")),
        error=str(newest.get("text", "")) if newest["event"] == "run-stopped" else "",
    )  # fmt: skip


def write_metrics(folder: Path, config: RunConfig, result: RoundResult) -> None:
    """Write the newest round's numbers in Prometheus' text format, for its node exporter's textfile collector."""
    label = f'{{name="{config.name}",run="{result.ledger.run}"}}'
    numbers = {
        "rounds_total": ("counter", "Rounds that are complete.", result.ledger.round),
        "resets_total": ("counter", "How often all client states were reset.", result.ledger.resets),
        "clients": ("gauge", "Number of clients of the run.", config.n_clients),
        "clients_counted": ("gauge", "Clients whose updates the newest round counted.", len(result.counted)),
        "clients_refused": ("gauge", "Clients rejected in the newest round.", len(result.refused)),
        "clients_shortened": ("gauge", "Updates shortened in the newest round.", len(result.shortened)),
        "clients_limited": ("gauge", "Control variates shortened in the newest round.", len(result.limited)),
    }
    lines = [
        line
        for name, (kind, text, value) in numbers.items()
        for line in (
            f"# HELP fedscaffold_{name} {text}",
            f"# TYPE fedscaffold_{name} {kind}",
            f"fedscaffold_{name}{label} {value}",
        )
    ]
    write_text(folder / METRICS, "\n".join(lines) + "\n")
