"""Parts that comparisons and sweeps share: finished cells on disk, the automatic batch, and text tables."""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from fedscaffold.core import npz, provenance
from fedscaffold.core.checks import given
from fedscaffold.core.errors import InvalidInput
from fedscaffold.core.files import check_writable, folder_at, path_of
from fedscaffold.core.imports import load_optional
from fedscaffold.core.protocols import Problem
from fedscaffold.core.types import Array

BatchSize = int | None | Literal["auto"]
Cell = tuple[dict[str, Array], dict[str, Any]]  # arrays, and facts that JSON can hold


def finished(folder: Path | None, name: str, identity: Mapping[str, Any], compute: Callable[[], Cell]) -> Cell:
    """Return a cell from its file in a folder, or compute it and keep it there; without a folder, compute it.

    `identity` is everything that the result depends on; a digest of it ends the file's name, which begins with
    `name`. A cell whose file is missing, damaged or another cell's is computed.
    """
    if folder is None:
        return compute()
    whole = npz.plain({**identity, "version": provenance.versions()["fedscaffold"]})
    digest = hashlib.sha256(json.dumps(whole, sort_keys=True).encode()).hexdigest()
    file = folder / f"{name}-{digest[:20]}.npz"
    try:
        arrays, description = npz.read(file)
        if description.get("identity") == whole:
            return arrays, description["facts"]
    except (FileNotFoundError, ValueError):
        pass
    arrays, facts = compute()
    npz.write(file, arrays, {"identity": whole, "facts": facts})
    return arrays, facts


def result_folder(out: Any, files: Sequence[str]) -> Path:
    """Make the folder for results if it is missing, and return the folder in it for finished cells.

    Raise, before any work, if one of its files cannot be written or pandas or pyarrow is not installed.
    """
    for package in ("pandas", "pyarrow"):
        load_optional(package, f"tables need {package}", extra="reproduce")
    cells = folder_at(path_of(out) / "cells")
    for name in files:
        check_writable(path_of(out) / name)
    return cells


def chosen_batch(batch_size: Any, problem: Problem) -> int | None:
    """Return a batch size; for "auto" all records if clients have few of them, otherwise a small batch."""
    if not isinstance(batch_size, str):
        return batch_size
    if batch_size != "auto":
        raise InvalidInput(
            f"batch_size must be a number, None for all records, or 'auto'; got {given(batch_size)}"
        )
    from fedscaffold.planning.batches import automatic_batch

    return automatic_batch(problem.sizes)


def text_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return lines of a table: a column is aligned to the right if all of its cells begin like numbers.

    Examples
    --------
    >>> from fedscaffold.benchmarking.cells import text_table
    >>> print(text_table(["method", "N"], [["Scaffold", "10"], ["FedAvg", "1,000"]]))
    method        N
    Scaffold     10
    FedAvg    1,000
    """
    lines = [list(columns), *map(list, rows)]
    widths = [max(len(line[k]) for line in lines) for k in range(len(columns))]
    numeric = [all(row[k][:1] in "0123456789-–." for row in rows) for k in range(len(columns))]
    aligned = [
        "  ".join(
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(line, widths, numeric, strict=True)
        ).rstrip()
        for line in lines
    ]
    return "\n".join(aligned)
