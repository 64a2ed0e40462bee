"""Fit a table into a folder that gets the model, the trace and the report, and resume after an interruption."""

import hashlib
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol

from fedscaffold.core import npz as arrays
from fedscaffold.core.display import progress_bar
from fedscaffold.core.errors import Diverged, InvalidInput
from fedscaffold.core.files import check_writable, folder_at, write_text
from fedscaffold.data.encoded import EncodedProblem
from fedscaffold.data.on_disk import CacheMismatch, remove_cache
from fedscaffold.data.open import default_max_bytes_in_memory
from fedscaffold.data.settings import DETECTED, CsvFormat
from fedscaffold.models.fit import run_fit
from fedscaffold.models.model import Model
from fedscaffold.models.planning.planned import FitSettings, plan_fit
from fedscaffold.models.report import FitReport, ReportInputs, compared_report, read_test_table

MODEL, TRACE, REPORT = "model.json", "trace.npz", "report.html"
CHECKPOINT, PENDING = "checkpoint.npz", "checkpoint.json"
CACHE = "cache"  # a folder for the encoded rows of tables that do not fit in memory
FILES = (MODEL, TRACE, REPORT, CHECKPOINT, PENDING)
OVERWRITE = "choose another folder, or replace it with overwrite=True"


class OpenTable(Protocol):
    """Opens one table, with its encoded rows in memory up to a number of bytes and in a folder above it."""

    def __call__(self, *, cache_dir: Path, max_bytes_in_memory: int) -> EncodedProblem:
        """The problem that the table holds."""


def open_with_cache(
    open_table: OpenTable, out: Path, *, cache_dir: Path | None = None, overwrite: bool = False
) -> EncodedProblem:
    """Open a table for a fit in the folder `out`.

    Encoded rows go to the folder `cache_dir` or, where that is None and they would take more than a quarter of the
    memory, to a folder of `out`, whose rows of another table `overwrite` replaces.
    """
    folder = out / CACHE if cache_dir is None else cache_dir
    in_memory = default_max_bytes_in_memory() if cache_dir is None else 0
    try:
        return open_table(cache_dir=folder, max_bytes_in_memory=in_memory)
    except CacheMismatch:
        if not overwrite or cache_dir is not None:
            raise
        remove_cache(folder)
        return open_table(cache_dir=folder, max_bytes_in_memory=in_memory)


def fit_in_folder(
    problem: EncodedProblem,
    settings: FitSettings,
    out: Path,
    *,
    data: Path,
    kind: str,
    missing: str,
    command: str,
    test: Path | None = None,
    text: CsvFormat = DETECTED,
    overwrite: bool = False,
    reading_seconds: float | None = None,
    announce: Callable[[str], None] = lambda line: None,
) -> FitReport:
    """Fit a table, write model, trace and report to a folder, and return the report.

    A call with the same problem and settings resumes a fit that was interrupted.

    Parameters
    ----------
    problem, settings
        As for `fedscaffold.models.fit`.
    out
        The folder, made with `output_folder`.
    data, kind, missing, command, test
        Name of the table, kind of model, treatment of missing values, how to make the same fit again, and a file
        of test rows, for the report.
    text
        How a CSV file of test rows is to be read.
    overwrite
        Whether to replace another fit that the folder holds.
    reading_seconds
        Time that reading the table took, for the report.
    announce
        Called with a line of text when an interrupted fit is resumed.
    """
    request = arrays.plain(request_of(problem, settings))
    if not overwrite:
        check_owner(out, request)
    with progress_bar("Planning", None):
        planned = plan_fit(problem, settings)
        test_table = None if test is None else read_test_table(test, planned.model(planned.optimum), text)
    if begin(out, request):
        announce("Resuming a fit that was interrupted.")
    try:
        fitted = run_fit(
            planned, settings, checkpoint=out / CHECKPOINT, provenance={"data": data.name, "request": request}
        )
    except Diverged:
        finish(out)
        raise
    inputs = ReportInputs(
        data=str(data),
        kind=kind,
        missing=missing,
        command=command,
        test=None if test is None else str(test),
        test_table=test_table,
        reading_seconds=reading_seconds,
    )
    with progress_bar("Comparing and writing", None):
        report = compared_report(fitted, inputs, progress=False)
        fitted.trace.save(out / TRACE)
        report.save(out / REPORT)
        fitted.model.save(out / MODEL)
        finish(out)
    return report


def request_of(problem: EncodedProblem, settings: FitSettings) -> dict[str, Any]:
    """What identifies a fit: digests of its rows and of their encoding, and the settings."""
    encoding = hashlib.sha256(problem.encoding.to_json().encode()).hexdigest()
    return {"rows": problem.fingerprint(), "encoding": encoding, **asdict(settings)}


@contextmanager
def output_folder(out: Path) -> Iterator[None]:
    """A folder for a fit, made where it is missing and refused where it cannot be written, before any work.

    Folders that were made here and are still empty when the block ends, as after a refusal, are removed.
    """
    made = [folder for folder in (out, *out.parents) if not folder.exists()]
    folder_at(out)
    try:
        for name in FILES:
            check_writable(out / name)
        yield
    finally:
        for folder in made:
            if folder.is_dir() and not any(folder.iterdir()):
                folder.rmdir()


def check_owner(out: Path, request: dict[str, Any]) -> None:
    """Refuse a folder that holds another fit, finished or not, or files that belong to no fit."""
    pending = _pending(out)
    if (out / MODEL).exists() and Model.load(out / MODEL).provenance.get("request") != request:
        raise InvalidInput(f"{out} holds the model of another fit; {OVERWRITE}")
    if pending is not None and pending != request:
        raise InvalidInput(f"{out} holds an unfinished fit of other data or settings; {OVERWRITE}")
    if pending is None and not (out / MODEL).exists():
        unexplained = [name for name in (TRACE, REPORT, CHECKPOINT) if (out / name).exists()]
        if unexplained:
            raise InvalidInput(f"{out} holds {unexplained[0]}, which is not this fit's; {OVERWRITE}")


def begin(out: Path, request: dict[str, Any]) -> bool:
    """Mark the folder as this fit's; True if there is a checkpoint to resume from.

    The checkpoint of another fit is removed; its finished model stays until the new one replaces it.
    """
    if _pending(out) == request:
        return (out / CHECKPOINT).exists()
    (out / CHECKPOINT).unlink(missing_ok=True)
    write_text(out / PENDING, json.dumps(request, indent=1))
    return False


def finish(out: Path) -> None:
    """Remove the checkpoint and the mark of an unfinished fit."""
    (out / CHECKPOINT).unlink(missing_ok=True)
    (out / PENDING).unlink(missing_ok=True)


def _pending(out: Path) -> dict[str, Any] | None:
    """Identity of the unfinished fit in a folder; None if there is none."""
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
