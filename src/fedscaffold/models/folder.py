"""The folder of a fit: what it holds, whose it is, and how an interrupted fit goes on."""

import hashlib
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.files import check_writable, replacing
from fedscaffold.data.encoded import EncodedProblem
from fedscaffold.models.fit import Settings
from fedscaffold.models.model import Model

MODEL, TRACE, REPORT = "model.json", "trace.npz", "report.html"
CHECKPOINT, PENDING = "checkpoint.npz", "checkpoint.json"
RECORDS = "records"  # a folder, of tables that are not held in memory
FILES = (MODEL, TRACE, REPORT, CHECKPOINT, PENDING)
OVERWRITE = "choose another folder, or replace it with --overwrite"


def request_of(problem: EncodedProblem, settings: Settings) -> dict[str, Any]:
    """What makes two fits the same: the rows, how they are encoded, and the settings."""
    encoding = hashlib.sha256(problem.encoding.to_json().encode()).hexdigest()
    return {"rows": problem.fingerprint(), "encoding": encoding, **asdict(settings)}


def check_folder(out: Path) -> None:
    """Refuse a folder that cannot be written, before any work; makes it where it is missing."""
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidInput(f"cannot make the folder {out}: {error.strerror}") from None
    for name in FILES:
        check_writable(out / name)


def check_owner(out: Path, request: dict[str, Any]) -> None:
    """Refuse a folder that holds another fit, finished or not, or files that no fit accounts for."""
    theirs = _pending(out)
    if (out / MODEL).exists() and Model.load(out / MODEL).provenance.get("request") != request:
        raise InvalidInput(f"{out} holds the model of another fit; {OVERWRITE}")
    if theirs is not None and theirs != request:
        raise InvalidInput(f"{out} holds an unfinished fit of other data or settings; {OVERWRITE}")
    if theirs is None and not (out / MODEL).exists():
        strange = [name for name in (TRACE, REPORT, CHECKPOINT) if (out / name).exists()]
        if strange:
            raise InvalidInput(f"{out} holds {strange[0]}, which is not this fit's; {OVERWRITE}")


def begin(out: Path, request: dict[str, Any]) -> bool:
    """Make the folder this fit's; whether there is a checkpoint to go on from.

    Another's checkpoint goes; another's finished model stays until the new one replaces it.
    """
    if _pending(out) == request:
        return (out / CHECKPOINT).exists()
    (out / CHECKPOINT).unlink(missing_ok=True)
    with replacing(out / PENDING) as temporary:
        temporary.write_text(json.dumps(request, indent=1))
    return False


def finish(out: Path) -> None:
    """Remove the checkpoint, once everything else is written or there is nothing to go on from."""
    (out / CHECKPOINT).unlink(missing_ok=True)
    (out / PENDING).unlink(missing_ok=True)


def _pending(out: Path) -> dict[str, Any] | None:
    """The request of an unfinished fit; None if there is none."""
    try:
        text = (out / PENDING).read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(f"cannot read {out / PENDING}: {error}") from None
    try:
        return dict(json.loads(text))
    except (ValueError, TypeError):
        return {"unreadable": text}
